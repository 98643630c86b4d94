// Invariant: a block is deferred in a tier only if, when it was taken, the other tier had a child
// of it and not itself. Both ends of that condition undo the deferral: a copy that comes to the
// other tier, a child that leaves it.
#include "cache_server/eviction_book.h"

#include <utility>

namespace ibid {
namespace {

// Bounds the search for an inner block that the disk has too.
constexpr int kInnerTriesMax = 64;

}  // namespace

EvictionBook::EvictionBook(std::unique_ptr<EvictionPolicy> host,
                           std::unique_ptr<EvictionPolicy> disk)
    : policies_{std::move(host), std::move(disk)} {}

void EvictionBook::Insert(TierName tier, EntryId b, EntryId parent) {
  MutexLock lock(mutex_);
  PolicyOf(tier).OnInsert(b, parent);
  OtherThan(tier).Undefer(b);
}

void EvictionBook::Remove(TierName tier, EntryId b, EntryId parent) {
  MutexLock lock(mutex_);
  PolicyOf(tier).OnRemove(b);
  if (parent != kNoEntry && PolicyOf(tier).children_count(parent) == 0)
    OtherThan(tier).Undefer(parent);
}

void EvictionBook::PutBack(TierName tier, EntryId b) {
  MutexLock lock(mutex_);
  PolicyOf(tier).PutBack(b);
}

void EvictionBook::Use(TierName tier, EntryId b) {
  MutexLock lock(mutex_);
  PolicyOf(tier).OnUse(b);
}

void EvictionBook::Use(std::span<const EntryId> ids) {
  // A chain of 62,500 blocks must not keep all others waiting.
  constexpr size_t kIdsPerLock = 1024;
  for (size_t end = ids.size(); end > 0;) {
    const size_t begin = end > kIdsPerLock ? end - kIdsPerLock : 0;
    MutexLock lock(mutex_);
    for (size_t i = end; i > begin; --i) {
      policies_[0]->OnUse(ids[i - 1]);
      policies_[1]->OnUse(ids[i - 1]);
    }
    end = begin;
  }
}

EntryId EvictionBook::TakeVictim(TierName tier) {
  MutexLock lock(mutex_);
  EvictionPolicy& policy = PolicyOf(tier);
  const EvictionPolicy& other = OtherThan(tier);
  for (EntryId b = policy.TakeVictim(); b != kNoEntry; b = policy.TakeVictim()) {
    if (other.contains(b) || other.children_count(b) == 0) return b;
    policy.Defer(b);
  }
  for (int i = 0; tier == TierName::kHost && i < kInnerTriesMax; ++i) {
    const EntryId b = policy.TakeInner();
    if (b == kNoEntry) break;
    if (other.contains(b)) return b;
    policy.PutBackInner(b);
  }
  return policy.TakeDeferred();
}

}  // namespace ibid
