// The eviction policies of both tiers behind one lock, and the rule that only both together can
// keep: the last copy of a block does not leave while a child of it is in another tier.
//
// Thread safety: every method, from any thread. No I/O. Never called with another lock held.
#pragma once

#include <memory>
#include <span>

#include "cache_server/eviction_policy.h"
#include "core/mutex.h"

namespace ibid {

enum class TierName { kHost = 0, kDisk = 1 };

class EvictionBook {
 public:
  EvictionBook(std::unique_ptr<EvictionPolicy> host, std::unique_ptr<EvictionPolicy> disk);

  // See EvictionPolicy for what each promises.
  void Insert(TierName tier, EntryId b, EntryId parent);
  void Remove(TierName tier, EntryId b, EntryId parent);
  void PutBack(TierName tier, EntryId b);
  // A use in this tier only: makes a block that came in a candidate, the hottest.
  void Use(TierName tier, EntryId b);
  // A use counts in every tier that has the block. Blocks are used last to first, so that the start
  // of a chain is the hottest. O(ids).
  void Use(std::span<const EntryId> ids);

  // As EvictionPolicy::TakeVictim. When there is no such block: for the host tier a block that has
  // a child there and is on disk too, so that a chain longer than the host tier can pass through
  // it; then a block whose last copy this is and that has a child in the other tier only.
  EntryId TakeVictim(TierName tier);

 private:
  EvictionPolicy& PolicyOf(TierName tier) IBID_REQUIRES(mutex_) {
    return *policies_[static_cast<int>(tier)];
  }
  EvictionPolicy& OtherThan(TierName tier) IBID_REQUIRES(mutex_) {
    return *policies_[1 - static_cast<int>(tier)];
  }

  Mutex mutex_;
  std::unique_ptr<EvictionPolicy> policies_[2] IBID_GUARDED_BY(mutex_);
};

}  // namespace ibid
