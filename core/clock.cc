#include "core/clock.h"

#include <chrono>

namespace ibid {

absl::Time SteadyClock::Now() const {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

absl::Time ManualClock::Now() const {
  MutexLock lock(mutex_);
  return now_;
}

void ManualClock::Advance(absl::Duration by) {
  MutexLock lock(mutex_);
  now_ += by;
}

}  // namespace ibid
