// The last minutes of what readers got, for those who come to look now: a ring of samples.
//
// Thread safety: every method, from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/time/time.h"
#include "cache_server/block_store.h"
#include "core/mutex.h"

namespace ibid {

class StatsHistory {
 public:
  static constexpr absl::Duration kPeriod = absl::Seconds(2);
  static constexpr size_t kSamplesMax = 300;

  // Takes a sample when kPeriod has passed since the last one.
  template <typename MakeSample>
  void AddIfDue(absl::Time now, const MakeSample& make_sample) {
    {
      MutexLock lock(mutex_);
      if (!samples_.empty() && now - last_at_ < kPeriod) return;
      last_at_ = now;
    }
    const StatsSample sample = make_sample();
    MutexLock lock(mutex_);
    samples_.push_back(sample);
    if (samples_.size() > kSamplesMax) samples_.pop_front();
  }

  // The oldest first.
  std::vector<StatsSample> All() const {
    MutexLock lock(mutex_);
    return {samples_.begin(), samples_.end()};
  }

 private:
  mutable Mutex mutex_;
  absl::Time last_at_ IBID_GUARDED_BY(mutex_);
  std::deque<StatsSample> samples_ IBID_GUARDED_BY(mutex_);
};

}  // namespace ibid
