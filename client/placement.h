// Which server holds a block: rendezvous hashing over groups of consecutive blocks of a chain. Pure
// functions and one small memory; no clock, thread or I/O.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/block_key.h"
#include "core/mutex.h"

namespace ibid {

// The first 8 bytes, little-endian, of SHA-256 of `"ibid.placement.v1\0" || u32 length || server ||
// group key`. Every client of a cluster must agree on it: it changes only with a new domain string.
uint64_t PlacementWeight(absl::string_view server, const BlockKey& group_key);

// Index of the server with the greatest weight (ties: the lesser address). It depends on the set of
// servers alone, not on their order; a server more takes 1/n of the groups and moves no others.
// REQUIRES: servers is not empty.
uint32_t PlaceGroup(std::span<const std::string> servers, const BlockKey& group_key);

// Places the blocks of chains. A group is `group_blocks` consecutive positions of a chain, and its
// key is the key of its first block. Where a span of links starts inside of a group, its server is
// the one of the block before it; Placement remembers those that it placed (the last
// `kRememberedBlocksMax` at least), so that a growing chain is placed by its end alone.
//
// Thread safety: thread-safe.
class Placement {
 public:
  static constexpr size_t kRememberedBlocksMax = size_t{1}
                                                 << 18;  // of 16 bytes each, in two generations

  // REQUIRES: servers is not empty and shorter than kUnplaced; group_blocks > 0.
  Placement(std::vector<std::string> servers, uint32_t group_blocks);

  static constexpr uint16_t kUnplaced = 65'535;

  // One server index a link; kUnplaced for a link whose group is unknown: it is inside of a group
  // and its parent was never placed by this object (or too long ago). O(links); one hash a server a
  // group.
  std::vector<uint16_t> Place(std::span<const ChainLink> links);

 private:
  uint16_t Recall(const BlockKey& key) const IBID_REQUIRES(mutex_);
  void Remember(const BlockKey& key, uint16_t server) IBID_REQUIRES(mutex_);

  const std::vector<std::string> servers_;
  const uint32_t group_blocks_;
  Mutex mutex_;
  // By the first 8 bytes of the key: two keys that share them cost a miss, never wrong data.
  absl::flat_hash_map<uint64_t, uint16_t> young_ IBID_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, uint16_t> old_ IBID_GUARDED_BY(mutex_);
};

}  // namespace ibid
