// `ibid replay`.
#include <cstdio>
#include <fstream>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/flags.h"
#include "client/replay/plot.h"
#include "client/replay/report.h"
#include "client/replay/sweep.h"
#include "client/replay/trace.h"
#include "core/check.h"
#include "core/eviction/eviction_policy.h"
#include "core/kv_layout.h"

namespace ibid::cli {
namespace {

constexpr uint32_t kTraceBlockTokens = 512;  // of the traces that Mooncake publishes

absl::StatusOr<uint64_t> BytesPerToken() {
  const std::string text = absl::GetFlag(FLAGS_layout);
  const uint64_t bytes = absl::GetFlag(FLAGS_bytes_per_token);
  if (text.empty()) return bytes;
  if (bytes != 0) return absl::InvalidArgumentError("give --bytes_per_token or --layout");
  IBID_ASSIGN_OR_RETURN(const KvLayout layout, KvLayout::Parse(text));
  IBID_RETURN_IF_ERROR(layout.Validate());
  return layout.PayloadBytes() / layout.block_tokens;
}

absl::StatusOr<SweepOptions> OptionsOfFlags() {
  SweepOptions options;
  options.policies = absl::GetFlag(FLAGS_policies);
  if (options.policies.empty()) {
    for (const absl::string_view name : EvictionPolicyNames()) options.policies.emplace_back(name);
  }
  if (absl::GetFlag(FLAGS_sweep)) {
    if (IsGiven("capacities")) return absl::InvalidArgumentError("give --capacities or --sweep");
    options.capacities = LogarithmicCapacities();
  } else {
    for (const std::string& text : absl::GetFlag(FLAGS_capacities)) {
      IBID_ASSIGN_OR_RETURN(const Capacity capacity, Capacity::Parse(text));
      options.capacities.push_back(capacity);
    }
  }
  IBID_ASSIGN_OR_RETURN(options.bytes_per_token, BytesPerToken());
  const std::string plot = absl::GetFlag(FLAGS_plot);
  if (!plot.empty() && !absl::EndsWith(plot, ".svg")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--plot=", plot, ": give a name that ends in .svg"));
  }
  options.servers_count = absl::GetFlag(FLAGS_servers_count);
  IBID_RETURN_IF_ERROR(options.Validate());
  return options;
}

absl::StatusOr<Trace> TraceOf(const std::string& path) {
  const uint32_t block_tokens = absl::GetFlag(FLAGS_block_tokens);
  IBID_ASSIGN_OR_RETURN(Trace trace,
                        ReadTrace(path, block_tokens == 0 ? kTraceBlockTokens : block_tokens));
  if (!IsGiven("split_tokens")) return trace;
  return SplitBlocks(trace, absl::GetFlag(FLAGS_split_tokens));
}

bool WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return file.good();
}

int RunReplay(const Command& command) {
  if (Operands().empty()) return FailUsage(command, "give a trace file: ibid replay TRACE.jsonl");
  const absl::StatusOr<SweepOptions> options = OptionsOfFlags();
  if (!options.ok()) return FailUsage(command, options.status().message());
  std::vector<Trace> traces;
  for (const std::string& path : Operands()) {
    absl::StatusOr<Trace> trace = TraceOf(path);
    if (!trace.ok()) return FailUsage(command, trace.status().message());
    traces.push_back(*std::move(trace));
  }
  const auto rows = RunSweep(traces, *options);
  if (!rows.ok()) return FailUsage(command, rows.status().message());
  const std::string plot = absl::GetFlag(FLAGS_plot);
  if (!plot.empty() && !WriteFile(plot, SweepSvg(traces, *rows))) {
    return FailUsage(command, absl::StrCat("--plot=", plot, ": cannot be written"));
  }
  if (absl::GetFlag(FLAGS_json)) {
    std::puts(SweepJson(traces, *rows).c_str());
  } else {
    std::fputs(SweepTable(traces, *rows).c_str(), stdout);
  }
  return kExitOk;
}

}  // namespace

const Command kReplayCommand = {
    "replay",
    "what share of recorded prompts a cache would hold, by eviction policy and size",
    "Runs traces of requests (JSON lines as Mooncake publishes them) through the eviction policies "
    "of the server, each with\n"
    "each capacity, from an empty cache, and says what share of the prompts' tokens was found. "
    "Beside them: min, which no\n"
    "policy of that size can exceed, since it knows the future, and infinite, which never evicts. "
    "Asks no server.\n\n"
    "  ibid replay conversation_trace.jsonl\n"
    "  ibid replay *.jsonl --capacities=256GiB,1TiB --bytes_per_token=131072\n"
    "  ibid replay *.jsonl --sweep --plot=replay.svg\n"
    "  ibid replay *.jsonl --split_tokens=16 --servers_count=4 --policies=hazard,lru\n",
    {"policies", "capacities", "sweep", "block_tokens", "split_tokens", "servers_count",
     "bytes_per_token", "layout", "plot"},
    RunReplay,
    /*is_local=*/true,
    /*takes_operands=*/true};

}  // namespace ibid::cli
