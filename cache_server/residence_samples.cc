#include "cache_server/residence_samples.h"

namespace ibid {

bool ResidenceSamples::IsSampled(uint32_t id, uint64_t mask) {
  // Ids are dense: their own low bits would pick shards of the index.
  return ((id * uint64_t{0x9E3779B97F4A7C15}) >> 32 & mask) == 0;
}

void ResidenceSamples::OnEnter(uint32_t id, absl::Time now) {
  if (!IsSampled(id)) return;
  MutexLock lock(mutex_);
  entered_[id] = now;
  while (entered_.size() > samples_max_) {
    const uint64_t mask = mask_.load(std::memory_order_relaxed) * 2 + 1;
    mask_.store(mask, std::memory_order_relaxed);
    absl::erase_if(entered_, [mask](const auto& item) { return !IsSampled(item.first, mask); });
  }
}

std::optional<absl::Duration> ResidenceSamples::OnLeave(uint32_t id, absl::Time now) {
  if (!IsSampled(id)) return std::nullopt;
  MutexLock lock(mutex_);
  const auto it = entered_.find(id);
  if (it == entered_.end()) return std::nullopt;
  const absl::Duration stay = now - it->second;
  entered_.erase(it);
  return stay;
}

size_t ResidenceSamples::size() const {
  MutexLock lock(mutex_);
  return entered_.size();
}

}  // namespace ibid
