// How much of a trace a cache of a given size would have saved: a trace run through the objects
// that decide in the server, EvictionTier and its policies, without bytes, clock or network.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/replay/trace.h"

namespace ibid {

// The two bounds that ReplayTrace knows besides the server's policies: what no policy of that size
// can exceed, since it knows the future (Belady's MIN), and a cache that never evicts.
inline constexpr absl::string_view kMinPolicy = "min";
inline constexpr absl::string_view kInfinitePolicy = "infinite";

struct ReplayResult {
  uint64_t input_tokens = 0;
  uint64_t hit_tokens = 0;
  uint64_t asked_blocks = 0;
  uint64_t hit_blocks = 0;
  uint64_t evicted_blocks = 0;

  double token_hit_ratio() const;
  double block_hit_ratio() const;
};

// How many servers share the blocks of a replay, and how the client places them: in groups of so
// many consecutive blocks of a chain.
inline constexpr uint32_t kReplayServersMax = 1'024;
inline constexpr uint32_t kReplayGroupBlocks = 64;

// Starts cold. A request hits the leading blocks that are there when it arrives. Then, as in the
// server, its chain is looked up, the missing blocks come in from the first on, and others leave
// until not more than `capacity_blocks` are there; the request's own may be among them. Every block
// takes one place. Of several servers each holds its part of the capacity and of the groups, and is
// asked as the client asks: the first of the chain for all of its blocks, the others for theirs
// before its first miss. The two bounds know one server. Errors: InvalidArgument (unknown policy,
// capacity 0). REQUIRES: 0 < servers_count <= kReplayServersMax. One thread; calls for one trace
// may run at the same time. Memory: about 100 bytes for each different block of the trace.
absl::StatusOr<ReplayResult> ReplayTrace(const Trace& trace, absl::string_view policy_name,
                                         uint64_t capacity_blocks, uint32_t servers_count = 1);

// That share of the trace's different blocks, rounded down, at least one.
uint64_t CapacityBlocks(const Trace& trace, double fraction);

}  // namespace ibid
