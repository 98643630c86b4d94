// Time as a thing that is passed in, so that tests move it by hand.
#pragma once

#include "absl/time/time.h"
#include "core/mutex.h"

namespace ibid {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Never goes back. Its zero has no meaning: for durations, leases and deadlines.
  virtual absl::Time Now() const = 0;
};

// The system's monotonic clock.
class SteadyClock final : public Clock {
 public:
  absl::Time Now() const override;
};

// Stands still until it is moved.
class ManualClock final : public Clock {
 public:
  absl::Time Now() const override;
  void Advance(absl::Duration by);

 private:
  mutable Mutex mutex_;
  absl::Time now_ IBID_GUARDED_BY(mutex_) = absl::UnixEpoch() + absl::Hours(1);
};

}  // namespace ibid
