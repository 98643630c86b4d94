#include "client/replay/sweep.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/check.h"
#include "core/eviction/eviction_policy.h"

namespace ibid {
namespace {

struct Unit {
  const char* name;
  int shift;
};
constexpr std::array<Unit, 4> kUnits = {{{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}}};
constexpr uint64_t kBytesMax = uint64_t{1} << 60;
constexpr uint64_t kBytesPerTokenMax = uint64_t{1} << 24;

bool IsBound(absl::string_view policy) { return policy == kMinPolicy || policy == kInfinitePolicy; }

// The row's place in the table, without its result.
absl::StatusOr<SweepRow> MakeRow(const Trace& trace, const Capacity& capacity,
                                 uint64_t bytes_per_token) {
  const uint64_t block_bytes = bytes_per_token * trace.block_tokens;
  SweepRow row;
  row.capacity_fraction = capacity.fraction;
  if (capacity.fraction > 0) {
    row.capacity_blocks = CapacityBlocks(trace, capacity.fraction);
  } else {
    row.capacity_blocks = capacity.bytes / block_bytes;
    row.capacity_fraction =
        static_cast<double>(row.capacity_blocks) / static_cast<double>(trace.blocks_count());
  }
  if (row.capacity_blocks == 0) {
    return absl::InvalidArgumentError(absl::StrCat("a capacity of ", capacity.bytes,
                                                   " bytes holds no block of ", block_bytes,
                                                   " bytes; give a larger one"));
  }
  if (block_bytes > 0 && row.capacity_blocks > kBytesMax / block_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(row.capacity_blocks, " blocks of ", block_bytes,
                                                   " bytes are more than any cluster has"));
  }
  row.capacity_bytes = row.capacity_blocks * block_bytes;
  return row;
}

void Replay(std::span<const Trace> traces, uint32_t servers_count, size_t threads_count,
            std::vector<SweepRow>* rows) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < rows->size(); i = next++) {
      SweepRow& row = (*rows)[i];
      const auto result =
          ReplayTrace(traces[row.trace_index], row.policy, row.capacity_blocks, servers_count);
      IBID_CHECK(result.ok()) << result.status().ToString();
      row.result = *result;
    }
  };
  std::vector<std::jthread> threads;
  while (threads.size() + 1 < std::min(threads_count, rows->size())) threads.emplace_back(work);
  work();
}

}  // namespace

absl::StatusOr<Capacity> Capacity::Parse(absl::string_view text) {
  absl::string_view number = absl::StripAsciiWhitespace(text);
  double scale = 0;
  for (const Unit& unit : kUnits) {
    if (absl::ConsumeSuffix(&number, unit.name)) scale = static_cast<double>(1ull << unit.shift);
  }
  double value = 0;
  const bool is_number = absl::SimpleAtod(number, &value) && value > 0;
  Capacity capacity;
  if (is_number && scale > 0 && value * scale <= static_cast<double>(kBytesMax)) {
    capacity.bytes = static_cast<uint64_t>(value * scale);
    return capacity;
  }
  if (is_number && scale == 0 && value <= 1) {
    capacity.fraction = value;
    return capacity;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("capacity '", text,
                   "': use a share of the different blocks up to 1, as 0.05, or bytes with a unit, "
                   "as 64GiB (KiB, MiB, GiB or TiB)"));
}

absl::Status SweepOptions::Validate() const {
  if (capacities.empty()) return absl::InvalidArgumentError("no capacity; give one, as 0.05");
  if (policies.empty()) return absl::InvalidArgumentError("no policy; give one, as lru");
  for (const std::string& policy : policies) {
    if (!IsBound(policy)) IBID_RETURN_IF_ERROR(CheckEvictionPolicyName(policy));
  }
  if (bytes_per_token > kBytesPerTokenMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("bytes_per_token=", bytes_per_token, ": use at most ", kBytesPerTokenMax));
  }
  if (servers_count == 0 || servers_count > kReplayServersMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("servers_count=", servers_count, ": use 1 to ", kReplayServersMax));
  }
  const bool has_bytes = std::any_of(capacities.begin(), capacities.end(),
                                     [](const Capacity& c) { return c.fraction == 0; });
  if (has_bytes && bytes_per_token == 0) {
    return absl::InvalidArgumentError(
        "a capacity in bytes needs the bytes of a token: give bytes_per_token or layout");
  }
  return absl::OkStatus();
}

std::vector<Capacity> LogarithmicCapacities() {
  constexpr int kCount = 24;
  constexpr double kLeast = 0.005;
  std::vector<Capacity> capacities(kCount);
  for (int i = 0; i < kCount; ++i) {
    capacities[i].fraction = kLeast * std::pow(1 / kLeast, static_cast<double>(i) / (kCount - 1));
  }
  capacities.back().fraction = 1;
  return capacities;
}

absl::StatusOr<std::vector<SweepRow>> RunSweep(std::span<const Trace> traces,
                                               const SweepOptions& options) {
  IBID_RETURN_IF_ERROR(options.Validate());
  std::vector<std::string> policies;
  for (const std::string& policy : options.policies) {
    const bool is_there = std::find(policies.begin(), policies.end(), policy) != policies.end();
    if (!is_there && !IsBound(policy)) policies.push_back(policy);
  }
  policies.emplace_back(kMinPolicy);
  policies.emplace_back(kInfinitePolicy);

  std::vector<SweepRow> rows;
  for (size_t t = 0; t < traces.size(); ++t) {
    std::vector<SweepRow> columns;
    for (const Capacity& capacity : options.capacities) {
      IBID_ASSIGN_OR_RETURN(SweepRow row, MakeRow(traces[t], capacity, options.bytes_per_token));
      row.trace_index = t;
      columns.push_back(std::move(row));
    }
    std::stable_sort(columns.begin(), columns.end(), [](const SweepRow& a, const SweepRow& b) {
      return a.capacity_blocks < b.capacity_blocks;
    });
    for (const std::string& policy : policies) {
      for (SweepRow row : columns) {
        row.policy = policy;
        rows.push_back(std::move(row));
      }
    }
  }
  const size_t processors = std::max(1u, std::thread::hardware_concurrency());
  Replay(traces, options.servers_count, std::min(processors, options.threads_max), &rows);
  return rows;
}

}  // namespace ibid
