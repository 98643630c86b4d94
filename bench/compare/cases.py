"""What is measured: each case is run once a round by each system, one system after the other. A run gives {(row, unit): value}, and
the single times behind them, if any."""

import dataclasses
import time

START_NS = 20_000_000  # from the command to the common start of all clients
IDLE_FETCHES = 200
RATE_S, LOAD_S = 1.0, 2.0
LOAD_SHARE = 0.8  # of the system's own highest rate
LOAD_FETCHES_MAX = 4000  # in all


def soon():
    return time.monotonic_ns() + START_NS


def ask(clients, *words):
    """The same command to all of them at once; their answers."""
    for client in clients:
        client.send(*words)
    return [client.reply() for client in clients]


def percentile(values, percent):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def fetchers_of(system, clients):
    """Who fetches what each of `clients` published: another client, where there is a store between them."""
    if not system.is_shared:
        return clients
    everyone = system.clients
    return [everyone[(everyone.index(client) + 1) % len(everyone)] for client in clients]


@dataclasses.dataclass(frozen=True)
class Prefixes:
    """Publish of one prefix a client, all at once; then fetch of each by another client. GB/s of all clients together."""

    blocks: str
    block_bytes: int
    blocks_count: int
    clients_count: int

    def row(self, verb):
        return f"{verb}, {self.blocks_count} x {self.blocks}, {self.clients_count} client{'s' * (self.clients_count > 1)}"

    def run(self, system, round_number):
        publishers = system.clients[:self.clients_count]
        fetchers = fetchers_of(system, publishers)
        publish = self.timed(publishers, round_number, "publish")
        fetch = self.timed(fetchers, round_number, "fetch")
        ask(fetchers, "check")
        ask(fetchers, "drop")
        return {(self.row("publish"), "GB/s"): publish, (self.row("fetch"), "GB/s"): fetch}, None

    def timed(self, clients, round_number, verb):
        for index, client in enumerate(clients):
            client.send("prepare", round_number * 10 + index, self.block_bytes, self.blocks_count)
        for client in clients:
            client.reply()
        times = ask(clients, verb, soon())
        seconds = (max(end for _, end in times) - min(begin for begin, _ in times)) / 1e9
        return self.block_bytes * self.blocks_count * len(clients) / seconds / 1e9


@dataclasses.dataclass(frozen=True)
class OneBlock:
    """Fetch of one block out of a stored prefix: one after the other on an idle system; by all clients back to back; and by an open
    loop of all clients at 80 % of that rate."""

    blocks: str
    block_bytes: int
    blocks_count: int
    has_load: bool
    fetches: int = IDLE_FETCHES

    def row(self, kind, name):
        return f"fetch of one {self.blocks} block, {kind}, {name}"

    def run(self, system, round_number):
        publisher = system.clients[0]
        reader = fetchers_of(system, [publisher])[0]
        shape = (round_number * 10 + 9, self.block_bytes, self.blocks_count)
        ask([publisher], "prepare", *shape)
        ask([publisher], "publish", soon())
        ask([reader], "prepare", *shape)
        ask([reader], "fetch", soon())
        ask([reader], "check")
        values = {"idle": ask([reader], "latency", self.fetches)[0]}
        if self.has_load and system.is_shared:
            values["load"], values["rate"] = self.under_load(system.clients, shape)
        ask([publisher], "drop")
        result = {}
        for kind, name in (("idle", "idle"), ("load", f"at {LOAD_SHARE:.0%} of its rate")):
            for percent in (50, 99) if kind in values else ():
                result[self.row(name, f"p{percent}"), "us"] = percentile(values[kind], percent) / 1e3
        if "rate" in values:
            result[self.row("back to back", f"{len(system.clients)} clients"), "1/s"] = values["rate"]
        return result, {f"{kind}_us": [time_ns // 1000 for time_ns in values[kind]] for kind in ("idle", "load") if kind in values}

    def under_load(self, clients, shape):
        """Times in ns since each fetch was due, and the rate (1/s) of which 80 % was offered."""
        ask(clients, "prepare", *shape)
        rates = ask(clients, "rate", RATE_S, soon())
        per_second = sum(count * 1e9 / (end - begin) for count, begin, end in rates)
        offered = per_second * LOAD_SHARE / len(clients)
        count = max(1, int(min(LOAD_FETCHES_MAX / len(clients), offered * LOAD_S)))
        at = soon()
        for index, client in enumerate(clients):
            client.send("load", f"{offered:.3f}", count, shape[0] + index, at)
        return [time_ns for client in clients for time_ns in client.reply()], per_second


def loopback_cases():
    return [Prefixes("2 MiB", 2 << 20, 64, 1), Prefixes("2 MiB", 2 << 20, 64, 4), Prefixes("64 KiB", 64 << 10, 512, 1),
            OneBlock("2 MiB", 2 << 20, 64, True)]


def namespace_cases():
    return [Prefixes("2 MiB", 2 << 20, 64, 1), Prefixes("2 MiB", 2 << 20, 64, 4), OneBlock("2 MiB", 2 << 20, 64, False)]


def quick_cases():
    return [Prefixes("64 KiB", 64 << 10, 8, 1), Prefixes("64 KiB", 64 << 10, 8, 2), OneBlock("64 KiB", 64 << 10, 8, False, 10)]
