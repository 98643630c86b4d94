"""The arithmetic of bench/compare: medians, ratios within rounds, percentiles, and what did not run."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "compare"))
sys.dont_write_bytecode = True
import cases  # noqa: E402
import report  # noqa: E402


def result(values, not_run=()):
    return {
        "rounds": 3, "cores": 2, "not_run": list(not_run), "systems": [{"name": name, "says": "."} for name in values],
        "rows": [{"place": "loopback", "case": "fetch, 1 x 2 MiB, 1 client", "unit": "GB/s", "values": values}]}


class Report(unittest.TestCase):
    def test_ratio_is_of_values_of_the_same_round(self):
        # The machine was ten times slower in the second round: that changes no ratio.
        row = result({"memcpy": [10, 1, 10], "redis": [5, 0.5, 2]})["rows"][0]
        self.assertEqual(report.ratio(row, "redis", "memcpy"), 0.5)

    def test_ratio_to_a_system_without_values_is_none(self):
        row = result({"redis": [5]})["rows"][0]
        self.assertIsNone(report.ratio(row, "redis", "memcpy"))
        self.assertIsNone(report.ratio(row, "memcpy", "redis"))

    def test_cell_has_the_median_and_both_ratios(self):
        row = result({"memcpy": [10, 10, 10], "ibid grpc": [1, 2, 3], "redis": [4, 4, 4]})["rows"][0]
        self.assertEqual(report.cell(row, "redis", "ibid grpc"), "4.00 (0.40, 2.00)")
        self.assertEqual(report.cell(row, "memcpy", "ibid grpc"), "10.00")
        self.assertEqual(report.cell(row, "lmcache", "ibid grpc"), "–")

    def test_first_transport_of_ibid_is_what_others_are_compared_with(self):
        self.assertEqual(report.reference_of(result({"memcpy": [1], "ibid grpc": [1], "ibid shm": [1]})), "ibid grpc")
        self.assertIsNone(report.reference_of(result({"memcpy": [1], "redis": [1]})))

    def test_what_did_not_run_is_in_the_table_with_the_reason(self):
        missing = [{"place": "everywhere", "system": "redis", "why": "not installed"}]
        lines = report.table(result({"memcpy": [1]}, missing)).splitlines()
        self.assertIn("| everywhere: redis | not run: not installed |", lines[-1])
        self.assertEqual({line.count("|") for line in lines}, {4})

    def test_percentiles_are_values_that_were_measured(self):
        self.assertEqual(cases.percentile(range(100, 0, -1), 50), 51)
        self.assertEqual(cases.percentile(range(1, 101), 99), 100)
        self.assertEqual(cases.percentile([7], 99), 7)


if __name__ == "__main__":
    unittest.main()
