// Waiting for what comes by itself and tells nobody.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "core/clock.h"

namespace ibid {

// Looks each 2 ms until `condition` holds, for at most `timeout`. Says whether it did.
inline bool Eventually(absl::Duration timeout, const std::function<bool()>& condition) {
  const SteadyClock clock;
  const absl::Time until = clock.Now() + timeout;
  while (!condition()) {
    if (clock.Now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace ibid
