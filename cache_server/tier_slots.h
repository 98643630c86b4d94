// The slots of a tier in memory: an ExtentAllocator behind a lock. What the bytes of a slot are is
// the business of the class that derives from it.
//
// Thread safety: every method, from any thread.
#pragma once

#include <optional>
#include <span>

#include "cache_server/extent_allocator.h"
#include "core/mutex.h"

namespace ibid {

class TierSlots {
 public:
  // See ExtentAllocator.
  bool CanEverFit(uint32_t slot_pages) const IBID_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return slots_.CanEverFit(slot_pages);
  }
  std::optional<uint32_t> Allocate(uint32_t slot_pages, uint32_t owner) IBID_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return slots_.Allocate(slot_pages, owner);
  }
  uint32_t Free(uint32_t page) IBID_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return slots_.Free(page);
  }
  uint32_t SlotPages(uint32_t page) const IBID_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return slots_.SlotPages(page);
  }
  std::optional<ExtentAllocator::Clearing> BeginClear(uint32_t victim_pages, uint32_t wanted_pages,
                                                      std::span<const uint32_t> except)
      IBID_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return slots_.BeginClear(victim_pages, wanted_pages, except);
  }
  void EndClear(uint32_t extent) IBID_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    slots_.EndClear(extent);
  }
  ExtentAllocator::Usage usage() const IBID_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return slots_.usage();
  }
  uint32_t slots_per_extent_max() const IBID_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return slots_.slots_per_extent_max();
  }

 protected:
  TierSlots(uint64_t bytes, uint64_t extent_bytes) : slots_(bytes, extent_bytes) {}
  ~TierSlots() = default;

 private:
  mutable Mutex mutex_;
  ExtentAllocator slots_ IBID_GUARDED_BY(mutex_);
};

}  // namespace ibid
