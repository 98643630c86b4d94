// Decisions about a server that fails: whether to call it, and when to try again. Pure: times are
// arguments.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace ibid {

// Closed: calls go through. After `failures_count` failures in a row it opens, and calls are
// refused without being tried. Whoever watches the server probes it at probe_at(): success closes
// the breaker, failure keeps it open for `open_for` more. Callers are never the probe: with one
// dead server of three, none of them waits for it.
//
// Thread safety: thread-compatible.
class CircuitBreaker {
 public:
  // REQUIRES: failures_count > 0.
  CircuitBreaker(uint32_t failures_count, absl::Duration open_for);

  bool is_closed() const { return !is_open_; }
  void OnSuccess();
  // True when this failure opened it.
  bool OnFailure(absl::Time now);
  // When a probe is due; in the infinite future while closed.
  absl::Time probe_at() const { return is_open_ ? open_until_ : absl::InfiniteFuture(); }

 private:
  const uint32_t failures_max_;
  const absl::Duration open_for_;
  uint32_t failures_count_ = 0;
  bool is_open_ = false;
  absl::Time open_until_ = absl::InfinitePast();
};

// The wait before the n-th attempt in a row (from 0): doubles from `min` to `max`, then times a
// jitter in [0.5, 1), so that the clients of a server that comes back do not come at once. `random`
// is uniform in [0, 1).
absl::Duration BackoffDelay(uint32_t attempt, absl::Duration min, absl::Duration max,
                            double random);

}  // namespace ibid
