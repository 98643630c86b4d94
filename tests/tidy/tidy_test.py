"""Rules of the tree that a machine can check: folder directions, adapters, names, sizes, documented flags.

Usage: tidy_test.py REPOSITORY_ROOT
"""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()

# Which folders a folder may include. proto is included as "ibid/v1/...".
MAY_INCLUDE = {
    "core": {"core"},
    "transport": {"core", "proto", "transport"},
    "cache_server": {"core", "proto", "transport", "cache_server"},
    "client": {"core", "proto", "transport", "client"},
    "worker": {"core", "proto", "transport", "client", "worker"},
}
# Protobuf and gRPC types stop at the adapters between the wire and core types.
ADAPTER = re.compile(r"_(service|channel|stream|messages|server)(_\w+)?\.(h|cc)$|^(rpc_metrics|stream_call|unary_call)\.(h|cc)$")
BANNED_NAMES = {"util", "utils", "common", "helper", "helpers", "misc", "types", "manager", "base", "data"}
SOURCE_LINES_MAX = 600
HEADER_LINES_MAX = 300
LINE_COLUMNS_MAX = 100
CODE_FOLDERS = [*MAY_INCLUDE, "tests", "bench", "examples"]


def code_files(folders):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".h", ".cc", ".cu"}:
                yield path


def includes(path):
    return re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE)


def folder_of(include):
    first = include.split("/")[0]
    return "proto" if first == "ibid" else first


class Tidy(unittest.TestCase):
    def test_folders_include_only_downwards(self):
        known = set(MAY_INCLUDE) | {"proto"}
        for folder, allowed in MAY_INCLUDE.items():
            for path in code_files([folder]):
                for include in includes(path):
                    target = folder_of(include)
                    if target in known:
                        self.assertIn(target, allowed, f"{path.relative_to(ROOT)} includes {include}")

    def test_core_knows_no_rpc_protobuf_or_database(self):
        for path in code_files(["core"]):
            self.assertNotRegex(path.read_text(), r"#include .(grpc|google/protobuf|rocksdb)", str(path))

    def test_protobuf_stops_at_the_adapters(self):
        for path in code_files(["cache_server", "client", "worker"]):
            if not ADAPTER.search(path.name):
                self.assertNotRegex(path.read_text(), r'#include "ibid/v1/|#include <grpcpp', str(path.relative_to(ROOT)))

    def test_no_file_has_a_name_that_says_nothing(self):
        for path in code_files(CODE_FOLDERS):
            self.assertNotIn(path.stem, BANNED_NAMES, str(path))

    def test_files_stay_readable(self):
        for path in code_files(CODE_FOLDERS):
            lines = path.read_text().splitlines()
            limit = HEADER_LINES_MAX if path.suffix == ".h" else SOURCE_LINES_MAX
            self.assertLessEqual(len(lines), limit, f"{path.relative_to(ROOT)} is too long")
            for number, line in enumerate(lines, 1):
                if 'R"' in line or path.suffix == ".cc" and "tests" in path.parts and '": ' in line:
                    continue  # raw text cannot be broken
                self.assertLessEqual(len(line), LINE_COLUMNS_MAX, f"{path.relative_to(ROOT)}:{number} is too wide")

    def test_no_friend_tests(self):
        for path in code_files(MAY_INCLUDE):
            self.assertNotRegex(path.read_text(), r"friend class \w*Test|FRIEND_TEST", str(path))

    def test_every_flag_is_in_operations(self):
        operations = (ROOT / "docs" / "operations.md").read_text()
        for path in code_files(["cache_server", "client", "worker"]):
            for flag in re.findall(r"^ABSL_FLAG\([^,]+,\s*(\w+)", path.read_text(), re.MULTILINE):
                flag = flag.removesuffix("_")  # typed without it: core/command_line.h
                self.assertIn(f"`--{flag}`", operations, f"{path.relative_to(ROOT)} has --{flag}")

    def test_readme_is_short(self):
        self.assertLess(len((ROOT / "README.md").read_text().splitlines()), 150)


if __name__ == "__main__":
    unittest.main(verbosity=1)
