#include "client/circuit_breaker.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace ibid {

CircuitBreaker::CircuitBreaker(uint32_t failures_count, absl::Duration open_for)
    : failures_max_(failures_count), open_for_(open_for) {
  IBID_CHECK(failures_count > 0);
}

void CircuitBreaker::OnSuccess() {
  failures_count_ = 0;
  is_open_ = false;
}

bool CircuitBreaker::OnFailure(absl::Time now) {
  if (!is_open_ && ++failures_count_ < failures_max_) return false;
  const bool opened = !is_open_;
  is_open_ = true;
  open_until_ = now + open_for_;
  return opened;
}

absl::Duration BackoffDelay(uint32_t attempt, absl::Duration min, absl::Duration max,
                            double random) {
  const absl::Duration doubled = min * std::ldexp(1.0, static_cast<int>(std::min(attempt, 30u)));
  return std::min(doubled, max) * (0.5 + random / 2);
}

}  // namespace ibid
