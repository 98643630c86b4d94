// The rows of a sweep for people and for programs.
#pragma once

#include <span>
#include <string>

#include "client/replay/sweep.h"
#include "client/replay/trace.h"

namespace ibid {

// A table of token hit ratios for each trace: a line a capacity, a column a policy. Ends with a
// line's end. REQUIRES: `rows` as RunSweep returns them for `traces`.
std::string SweepTable(std::span<const Trace> traces, std::span<const SweepRow> rows);

// {"traces": [...], "rows": [{"trace", "policy", "capacity_fraction", "capacity_blocks",
// "capacity_bytes" (null: unknown), "token_hit_ratio", "block_hit_ratio", "evicted_blocks"}, ...]}
std::string SweepJson(std::span<const Trace> traces, std::span<const SweepRow> rows);

}  // namespace ibid
