// Least recently used first.
#pragma once

#include "core/eviction/eviction_policy.h"

namespace ibid {

class LruPolicy final : public EvictionPolicy {
 public:
  explicit LruPolicy(BlockLists& lists) : lists_(lists) {}

  void SetCapacity(uint64_t blocks) override {}
  void OnLookup(std::span<const ChainBlock> chain, const LookupTraits& traits) override;
  void OnInsert(EntryId b, const BlockTraits& traits) override;
  void OnUse(EntryId b) override;
  void OnRemove(EntryId b, const LeavingBlock& leaving) override;
  EntryId TakeVictim() override;
  void PutBack(EntryId b) override;

 private:
  void Leave(EntryId b);

  BlockLists& lists_;
  BlockList list_;
  uint32_t uses_count_ = 0;
};

}  // namespace ibid
