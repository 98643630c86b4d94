"""ibid, Redis, memcached, Mooncake Store and LMCache on the same work, side by side on this machine.

In each round every case is run by every system, one after the other, beside a memcpy of the same bytes; the order of the systems
turns from round to round. A first round warms both sides and does not count. What cannot run is listed with the reason.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import cases
import report
import systems
from processes import CompareError, Loopback, Namespaces

PLACES = {"loopback": (Loopback, cases.loopback_cases), "namespaces": (Namespaces, cases.namespace_cases)}
CLIENTS_QUICK = 2


def say(*words):
    print(*words, file=sys.stderr, flush=True)


class Comparison:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.until = time.monotonic() + options.seconds_max
        self.rows, self.not_run, self.samples, self.rounds = {}, [], [], 0

    def miss(self, place, system, why):
        why = " ".join(str(why).split()).replace("|", "/")
        self.not_run.append({"place": place, "system": system, "why": why})
        say(f"compare: {place}, {system}: not run: {why}")

    def chosen(self):
        """The systems that can run here."""
        runnable = []
        for system in systems.all_systems():
            if self.options.systems and system.name.split()[0] not in self.options.systems:
                continue
            why = system.why_not(self.options)
            if why:
                self.miss("everywhere", system.name, why)
            else:
                runnable.append(system)
        return runnable

    def run(self):
        self.systems = self.chosen()
        for name in self.options.places:
            make_place, make_cases = PLACES[name]
            why = make_place.why_not() if make_place is Namespaces else None
            if why:
                self.miss(Namespaces.name, "all systems", why)
                continue
            place = make_place()
            try:
                self.run_place(place, cases.quick_cases() if self.options.quick else make_cases())
            finally:
                place.close()

    def run_place(self, place, place_cases):
        running = []
        try:
            for make in self.systems:
                system = make(self.options, place, self.folder)
                running.append(system)
                try:
                    system.start(CLIENTS_QUICK if self.options.quick else systems.CLIENTS_MAX)
                except CompareError as error:
                    self.drop(running, system, error)
            for round_number in range(self.options.rounds + 1):
                if time.monotonic() > self.until:
                    raise CompareError(f"stopped after {self.options.seconds_max} s (--seconds_max)")
                self.run_round(place, place_cases, running, round_number)
                say(f"compare: {place.name}: " + (f"round {round_number} of {self.options.rounds}" if round_number else "warmed"))
        finally:
            for system in running:
                system.stop()

    def run_round(self, place, place_cases, running, round_number):
        turn = round_number % max(1, len(running))
        for case in place_cases:
            for system in [*running[turn:], *running[:turn]]:
                try:
                    values, samples = case.run(system, round_number)
                except CompareError as error:
                    self.drop(running, system, error)
                    continue
                if round_number > 0:
                    self.keep(place, system, values, samples)

    def drop(self, running, system, error):
        """It takes part no more; what it was measured at before stays."""
        self.miss(system.place.name, system.name, error)
        running.remove(system)
        system.stop()

    def keep(self, place, system, values, samples):
        if samples:
            self.samples.append({"place": place.name, "system": system.name, **samples})
        for (name, unit), value in values.items():
            row = self.rows.setdefault((place.name, name), {"place": place.name, "case": name, "unit": unit, "values": {}})
            row["values"].setdefault(system.name, []).append(value)

    def result(self):
        return {
            "bench": "compare", "cores": os.cpu_count(), "rounds": self.options.rounds, "is_quick": self.options.quick,
            "systems": [{"name": system.name, "says": system.says} for system in self.systems],
            "rows": list(self.rows.values()), "not_run": self.not_run, "one_block_fetches": self.samples,
        }


def write_json(result, path):
    """One line a row and a list of samples, so that a change of one is a change of one line."""
    parts = []
    for key, value in result.items():
        if isinstance(value, list):
            value = "[\n" + ",\n".join("  " + json.dumps(each) for each in value) + "\n ]"
        else:
            value = json.dumps(value)
        parts.append(f' {json.dumps(key)}: {value}')
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def draw(options):
    """By the peers' Python, which has matplotlib; by this one if none is given."""
    python = options.peers / "bin/python" if options.peers else sys.executable
    subprocess.run([python, systems.FOLDER / "report.py", options.json, f"--plot={options.plot}"], check=True, timeout=120)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default="build/release/bin", help="folder of ibid-server and compare_driver")
    parser.add_argument("--peers", type=pathlib.Path, help="Python environment made by bench/compare/install_peers")
    parser.add_argument("--rounds", type=int, default=5, help="the medians are reported")
    parser.add_argument("--systems", type=lambda text: text.split(","), help="only these of memcpy,ibid,redis,memcached,mooncake,lmcache")
    parser.add_argument("--places", type=lambda text: text.split(","), default=list(PLACES), help="loopback,namespaces; the latter needs root")
    parser.add_argument("--json", type=pathlib.Path, help="file for all values")
    parser.add_argument("--plot", help="file for the picture; needs --json and matplotlib")
    parser.add_argument("--seconds_max", type=float, default=600, help="no round begins after so long")
    parser.add_argument("--quick", action="store_true", help="one round of small prefixes on loopback: shows that it works, measures nothing")
    options = parser.parse_args()
    if options.plot and not options.json:
        parser.error("--plot needs --json")
    if unknown := set(options.places) - set(PLACES):
        parser.error(f"--places: no {', '.join(sorted(unknown))}")
    options.bin = options.bin.resolve()
    options.rounds = 1 if options.quick else min(20, max(1, options.rounds))
    options.places = ["loopback"] if options.quick else options.places
    options.peers = options.peers.absolute() if options.peers else None
    return options


def on_signal(signum, frame):
    raise KeyboardInterrupt


def main():
    options = parse()
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, on_signal)
    try:
        with tempfile.TemporaryDirectory(prefix="ibid-compare-") as folder:
            comparison = Comparison(options, pathlib.Path(folder))
            comparison.run()
        result = comparison.result()
        print(report.table(result), report.explained(result), sep="\n\n")
        if options.json:
            write_json(result, options.json)
        if options.plot:
            draw(options)
    except KeyboardInterrupt:
        say("compare: interrupted; it has stopped the programs it started")
        return 130
    except (CompareError, subprocess.SubprocessError, OSError) as error:
        say(f"compare: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
