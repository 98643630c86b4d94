#include "transport/staging.h"

#include <algorithm>
#include <utility>

namespace ibid {

StagingPool::Buffer StagingPool::Take(size_t bytes_count) {
  HostMemory memory;
  {
    MutexLock lock(mutex_);
    const auto it = std::find_if(free_.begin(), free_.end(),
                                 [&](const HostMemory& m) { return m.size() >= bytes_count; });
    if (it != free_.end()) {
      memory = std::move(*it);
      free_bytes_ -= memory.size();
      free_.erase(it);
    }
  }
  if (memory.begin() == nullptr) {
    absl::StatusOr<HostMemory> fresh = HostMemory::CreatePrivate(RoundUp(bytes_count, kPageBytes));
    if (!fresh.ok()) return {};
    memory = *std::move(fresh);
  }
  const MutableByteView bytes = memory.view().first(bytes_count);
  auto* owned = new HostMemory(std::move(memory));
  std::shared_ptr<const void> owner(owned, [pool = shared_from_this()](HostMemory* m) {
    pool->GiveBack(std::move(*m));
    delete m;
  });
  return {bytes, std::move(owner)};
}

void StagingPool::GiveBack(HostMemory memory) {
  MutexLock lock(mutex_);
  if (free_bytes_ + memory.size() > kStagingBytesRetainedMax) return;
  free_bytes_ += memory.size();
  free_.push_back(std::move(memory));
}

}  // namespace ibid
