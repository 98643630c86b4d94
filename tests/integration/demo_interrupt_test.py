"""scripts/demo.py leaves no process and no folder behind, whenever it is interrupted and whatever it is given.

Usage: demo_interrupt_test.py REPOSITORY_ROOT FOLDER_OF_PROGRAMS
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BIN = sys.argv.pop()
ROOT = pathlib.Path(sys.argv.pop()).resolve()
DEMO = ROOT / "scripts" / "demo.py"
# All that descends from a run carries it in its environment.
MARK = "IBID_DEMO_INTERRUPT_TEST"

# Runs the demo, and interrupts it between the start of its n-th process and the moment that it could know of it.
INTERRUPT_AT_START = """
import os, runpy, signal, subprocess, sys
count = int(sys.argv.pop(1))
class Popen(subprocess.Popen):
    def __init__(self, *args, **kwargs):
        global count
        super().__init__(*args, **kwargs)
        count -= 1
        if count == 0:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(100):
                pass  # the handler runs here
subprocess.Popen = Popen
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def processes_of(mark):
    """Command lines by process id."""
    found = {}
    for folder in pathlib.Path("/proc").iterdir():
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # no process, gone, or somebody else's
    return found


class DemoInterruptTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.json = pathlib.Path(self.folder.name) / "demo.json"

    def start(self, *front, bin=BIN, model=ROOT / "models" / "demo"):
        self.temp = pathlib.Path(tempfile.mkdtemp(dir=self.folder.name))
        environment = dict(os.environ, TMPDIR=str(self.temp), **{MARK: self.temp.name})
        return subprocess.Popen([sys.executable, *front, DEMO, "--bin", bin, "--model", model, "--json", self.json],
                                env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def expect_nothing_left(self, demo, what):
        out, err = demo.communicate(timeout=60)
        left = processes_of(self.temp.name)
        for process in left:
            os.kill(process, signal.SIGKILL)
        self.assertEqual(left, {}, what)
        self.assertEqual(list(self.temp.glob("ibid-demo-*")), [], what)
        self.assertFalse(self.json.exists(), what)
        self.assertNotIn("Traceback", err, what)
        return err

    def test_an_interrupt_while_a_process_is_being_started(self):
        for count in range(1, 8):  # the server, three workers, the CLI
            demo = self.start("-c", INTERRUPT_AT_START, str(count))
            self.expect_nothing_left(demo, f"process {count}")
            self.assertEqual(demo.returncode, 130, count)

    def test_an_interrupt_at_any_moment(self):
        for i in range(16):
            demo = self.start()
            # From where the demo has a folder: before that there is nothing to leave behind.
            while demo.poll() is None and not list(self.temp.iterdir()):
                time.sleep(0.001)
            time.sleep(i * i * 0.008)
            demo.send_signal(signal.SIGINT)
            if i % 3 == 0:
                demo.send_signal(signal.SIGTERM)
            self.expect_nothing_left(demo, f"moment {i}")
            self.assertEqual(demo.returncode, 130, i)

    def test_what_is_not_there_is_one_line(self):
        for arguments in ({"bin": "/nope"}, {"model": "/nope"}):
            demo = self.start(**arguments)
            err = self.expect_nothing_left(demo, arguments)
            self.assertEqual(demo.returncode, 1)
            self.assertEqual(err.count("\n"), 1, err)
            self.assertIn("/nope", err)


if __name__ == "__main__":
    unittest.main()
