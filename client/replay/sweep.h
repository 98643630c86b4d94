// Traces, policies and capacities, each with each.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/replay/replay.h"
#include "client/replay/trace.h"

namespace ibid {

// How large a cache is: a share of the trace's different blocks, or bytes if that is 0.
struct Capacity {
  double fraction = 0;
  uint64_t bytes = 0;

  // As `0.05`, or with a unit as `64GiB` (KiB, MiB, GiB, TiB). Errors: InvalidArgument.
  static absl::StatusOr<Capacity> Parse(absl::string_view text);
};

struct SweepOptions {
  std::vector<std::string> policies;  // the bounds are added if they are not there
  std::vector<Capacity> capacities;
  uint64_t bytes_per_token = 0;  // 0: unknown
  uint32_t servers_count = 1;    // that share each capacity: see ReplayTrace
  size_t threads_max = 8;

  // Errors: InvalidArgument (no policy or capacity, unknown policy, capacity in bytes without
  // bytes_per_token, or that of more than 16 MiB; servers_count).
  absl::Status Validate() const;
};

struct SweepRow {
  size_t trace_index = 0;
  std::string policy;
  double capacity_fraction = 0;  // of the trace's different blocks
  uint64_t capacity_blocks = 0;
  uint64_t capacity_bytes = 0;  // 0: unknown
  ReplayResult result;
};

// 24 shares from 0.005 to 1, evenly on a logarithmic scale.
std::vector<Capacity> LogarithmicCapacities();

// By trace, policy (those of the server, then min and infinite), capacity (ascending). Runs as many
// replays at a time as there are processors, not more than threads_max; see ReplayTrace for their
// memory. Errors: InvalidArgument (as Validate; a capacity of less than a block).
absl::StatusOr<std::vector<SweepRow>> RunSweep(std::span<const Trace> traces,
                                               const SweepOptions& options);

}  // namespace ibid
