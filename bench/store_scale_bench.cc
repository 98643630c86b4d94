// Whether the store keeps its promises at scale: 10 million blocks, chains of a million tokens,
// constant overload, restarts, disks. Prints each figure beside its target, and keeps all values as
// JSON. Every case is bounded in count and time.

#include <cstdio>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_join.h"
#include "bench/scale/scale_bench.h"
#include "core/command_line.h"
#include "core/log.h"
#include "core/process.h"

ABSL_FLAG(bool, quick, false, "small counts: shows that every case works; its figures say nothing");
ABSL_FLAG(int, rounds, 5, "rounds of each case, 1 to 20; the median counts");
ABSL_FLAG(std::vector<std::string>, cases,
          std::vector<std::string>({"memory", "index", "rpc", "recovery", "disk"}),
          "cases to run: memory, index, rpc, recovery, disk");
ABSL_FLAG(std::string, bin, "build/release/bin", "folder of ibid-server");
ABSL_FLAG(std::string, json, "", "file for all values; empty: none");
ABSL_FLAG(std::string, serve_bare, "",
          "be the bare gRPC server of the case rpc; a file for its port");

namespace ibid {
namespace {

constexpr char kProgram[] = "store_scale_bench";

int RunCases(const ScaleOptions& options) {
  const std::vector<std::string> cases = absl::GetFlag(FLAGS_cases);
  ScaleReport report;
  for (const std::string& name : cases) {
    if (name == "memory") {
      RunMemoryCase(options, &report);
    } else if (name == "index") {
      RunIndexCases(options, &report);
    } else if (name == "rpc") {
      RunRpcCase(options, &report);
    } else if (name == "recovery") {
      RunRecoveryCase(options, &report);
    } else if (name == "disk") {
      RunDiskCase(options, &report);
    } else {
      return FailProgram(kProgram, absl::InvalidArgumentError(
                                       "--cases: use some of memory, index, rpc, recovery, disk"));
    }
  }
  if (!absl::GetFlag(FLAGS_json).empty()) {
    std::ofstream(absl::GetFlag(FLAGS_json))
        << nlohmann::json{{"bench", kProgram},
                          {"cores", std::thread::hardware_concurrency()},
                          {"is_quick", options.is_quick},
                          {"rounds", options.rounds},
                          {"results", report.ToJson()}}
               .dump(1)
        << "\n";
  }
  return options.is_quick || report.is_all_met() ? 0 : 1;
}

}  // namespace
}  // namespace ibid

int main(int argc, char** argv) {
  ibid::ReadCommandLine(
      {ibid::kProgram, "",
       "store_scale_bench: measures the store at scale. Ends with 1 when a target "
       "is missed.\n",
       ibid::FlagsDefinedIn(__FILE__)},
      {argv + 1, argv + argc});
  if (const absl::Status status = ibid::InitLog(ibid::kProgram, "error"); !status.ok()) {
    return ibid::FailProgram(ibid::kProgram, status);
  }
  if (const std::string port_file = absl::GetFlag(FLAGS_serve_bare); !port_file.empty()) {
    return ibid::ServeBareGrpc(port_file);
  }
  ibid::ScaleOptions options;
  options.is_quick = absl::GetFlag(FLAGS_quick);
  options.rounds = options.is_quick ? 1 : absl::GetFlag(FLAGS_rounds);
  options.bin = absl::GetFlag(FLAGS_bin);
  options.self = argv[0];
  if (options.rounds < 1 || options.rounds > 20) {
    return ibid::FailProgram(ibid::kProgram, absl::InvalidArgumentError("--rounds: use 1 to 20"));
  }
  return ibid::RunCases(options);
}
