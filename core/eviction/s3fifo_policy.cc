// A block's word: bit 0 its queue, the rest the number of its uses, up to kUsesMax.
#include "core/eviction/s3fifo_policy.h"

#include <algorithm>

namespace ibid {
namespace {

constexpr uint32_t kUsesMax = 3;
// Uses that take a block from the small queue to the main one.
constexpr uint32_t kUsesToStay = 1;

}  // namespace

S3FifoPolicy::Queue S3FifoPolicy::QueueOf(EntryId b) const {
  return static_cast<Queue>(lists_[b].word & 1);
}
uint32_t S3FifoPolicy::UsesOf(EntryId b) const { return lists_[b].word >> 1; }

void S3FifoPolicy::SetCapacity(uint64_t blocks) {
  small_blocks_max_ = blocks * small_percent_ / 100;
  ghosts_max_ = blocks - small_blocks_max_;
  ghosts_.ShrinkTo(ghosts_max_);
}

void S3FifoPolicy::OnLookup(std::span<const ChainBlock> chain, const LookupTraits& traits) {
  UseEach(lists_, chain);
}

void S3FifoPolicy::Arrive(EntryId b, Queue queue, uint32_t uses) {
  lists_[b].word = uses << 1 | queue;
  lists_.PushHottest(list_[queue], b, Place::kPolicy);
  ++blocks_count_[queue];
}

void S3FifoPolicy::Leave(EntryId b) {
  if (lists_.PlaceOf(b) == Place::kPolicy) lists_.Unlink(list_[QueueOf(b)], b, Place::kTaken);
}

void S3FifoPolicy::OnInsert(EntryId b, const BlockTraits& traits) {
  Arrive(b, ghosts_.EraseIfThere(traits.fingerprint) ? kMain : kSmall, /*uses=*/0);
}

void S3FifoPolicy::OnUse(EntryId b) {
  const uint32_t uses = std::min(UsesOf(b) + 1, kUsesMax);
  lists_[b].word = uses << 1 | QueueOf(b);
  if (lists_.PlaceOf(b) != Place::kPolicy) PutBack(b);
}

void S3FifoPolicy::OnRemove(EntryId b, const LeavingBlock& leaving) {
  Leave(b);
  --blocks_count_[QueueOf(b)];
  if (!leaving.is_eviction || QueueOf(b) != kSmall) return;
  (void)ghosts_.EraseIfThere(leaving.fingerprint);  // of another block that shares it
  (void)ghosts_.Insert(leaving.fingerprint, 0);
  ghosts_.ShrinkTo(ghosts_max_);
}

EntryId S3FifoPolicy::TakeSmall() {
  while (!list_[kSmall].is_empty()) {
    const EntryId b = list_[kSmall].coldest;
    Leave(b);
    if (UsesOf(b) < kUsesToStay) return b;
    --blocks_count_[kSmall];
    Arrive(b, kMain, /*uses=*/0);
  }
  return kNoEntry;
}

EntryId S3FifoPolicy::TakeMain() {
  while (!list_[kMain].is_empty()) {
    const EntryId b = list_[kMain].coldest;
    Leave(b);
    if (UsesOf(b) == 0) return b;
    --blocks_count_[kMain];
    Arrive(b, kMain, UsesOf(b) - 1);
  }
  return kNoEntry;
}

EntryId S3FifoPolicy::TakeVictim() {
  const bool is_small_full = blocks_count_[kSmall] >= std::max<uint64_t>(small_blocks_max_, 1);
  EntryId b = is_small_full ? TakeSmall() : TakeMain();
  if (b == kNoEntry && !is_small_full) b = TakeSmall();
  // What the small queue let stay is in the main one now.
  return b == kNoEntry ? TakeMain() : b;
}

// It was the coldest when it was taken, and those that stayed came after it.
void S3FifoPolicy::PutBack(EntryId b) { lists_.PushColdest(list_[QueueOf(b)], b, Place::kPolicy); }

}  // namespace ibid
