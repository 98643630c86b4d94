"""The commands of compare_driver.cc for systems whose client is a Python library.

A driver hands `serve` a store with prepare(seed, block_bytes, blocks), publish(), fetch(), fetch_one(block), is_target_right()
and drop(); each raises on failure. `Memory` holds the bytes to publish and the target of fetches, both touched beforehand.
"""

import random
import sys
import time

import numpy

FETCHES_MAX = 20_000  # of one command
LOAD_NS_MAX = 10 * 10**9  # of one `load`
SEED_FACTOR, WORD_FACTOR = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
WORD_MASK = 2**64 - 1


class Memory:
    """Source and target of the largest prefix. Every word of a prefix depends on the seed, the block and its place in it."""

    def __init__(self, bytes_max):
        self.source = numpy.ones(bytes_max, dtype=numpy.uint8)
        self.target = numpy.ones(bytes_max, dtype=numpy.uint8)

    def fill(self, seed, block_bytes, blocks):
        total = block_bytes * blocks
        if not 0 < total <= self.source.nbytes:
            raise ValueError("prepare")
        ramp = numpy.arange(block_bytes // 8, dtype=numpy.uint64) * numpy.uint64(WORD_FACTOR)
        words = self.source[:total].view(numpy.uint64).reshape(blocks, -1)
        for block in range(blocks):
            numpy.add(ramp, numpy.uint64(((seed << 32) | block) * SEED_FACTOR & WORD_MASK), out=words[block])
        self.target[:total] = 0xEE


def wait_until(at_ns):
    left = at_ns - time.monotonic_ns()
    if left > 0:
        time.sleep(left / 1e9)


class Loop:
    def __init__(self, store):
        self.store, self.blocks, self.random = store, 0, random.Random(1)

    def obey(self, words):
        """The words of the reply."""
        verb, arguments = words[0], words[1:]
        if verb not in ("prepare", "publish", "fetch", "check", "drop", "latency", "rate", "load"):
            raise ValueError(f"no command '{verb}'")
        return getattr(self, verb)(*arguments) or []

    def prepare(self, seed, block_bytes, blocks):
        self.blocks = int(blocks)
        self.store.prepare(int(seed), int(block_bytes), self.blocks)

    def timed(self, at_ns, work):
        wait_until(int(at_ns))
        start = time.monotonic_ns()
        work()
        return [start, time.monotonic_ns()]

    def publish(self, at_ns):
        return self.timed(at_ns, self.store.publish)

    def fetch(self, at_ns):
        return self.timed(at_ns, self.store.fetch)

    def check(self):
        if not self.store.is_target_right():
            raise ValueError("fetched bytes differ")

    def drop(self):
        self.store.drop()

    def fetch_one(self):
        self.store.fetch_one(self.random.randrange(self.blocks))

    def latency(self, count):
        times = []
        for _ in range(min(int(count), FETCHES_MAX)):
            start = time.monotonic_ns()
            self.fetch_one()
            times.append(time.monotonic_ns() - start)
        return times

    def rate(self, seconds, at_ns):
        wait_until(int(at_ns))
        start, count = time.monotonic_ns(), 0
        until = start + int(min(float(seconds), 10.0) * 1e9)
        while count < FETCHES_MAX and time.monotonic_ns() < until:
            self.fetch_one()
            count += 1
        return [count, start, time.monotonic_ns()]

    def load(self, per_second, count, seed, at_ns):
        """Open loop: arrivals are a Poisson process that does not wait for answers."""
        arrivals, times, due = random.Random(int(seed)), [], float(at_ns)
        for _ in range(min(int(count), FETCHES_MAX)):
            if time.monotonic_ns() > int(at_ns) + LOAD_NS_MAX:
                break
            due += arrivals.expovariate(float(per_second)) * 1e9
            wait_until(int(due))
            self.fetch_one()
            times.append(time.monotonic_ns() - int(due))
        return times


def serve(store, replies):
    """Answers commands from stdin on `replies` until `quit` or the end."""
    loop = Loop(store)
    print("ok", file=replies, flush=True)
    for line in sys.stdin:
        words = line.split()
        if words == ["quit"]:
            break
        try:
            print("ok", *loop.obey(words), file=replies, flush=True)
        except Exception as error:  # whatever a peer raises is this command's failure
            print("error", type(error).__name__, str(error).replace("\n", " ")[:500], file=replies, flush=True)
