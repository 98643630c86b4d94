// The host tier's memory: one memfd, cut into extents and slots (extent_allocator.h). A second
// memfd has a generation for each page: it grows whenever the slot that has the page is freed. So
// another process that has both mapped knows, after it read a slot, whether the slot was freed
// meanwhile.
//
// Thread safety: every method, from any thread. The bytes of a slot belong to whoever allocated it.
// Ownership: owns the memory; views of it die with the arena. Pages are taken from the system in
// the background, so that the server serves while a large arena is still being populated.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "cache_server/tier_slots.h"
#include "core/host_memory.h"

namespace ibid {

class HostArena : public TierSlots {
 public:
  // Without `is_populated` the system gives each page at its first touch. Errors: ResourceExhausted
  // (the system has not so much memory).
  static absl::StatusOr<std::unique_ptr<HostArena>> Create(uint64_t bytes, uint64_t extent_bytes,
                                                           bool is_populated = true);
  ~HostArena();

  MutableByteView View(uint32_t page, uint64_t bytes) {
    return memory_.view().subspan(size_t{page} * kPageBytes, bytes);
  }
  // Where `bytes` lie in the memfd. REQUIRES: they are in the arena.
  uint64_t OffsetOf(ByteView bytes) const {
    return static_cast<uint64_t>(bytes.data() - memory_.begin());
  }
  // Whether all of `bytes` lie in the arena.
  bool Contains(ByteView bytes) const {
    return bytes.data() >= memory_.begin() &&
           bytes.data() + bytes.size() <= memory_.begin() + memory_.size();
  }
  // REQUIRES: `offset` is in the arena.
  uint32_t GenerationAt(uint64_t offset) const {
    return GenerationOf(static_cast<uint32_t>(offset / kPageBytes)).load(std::memory_order_acquire);
  }
  // As of TierSlots. The generations have grown before anybody else can have the slot.
  uint32_t Free(uint32_t page);
  const HostMemory& memory() const { return memory_; }
  const HostMemory& generations() const { return generations_; }
  bool is_populated() const { return is_populated_.load(std::memory_order_acquire); }

 private:
  HostArena(HostMemory memory, HostMemory generations, uint64_t extent_bytes, bool is_populated);
  void Populate();
  std::atomic<uint32_t>& GenerationOf(uint32_t page) const {
    static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);
    return reinterpret_cast<std::atomic<uint32_t>*>(generations_.begin())[page];
  }

  HostMemory memory_;
  HostMemory generations_;  // uint32 by page
  std::atomic<bool> is_stopping_{false};
  std::atomic<bool> is_populated_{false};
  std::thread populate_thread_;
};

}  // namespace ibid
