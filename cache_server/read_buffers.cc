#include "cache_server/read_buffers.h"

#include <utility>

#include "core/limit.h"

namespace ibid {

absl::StatusOr<ReadBuffers::Buffer> ReadBuffers::Take(uint64_t bytes) {
  bytes = RoundUp(bytes, kPageBytes);
  HostMemory memory;
  std::vector<HostMemory> surplus;  // unmapped after the lock is released
  {
    MutexLock lock(mutex_);
    for (HostMemory& kept : kept_) {
      if (kept.size() != bytes) continue;
      memory = std::move(kept);
      std::swap(kept, kept_.back());
      kept_.pop_back();
      break;
    }
    if (memory.size() == 0) {
      while (bytes_ + bytes > bytes_max_ && !kept_.empty()) {
        bytes_ -= kept_.back().size();
        surplus.push_back(std::move(kept_.back()));
        kept_.pop_back();
      }
      if (bytes_ + bytes > bytes_max_) {
        return LimitReached("too many blocks are being read from disk", "read_buffer_bytes_max",
                            bytes_max_);
      }
      bytes_ += bytes;
    }
  }
  if (memory.size() == 0) {
    auto created = HostMemory::CreatePrivate(bytes);
    if (!created.ok()) {
      MutexLock lock(mutex_);
      bytes_ -= bytes;
      return created.status();
    }
    memory = *std::move(created);
  }
  return Buffer(new HostMemory(std::move(memory)), [this](HostMemory* used) {
    GiveBack(std::move(*used));
    delete used;
  });
}

void ReadBuffers::GiveBack(HostMemory memory) {
  MutexLock lock(mutex_);
  kept_.push_back(std::move(memory));
}

}  // namespace ibid
