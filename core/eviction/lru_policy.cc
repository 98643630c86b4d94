// Invariant: the list is ordered by last use, which is a block's `word`. A block that was taken was
// the coldest at that time, so that every other was used after it: it returns to the cold end, not
// further than kPutBackStepsMax from it.
#include "core/eviction/lru_policy.h"

namespace ibid {
namespace {

// Bounds the search for the exact place of a block that is put back; beyond it the order is
// approximate.
constexpr int kPutBackStepsMax = 16;

}  // namespace

void LruPolicy::Leave(EntryId b) {
  if (lists_.PlaceOf(b) == Place::kPolicy) lists_.Unlink(list_, b, Place::kTaken);
}

void LruPolicy::OnLookup(std::span<const ChainBlock> chain, const LookupTraits& traits) {
  UseEach(lists_, chain);
}

void LruPolicy::OnInsert(EntryId b, const BlockTraits& traits) {
  lists_[b].word = ++uses_count_;
  lists_.PushHottest(list_, b, Place::kPolicy);
}

void LruPolicy::OnUse(EntryId b) {
  Leave(b);
  lists_[b].word = ++uses_count_;
  lists_.PushHottest(list_, b, Place::kPolicy);
}

void LruPolicy::OnRemove(EntryId b, const LeavingBlock& leaving) { Leave(b); }

EntryId LruPolicy::TakeVictim() {
  const EntryId b = list_.coldest;
  if (b != kNoEntry) Leave(b);
  return b;
}

void LruPolicy::PutBack(EntryId b) {
  EntryId colder = kNoEntry;
  EntryId next = list_.coldest;
  for (int step = 0; step < kPutBackStepsMax && next != kNoEntry; ++step) {
    // Signed difference: the count of uses may wrap.
    if (static_cast<int32_t>(lists_[next].word - lists_[b].word) > 0) break;
    colder = next;
    next = lists_[next].hotter;
  }
  lists_.InsertAfter(list_, colder, b, Place::kPolicy);
}

}  // namespace ibid
