// What happened on a server between two looks at its counters.
#pragma once

#include <map>
#include <string>

#include "absl/time/time.h"
#include "client/client.h"

namespace ibid::cli {

struct MethodRates {
  double calls_per_second = 0;
  double median_seconds = 0, p99_seconds = 0;  // of the calls that ended meanwhile; 0: none did
};

struct ServerRates {
  uint64_t requested_blocks = 0, missed_blocks = 0;
  std::map<std::string, uint64_t> tier_hits, tier_evictions;
  uint64_t asked_keys = 0, matched_keys = 0, published_blocks = 0;
  double received_bytes_per_second = 0, sent_bytes_per_second = 0;
  std::map<std::string, MethodRates> methods;
};

// Counters since the server's start when `before` is of another incarnation, or empty.
ServerRates RatesBetween(const ServerStats& before, const ServerStats& now, absl::Duration apart);

}  // namespace ibid::cli
