// S3-FIFO (Yang et al., SOSP 2023): a small queue that new blocks pass, and a main one for those
// used while they were in the small one, or asked for again soon after it. Both are in order of
// arrival; a use only counts, up to 3.
//
// State: ghosts of at most as many blocks as the main queue holds.
#pragma once

#include "core/eviction/eviction_policy.h"
#include "core/eviction/ghost_ring.h"

namespace ibid {

class S3FifoPolicy final : public EvictionPolicy {
 public:
  // `small_percent` of the capacity is the small queue's part.
  S3FifoPolicy(BlockLists& lists, uint32_t small_percent)
      : lists_(lists), small_percent_(small_percent) {}

  void SetCapacity(uint64_t blocks) override;
  void OnLookup(std::span<const ChainBlock> chain, const LookupTraits& traits) override;
  void OnInsert(EntryId b, const BlockTraits& traits) override;
  void OnUse(EntryId b) override;
  void OnRemove(EntryId b, const LeavingBlock& leaving) override;
  EntryId TakeVictim() override;
  void PutBack(EntryId b) override;

 private:
  enum Queue : uint32_t { kSmall = 0, kMain = 1 };

  Queue QueueOf(EntryId b) const;
  uint32_t UsesOf(EntryId b) const;
  void Arrive(EntryId b, Queue queue, uint32_t uses);
  void Leave(EntryId b);
  // The next to leave that queue for good, or kNoEntry.
  EntryId TakeSmall();
  EntryId TakeMain();

  BlockLists& lists_;
  const uint32_t small_percent_;
  BlockList list_[2];              // by Queue
  uint64_t blocks_count_[2] = {};  // of the tier, whether or not they are in a list
  GhostRing ghosts_;               // of blocks that left the small queue
  uint64_t small_blocks_max_ = 0;
  uint64_t ghosts_max_ = 0;
};

}  // namespace ibid
