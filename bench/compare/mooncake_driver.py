"""One client of Mooncake Store, or (--node_bytes) the process whose memory is the store.

The client mounts no memory of its own, so that every block travels by TCP between two processes, and uses the calls without
copies: batch_put_from and batch_get_into over registered buffers.
"""

import argparse
import os
import sys

from mooncake.store import MooncakeDistributedStore

import driver_loop

LOCAL_BUFFER_BYTES = 16 << 20


class MooncakeStore:
    def __init__(self, store, bytes_max):
        self.store, self.memory = store, driver_loop.Memory(bytes_max)
        for array in (self.memory.source, self.memory.target):
            if store.register_buffer(array.ctypes.data, array.nbytes) != 0:
                raise RuntimeError("register_buffer failed")

    def prepare(self, seed, block_bytes, blocks):
        self.memory.fill(seed, block_bytes, blocks)
        self.total = block_bytes * blocks
        self.keys = [f"compare:{block_bytes}:{seed}:{block}" for block in range(blocks)]
        self.sizes = [block_bytes] * blocks
        self.sources, self.targets = ([array.ctypes.data + block * block_bytes for block in range(blocks)]
                                      for array in (self.memory.source, self.memory.target))

    def publish(self):
        results = self.store.batch_put_from(self.keys, self.sources, self.sizes)
        if any(results):
            raise RuntimeError(f"batch_put_from answered {sorted(set(results))}")

    def fetch(self):
        results = self.store.batch_get_into(self.keys, self.targets, self.sizes)
        if results != self.sizes:
            raise RuntimeError(f"batch_get_into answered {sorted(set(results))}")

    def fetch_one(self, block):
        result = self.store.get_into(self.keys[block], self.targets[block], self.sizes[block])
        if result != self.sizes[block]:
            raise RuntimeError(f"get_into answered {result}")

    def is_target_right(self):
        return bool((self.memory.source[:self.total] == self.memory.target[:self.total]).all())

    def drop(self):
        for key in self.keys:
            self.store.remove(key, True)  # also while a lease of a fetch lasts


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", required=True, help="address of this process")
    parser.add_argument("--master", required=True, help="host:port of mooncake_master")
    parser.add_argument("--bytes_max", type=int, default=128 << 20, help="the largest prefix")
    parser.add_argument("--node_bytes", type=int, default=0, help="memory to give to the store; then it is no client")
    options = parser.parse_args()
    # The library writes its log to stdout too: replies get a descriptor of their own.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    store = MooncakeDistributedStore()
    result = store.setup(options.host, "P2PHANDSHAKE", options.node_bytes, LOCAL_BUFFER_BYTES, "tcp", "", options.master)
    if result != 0:
        print(f"error setup answered {result}", file=replies, flush=True)
        return 1
    if options.node_bytes:
        print("ok", file=replies, flush=True)
        sys.stdin.read()
    else:
        driver_loop.serve(MooncakeStore(store, options.bytes_max), replies)
    store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
