// Since when some of the blocks are in a tier: enough of them to tell how long blocks stay, in a
// bounded table beside the index. Which ones is decided by a hash of their id, so that long and
// short stays have the same chance; the fuller the table, the fewer.
//
// Thread safety: every method, from any thread. One who is not sampled takes no lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "core/mutex.h"

namespace ibid {

class ResidenceSamples {
 public:
  explicit ResidenceSamples(size_t samples_max) : samples_max_(samples_max) {}

  // What is not sampled now never will be: for who would read the clock in vain.
  bool IsSampled(uint32_t id) const { return IsSampled(id, mask_.load(std::memory_order_relaxed)); }
  // `id` came into the tier. REQUIRES: it is not there.
  void OnEnter(uint32_t id, absl::Time now);
  // It has left; how long it was there, if it was sampled.
  std::optional<absl::Duration> OnLeave(uint32_t id, absl::Time now);

  size_t size() const;

 private:
  // One in mask + 1 ids is sampled.
  static bool IsSampled(uint32_t id, uint64_t mask);

  const size_t samples_max_;
  std::atomic<uint64_t> mask_{0};  // only grows
  mutable Mutex mutex_;
  absl::flat_hash_map<uint32_t, absl::Time> entered_ IBID_GUARDED_BY(mutex_);
};

}  // namespace ibid
