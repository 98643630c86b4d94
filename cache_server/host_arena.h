// The host tier's memory: one memfd, cut into extents and slots (extent_allocator.h).
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
  int fd() const { return memory_.fd(); }
  bool is_populated() const { return is_populated_.load(std::memory_order_acquire); }

 private:
  HostArena(HostMemory memory, uint64_t extent_bytes, bool is_populated);
  void Populate();

  HostMemory memory_;
  std::atomic<bool> is_stopping_{false};
  std::atomic<bool> is_populated_{false};
  std::thread populate_thread_;
};

}  // namespace ibid
