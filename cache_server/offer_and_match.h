// What clients ask of a BlockStore about keys, and what it answers: values.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/block_key.h"

namespace ibid {

// Random, so that no client can guess another's. 0 is none. A lease's is known within its session.
struct SessionId {
  uint64_t value = 0;
  auto operator<=>(const SessionId&) const = default;
};
struct LeaseId {
  uint64_t value = 0;
  auto operator<=>(const LeaseId&) const = default;
};

enum class OfferState { kWanted, kPresent, kPending, kRejected };

struct MatchOptions {
  bool lease = false;  // needs a session
  LeaseId lease_id;    // that it shall have; 0: any
  absl::Duration wait_pending = absl::ZeroDuration();
  // The request was counted, as a lookup and as demand, when it asked first.
  bool is_repeat = false;
  // For the eviction policy: see LookupTraits.
  uint32_t first_position = 0;
  bool is_part = false;
};

struct MatchResult {
  uint32_t matched_count = 0;
  uint32_t pending_count = 0;
  LeaseId lease;            // 0 when none was asked for or nothing matched
  uint32_t gpu_blocks = 0;  // of the matched, by the fastest tier that has each: in all shards
  uint32_t host_blocks = 0;
  uint32_t disk_blocks = 0;
};

// The blocks of one shard. The shards of a model (tensor- and pipeline-parallel ranks) have
// namespaces of their own, and so keys of their own for the same tokens.
struct ShardChain {
  NamespaceId ns;
  std::vector<BlockKey> keys;
};

using MatchDone = std::function<void(absl::StatusOr<MatchResult>)>;

// A match that waits. 0: none.
struct MatchWaitId {
  uint64_t value = 0;
};

// What Claim reserved: the first `wanted_count` keys, up to the first that is `refusal`.
struct ClaimResult {
  uint32_t wanted_count = 0;
  OfferState refusal = OfferState::kWanted;  // kWanted: there was none, all keys are reserved
};

}  // namespace ibid
