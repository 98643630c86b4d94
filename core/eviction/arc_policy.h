// ARC (Megiddo and Modha, FAST 2003): two lists, of blocks used once and of blocks used again, each
// least recently used first. How the room is shared between them follows which list's evicted
// blocks are asked for again.
//
// State: ghosts of at most as many blocks as the tier holds.
#pragma once

#include "core/eviction/eviction_policy.h"
#include "core/eviction/ghost_ring.h"

namespace ibid {

class ArcPolicy final : public EvictionPolicy {
 public:
  explicit ArcPolicy(BlockLists& lists) : lists_(lists) {}

  void SetCapacity(uint64_t blocks) override;
  void OnLookup(std::span<const ChainBlock> chain, const LookupTraits& traits) override;
  void OnInsert(EntryId b, const BlockTraits& traits) override;
  void OnUse(EntryId b) override;
  void OnRemove(EntryId b, const LeavingBlock& leaving) override;
  EntryId TakeVictim() override;
  void PutBack(EntryId b) override;

 private:
  enum Kind : uint32_t { kOnce = 0, kAgain = 1 };  // the word of a block's node

  void Leave(EntryId b);
  void TrimGhosts();

  BlockLists& lists_;
  BlockList list_[2];              // by Kind; T1 and T2 of the paper
  uint64_t blocks_count_[2] = {};  // of the tier, whether or not they are in a list
  GhostRing ghosts_[2];            // B1 and B2
  uint64_t capacity_blocks_ = 0;
  double once_target_ = 0;  // how many blocks used once should stay; p of the paper
};

}  // namespace ibid
