// Invariants, with c the capacity, from OnInsert on:
// - ghosts of kOnce and blocks of kOnce are together not more than c, all four together not more
//   than 2c, unless the blocks alone are.
// - A block's kind changes from kOnce to kAgain, never back, while it is in the tier.
#include "core/eviction/arc_policy.h"

#include <algorithm>

namespace ibid {
namespace {

uint64_t Excess(uint64_t limit, uint64_t used) { return used >= limit ? 0 : limit - used; }

}  // namespace

void ArcPolicy::SetCapacity(uint64_t blocks) {
  capacity_blocks_ = blocks;
  once_target_ = std::min(once_target_, static_cast<double>(blocks));
  TrimGhosts();
}

void ArcPolicy::TrimGhosts() {
  ghosts_[kOnce].ShrinkTo(Excess(capacity_blocks_, blocks_count_[kOnce]));
  const uint64_t others = blocks_count_[kOnce] + blocks_count_[kAgain] + ghosts_[kOnce].count();
  ghosts_[kAgain].ShrinkTo(Excess(2 * capacity_blocks_, others));
}

void ArcPolicy::Leave(EntryId b) {
  if (lists_.PlaceOf(b) == Place::kPolicy) lists_.Unlink(list_[lists_[b].word], b, Place::kTaken);
}

void ArcPolicy::OnLookup(std::span<const ChainBlock> chain, const LookupTraits& traits) {
  UseEach(lists_, chain);
}

void ArcPolicy::OnInsert(EntryId b, const BlockTraits& traits) {
  const double once_ghosts = static_cast<double>(ghosts_[kOnce].count());
  const double again_ghosts = static_cast<double>(ghosts_[kAgain].count());
  Kind kind = kAgain;
  if (ghosts_[kOnce].EraseIfThere(traits.fingerprint)) {
    once_target_ = std::min(static_cast<double>(capacity_blocks_),
                            once_target_ + std::max(1.0, again_ghosts / once_ghosts));
  } else if (ghosts_[kAgain].EraseIfThere(traits.fingerprint)) {
    once_target_ = std::max(0.0, once_target_ - std::max(1.0, once_ghosts / again_ghosts));
  } else {
    kind = kOnce;
  }
  lists_[b].word = kind;
  lists_.PushHottest(list_[kind], b, Place::kPolicy);
  ++blocks_count_[kind];
  TrimGhosts();
}

void ArcPolicy::OnUse(EntryId b) {
  Leave(b);
  --blocks_count_[lists_[b].word];
  ++blocks_count_[kAgain];
  lists_[b].word = kAgain;
  lists_.PushHottest(list_[kAgain], b, Place::kPolicy);
}

void ArcPolicy::OnRemove(EntryId b, const LeavingBlock& leaving) {
  Leave(b);
  const uint32_t kind = lists_[b].word;
  --blocks_count_[kind];
  if (!leaving.is_eviction) return;
  (void)ghosts_[kind].EraseIfThere(leaving.fingerprint);  // of another block that shares it
  (void)ghosts_[kind].Insert(leaving.fingerprint, 0);
  TrimGhosts();
}

EntryId ArcPolicy::TakeVictim() {
  const bool is_once = static_cast<double>(blocks_count_[kOnce]) > once_target_;
  Kind kind = is_once ? kOnce : kAgain;
  if (list_[kind].is_empty()) kind = is_once ? kAgain : kOnce;
  const EntryId b = list_[kind].coldest;
  if (b != kNoEntry) Leave(b);
  return b;
}

// It was the coldest when it was taken, and those that stayed were used after it.
void ArcPolicy::PutBack(EntryId b) { lists_.PushColdest(list_[lists_[b].word], b, Place::kPolicy); }

}  // namespace ibid
