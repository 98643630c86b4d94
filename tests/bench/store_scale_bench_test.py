"""store_scale_bench --quick runs every case and writes figures in the form that is kept."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

BIN = sys.argv[1] if len(sys.argv) > 1 else "build/release/bin"


class StoreScaleBench(unittest.TestCase):
    def test_quick_run_measures_every_target(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "result.json")
            subprocess.run([f"{BIN}/store_scale_bench", "--quick", f"--bin={BIN}", f"--json={path}"],
                           check=True, timeout=100, stdout=subprocess.DEVNULL)
            with open(path, encoding="utf-8") as file:
                result = json.load(file)
        self.assertEqual(result["bench"], "store_scale_bench")
        self.assertTrue(result["is_quick"])
        for row in result["results"]:
            self.assertGreater(row["median"], 0, row)
            self.assertIn(row["median"], row["values"], row)
            self.assertTrue(row["case"] and row["unit"], row)
        targets = [row["case"] for row in result["results"] if "at_most" in row or "at_least" in row]
        for word in ("memory a block", "match, ", "match and lease, ", "offer and commit",
                     "cost of an eviction", "recovery of", "first block served",
                     "disk tier to direct, write", "disk tier to direct, read", "amplification"):
            self.assertTrue(any(word in case for case in targets), word)

    def test_unknown_case_names_the_cases(self):
        done = subprocess.run([f"{BIN}/store_scale_bench", "--cases=nothing"], check=False, timeout=20,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("memory, index, rpc, recovery, disk", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
