"""bench/compare --quick: real servers and clients on loopback; peers that are not installed are left out with one line."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

BIN = sys.argv[1] if len(sys.argv) > 1 else "build/release/bin"
RUN = pathlib.Path(__file__).resolve().parents[2] / "bench" / "compare" / "run"


def run(*flags):
    return subprocess.run([RUN, f"--bin={BIN}", *flags], check=False, timeout=100, capture_output=True, text=True)


class Compare(unittest.TestCase):
    def test_quick_run_measures_each_system_that_is_there(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "compare.json"
            done = run("--quick", f"--json={path}")
            self.assertEqual(done.returncode, 0, done.stderr)
            result = json.loads(path.read_text())
        expected = {"memcpy", "ibid grpc"}
        expected |= {name for name, program in (("redis", "redis-server"), ("memcached", "memcached")) if shutil.which(program)}
        for row in result["rows"]:
            self.assertLessEqual(expected, set(row["values"]), row)
            for values in row["values"].values():
                self.assertEqual(len(values), 1, row)
                self.assertGreater(values[0], 0, row)
            self.assertIn(row["case"], done.stdout)
        absent = {missing["system"]: missing["why"] for missing in result["not_run"]}
        self.assertFalse(expected & set(absent), absent)
        self.assertLessEqual({"mooncake", "lmcache"}, set(absent))
        for system, why in absent.items():
            print(f"{system}: skipped: {why}")
            self.assertIn(f"{system}: not run: {why}", done.stderr)

    def test_system_whose_server_ends_is_listed_with_the_end_of_its_log(self):
        with tempfile.TemporaryDirectory() as folder:
            server = pathlib.Path(folder) / "ibid-server"
            server.write_text("#!/bin/sh\necho 'no such luck' >&2\nexit 3\n")
            server.chmod(0o755)
            (pathlib.Path(folder) / "compare_driver").symlink_to(pathlib.Path(BIN).resolve() / "compare_driver")
            done = subprocess.run([RUN, f"--bin={folder}", "--quick", "--systems=memcpy,ibid"], check=False, timeout=60,
                                  capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| loopback: ibid grpc | not run: the server ended: no such luck |", done.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
