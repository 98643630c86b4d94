"""The five steps of `scripts/demo`: real processes, a real model, one prompt of about 3,000 tokens.

Every run's output tokens are compared with those of the same prompt computed without any store. TTFT and TPOT are as the worker
measured them; the workers are warmed with another prompt first. Standard library only.
"""

import argparse
import contextlib
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

MAX_TOKENS = 32
DEADLINE_S = 110.0
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ENDINGS = [
    " To the Congress I therefore recommend",
    " The people of the United States have",
    " In conclusion, the Government of this country must",
    " Our relations with foreign nations remain",
    " The Secretary of the Treasury reports",
]


class DemoError(Exception):
    """What went wrong, for the user; no traceback."""


def start(arguments, **pipes):
    try:
        # In a session of its own: Ctrl-C is the demo's, which ends what it started.
        return subprocess.Popen(arguments, stdin=subprocess.DEVNULL, start_new_session=True, **pipes)
    except OSError as error:
        raise DemoError(f"cannot start {arguments[0]}: {error.strerror}") from error


class Interrupts:
    """Turns the signals that end the demo into one KeyboardInterrupt, and only where that leaves nothing behind: a
    process that was started and not yet noted, or a folder, would outlive the demo."""

    def __init__(self):
        self.has_come, self.is_allowed = False, False
        for each in ENDING_SIGNALS:
            signal.signal(each, self.on_signal)

    def on_signal(self, signum, frame):
        self.has_come = True
        if self.is_allowed:
            self.raise_once()

    def raise_once(self):
        self.is_allowed = False  # a second Ctrl-C must not keep the programs from being ended
        raise KeyboardInterrupt

    def allow(self):
        self.is_allowed = True
        if self.has_come:
            self.raise_once()

    @contextlib.contextmanager
    def held(self):
        was_allowed, self.is_allowed = self.is_allowed, False
        try:
            yield
        finally:
            if was_allowed:
                self.allow()


