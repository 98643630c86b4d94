// The gpu tier's memory: one region of device memory, cut into extents and slots
// (extent_allocator.h), and copies of slots. Which block is where is the index's business.
//
// Copies into the tier, out of it and within it have a stream each, so that none waits for another
// kind. A slot is read, moved or given to another block only after the copy that filled it was
// reported done, and freed only after those that read it were: that is what orders the streams.
//
// Thread safety: every method, from any thread. Read and Move wait for the device: never called
// under a lock.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "cache_server/tier_slots.h"
#include "core/device_memory.h"

namespace ibid {

class GpuTier : public TierSlots {
 public:
  static constexpr uint32_t kStreamsCount = 3;

  // REQUIRES: `memory` has kStreamsCount streams.
  GpuTier(std::unique_ptr<DeviceMemory> memory, uint64_t extent_bytes);

  // `from` must stay as it is until `done`. Errors, of all three: Unavailable (the device failed).
  void Write(uint32_t page, ByteView from, DeviceMemory::Done done);
  absl::Status Read(uint32_t page, MutableByteView to);
  absl::Status Move(uint32_t from, uint32_t to, uint64_t bytes);

  DeviceMemory& memory() { return *memory_; }

 private:
  const std::unique_ptr<DeviceMemory> memory_;
};

}  // namespace ibid
