// What a BlockStore says of itself to those who watch over it. Values; any thread may read a copy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/block_key.h"

namespace ibid {

struct BlockTierStats {
  std::string tier;
  uint64_t bytes_max = 0, used_bytes = 0, allocated_bytes = 0, largest_free_bytes = 0;
  uint64_t directory_bytes = 0;  // of the disk tier: what its directory takes, beside bytes_max
  uint64_t kept_bytes = 0;       // of used_bytes: slots of blocks that a pin names
  uint64_t blocks = 0, hits = 0, evictions = 0;
  std::string state = "ok";
};

struct BlockStoreStats {
  std::vector<BlockTierStats> tiers;
  uint64_t sessions = 0, leases = 0, pinned_bytes = 0, reservations = 0, namespaces = 0;
  uint64_t requested_blocks = 0, missed_blocks = 0;  // requested = hits of all tiers + missed
  uint64_t published_blocks = 0, rejected_blocks = 0, corrupt_blocks = 0;
  uint64_t pending_writes = 0;
  uint64_t pins = 0;
  uint64_t waiting_matches = 0;
  uint64_t ending_blocks = 0;  // leases and reservations that ended, not given back yet
  uint64_t asked_keys = 0, matched_keys = 0;  // of chains that were matched with a lease
  double distinct_keys = 0;       // of those asked for since the start, estimated within 1% mostly
  double infinite_hit_ratio = 0;  // share of them that a cache without end would have had
  bool is_recovering = false;
  bool is_refusing_blocks = false;  // RefuseBlocks was called
};

// Matches whose chain begins with one key, on this server, those of late (see HotPrefixes: older
// ones count less).
struct HotPrefix {
  NamespaceId ns;
  BlockKey first;
  uint64_t matches = 0;         // at most this often; at least `matches - excess`
  uint64_t excess = 0;          // what another prefix, whose place this took, may have left in it
  uint64_t matched_blocks = 0;  // of the matches that were counted here
  uint32_t longest_match = 0;   // blocks
};

// A session, to be looked at.
struct SessionInfo {
  std::string client_name;      // whatever the client said: not to be trusted, nor printed as it is
  absl::Duration age, silence;  // since it was opened; since its client was heard of
  uint64_t leases = 0, leased_blocks = 0, reservations = 0;
};

// Counters at a time, for a picture of the last minutes.
struct StatsSample {
  absl::Time at;
  uint64_t gpu_hits = 0, host_hits = 0, disk_hits = 0, missed_blocks = 0, asked_keys = 0,
           matched_keys = 0, published_blocks = 0;
};

// What Verify has done so far. A block has up to three copies.
struct VerifyReport {
  uint64_t copies = 0;  // that there were at the start; some come and go meanwhile
  uint64_t checked_copies = 0, checked_bytes = 0;
  uint64_t damaged_host_copies = 0, damaged_disk_copies = 0, damaged_gpu_copies = 0;
  uint64_t unreadable_disk_copies = 0, unreadable_gpu_copies = 0;
  uint64_t kept_blocks = 0;  // that had a bad copy and a sound one: that one stayed

  uint64_t bad_copies() const {
    return damaged_host_copies + damaged_disk_copies + damaged_gpu_copies + unreadable_disk_copies +
           unreadable_gpu_copies;
  }
};

// What became of the blocks that only memory had, of the host or of the device.
struct KeepResult {
  uint64_t written_blocks = 0;
  uint64_t remaining_blocks = 0;
};

}  // namespace ibid