class Program:
    """One child process, with its log in the demo's folder. Ends with the demo."""

    def __init__(self, name, arguments, folder):
        self.name, self.folder = name, folder
        self.port_file = folder / f"{name}.ports"
        self.port_file.unlink(missing_ok=True)
        self.log_path = folder / f"{name}.log"
        with open(self.log_path, "ab") as log:
            self.process = start([*arguments, f"--port_file={self.port_file}"], stdout=log, stderr=log)

    def address(self):
        """Waits until it serves."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if self.process.poll() is not None:
                break
            if self.port_file.exists():
                return f"127.0.0.1:{json.loads(self.port_file.read_text())['port']}"
            time.sleep(0.01)
        raise DemoError(f"{self.name} did not start; its log ends:\n" + self.log_path.read_text()[-1500:])

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.kill()


class Demo:
    def __init__(self, options, folder, interrupts):
        self.interrupts = interrupts
        self.question = None  # the CLI's process that runs now
        self.bin = pathlib.Path(options.bin).resolve()
        self.model = pathlib.Path(options.model).resolve()
        self.folder = folder
        self.programs = {}
        self.started = time.monotonic()
        self.prompt = read_prompt(self.model)
        self.runs = []

    # Processes.

    def start_program(self, key, name, arguments):
        with self.interrupts.held():
            self.programs[key] = Program(name, arguments, self.folder)

    def start_server(self, listen="127.0.0.1:0"):
        self.start_program("server", "server", [
            self.bin / "ibid-server", f"--listen={listen}", "--http_listen=127.0.0.1:0", "--host_bytes_max=256MiB",
            f"--disk_dir={self.folder / 'disk'}", "--disk_bytes_max=1GiB", "--extent_bytes=16MiB"])
        self.server = self.programs["server"].address()

    def start_workers(self):
        for name in "ABC":
            self.start_program(name, f"worker-{name}", [
                self.bin / "ibid-worker", f"--model={self.model}", "--listen=127.0.0.1:0", f"--servers={self.server}",
                "--threads=2"])
        self.workers = {name: self.programs[name].address() for name in "ABC"}

    def stop_all(self):
        if self.question is not None:
            self.question.kill()
            self.question.communicate()
        for program in self.programs.values():
            if program.process.poll() is None:
                program.process.terminate()
        for program in self.programs.values():
            program.stop()

    # Requests, all through the CLI.

    def cli(self, *arguments):
        left = DEADLINE_S - (time.monotonic() - self.started)
        if left <= 0:
            raise DemoError(f"the demo did not finish within {DEADLINE_S:.0f} s")
        with self.interrupts.held():
            self.question = start([self.bin / "ibid", *arguments, "--json"], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
        out, err = self.question.communicate(timeout=left)
        if self.question.returncode != 0:
            raise DemoError(f"`ibid {' '.join(arguments)}` ended with {self.question.returncode}: {err.strip()}")
        self.question = None
        return json.loads(out)

    def generate(self, worker, ending, *flags):
        prompt_file = self.folder / "prompt.txt"
        prompt_file.write_text(self.prompt + ending)
        return self.cli("generate", f"--worker={self.workers[worker]}", f"--prompt_file={prompt_file}",
                        f"--max_tokens={MAX_TOKENS}", "--timeout=60s", *flags)

    def wait_until_on_disk(self):
        """Blocks are written to disk in the background, and by other processes: wait until none is on its way."""
        for _ in range(500):
            stats = self.cli("stats", f"--servers={self.server}")["servers"][0]
            if stats["published_blocks"] > 0 and stats["pending_writes"] == 0:
                return
            time.sleep(0.02)
        raise DemoError("the server did not finish writing to disk")

    def run(self, name, words, expected, call):
        answer = call()
        usage = answer["usage"]
        row = {
            "name": name, "ttft_ms": round(answer["ttft_ms"], 2), "tpot_ms": round(answer["tpot_ms"], 3),
            "prompt_tokens": usage["prompt_tokens"], "fetched_tokens": usage["fetched_tokens"],
            "computed_tokens": usage["computed_tokens"], "tokens_identical": answer["token_ids"] == expected["token_ids"],
        }
        self.runs.append(row)
        print(f"({len(self.runs)}) {words}\n"
              f"    TTFT {row['ttft_ms']:8.1f} ms   TPOT {row['tpot_ms']:6.2f} ms   prompt {row['prompt_tokens']} tokens:"
              f" {row['fetched_tokens']} fetched, {row['computed_tokens']} computed   output tokens"
              f" {'identical' if row['tokens_identical'] else 'DIFFERENT'}", flush=True)
        return answer

    def play(self):
        print(f"Starting a cache server and three workers with the model in {self.model.name} ...", flush=True)
        self.start_server()
        self.start_workers()
        print("Computing each prompt once without any store, to compare with ...", flush=True)
        for name in "BC":
            self.generate(name, " .", "--store=off")
        expected = [self.generate("A", ending, "--store=off", "--no_worker_cache") for ending in ENDINGS]
        for name in "BC":  # what the workers kept themselves must not be mistaken for the store's
            self.cli("generate", f"--worker={self.workers[name]}", "--prompt=Warm.", "--max_tokens=2", "--store=off")

        fresh = "--no_worker_cache"
        first = self.run("cold", "Cold: worker A computes the whole prompt and publishes its blocks.", expected[0],
                         lambda: self.generate("A", ENDINGS[0], fresh))
        print(f"    ...{self.prompt[-60:]!r} + {ENDINGS[0]!r} ->\n    {first['text']!r}")
        self.wait_until_on_disk()
        second = self.run("warm", "Warm: worker B, which never saw it, gets the same beginning with another ending.", expected[1],
                          lambda: self.generate("B", ENDINGS[1], fresh))
        print(f"    {second['usage']['fetched_tokens']} tokens came from the store;"
              f" the first token came {first['ttft_ms'] / second['ttft_ms']:.1f} times sooner than in (1).")
        self.wait_until_on_disk()

        self.programs["server"].kill()
        self.start_server(listen=self.server)
        self.wait_until_connected("C")
        self.run("restarted", "The server was killed with -9 and started again: worker C is served from its disk.", expected[2],
                 lambda: self.generate("C", ENDINGS[2], fresh))
        self.wait_until_connected("A", "B")
        self.run("split", "Split: worker A runs prefill (its TTFT), worker B fetches all blocks and decodes.", expected[3],
                 lambda: self.generate("B", ENDINGS[3], fresh, f"--prefill_worker={self.workers['A']}"))
        self.programs["server"].stop()
        self.run("store_down", "The server is stopped: worker C computes everything, the request succeeds.", expected[4],
                 lambda: self.generate("C", ENDINGS[4], fresh))

    def wait_until_connected(self, *names):
        for name in names:
            for _ in range(500):
                if self.cli("status", f"--servers={self.server}", f"--worker={self.workers[name]}")["worker"]["is_store_reachable"]:
                    break
                time.sleep(0.02)
            else:
                raise DemoError(f"worker {name} did not find the server again")

    def check(self):
        """The demo fails when what it shows is not so."""
        by_name = {row["name"]: row for row in self.runs}
        for row in self.runs:
            if not row["tokens_identical"]:
                raise DemoError(f"run '{row['name']}' gave other tokens than a run without a store")
        for name in ("warm", "restarted", "split"):
            if by_name[name]["fetched_tokens"] < 0.95 * by_name[name]["prompt_tokens"]:
                raise DemoError(f"run '{name}' fetched less than 95% of its prompt from the store")
        if by_name["store_down"]["fetched_tokens"] != 0:
            raise DemoError("a stopped store served tokens")


def read_prompt(model):
    try:
        return (model / "prompt.txt").read_text().rstrip()
    except OSError as error:
        raise DemoError(f"--model: cannot read {error.filename}: {error.strerror}") from error


def run_demo(options, folder, interrupts):
    demo = Demo(options, folder, interrupts)
    try:
        try:
            interrupts.allow()
            demo.play()
            demo.check()
            pathlib.Path(options.json).write_text(json.dumps({"runs": demo.runs}, indent=1) + "\n")
        finally:
            interrupts.is_allowed = False  # an interrupt can come even here, and no later
    finally:
        demo.stop_all()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default="build/release/bin", help="folder of the programs")
    parser.add_argument("--model", default="models/demo", help="HF model directory with a prompt.txt")
    parser.add_argument("--json", default="build/demo.json", help="where the figures are written")
    options = parser.parse_args()
    interrupts = Interrupts()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ibid-demo-"))
    try:
        run_demo(options, folder, interrupts)
    except KeyboardInterrupt:
        print("demo: interrupted; it has stopped the programs it started", file=sys.stderr)
        return 130
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except subprocess.TimeoutExpired as error:
        print(f"demo: {error.cmd[1]} did not answer in time", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"demo: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"All output tokens are identical. Figures: {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
