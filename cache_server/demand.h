// What readers ask for, whether it is there or not: how much of it there was, how much a cache
// without end would have had, and which prefixes are asked for most. Only matches with a lease
// count: probes are nobody's demand.
//
// Thread safety: every method, from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache_server/block_store.h"
#include "cache_server/store_counters.h"
#include "core/block_key.h"
#include "core/hyper_log_log.h"
#include "core/mutex.h"

namespace ibid {

// The most frequent prefixes of any number, in bounded memory: "space-saving" (Metwally et al.,
// 2005). What is more frequent than 1 in `places_count` is always among them.
class HotPrefixes {
 public:
  explicit HotPrefixes(size_t places_count) { places_.reserve(places_count_ = places_count); }

  void Count(const NamespaceId& ns, const BlockKey& first, uint32_t matched_count);
  // The hottest first.
  std::vector<HotPrefix> Top(size_t count) const;

 private:
  mutable Mutex mutex_;
  size_t places_count_;
  std::vector<HotPrefix> places_ IBID_GUARDED_BY(mutex_);
};

class Demand {
 public:
  explicit Demand(StoreCounters& counters) : counters_(counters) {}

  // A match asked for `chain` and found its first `matched_count` keys. O(chain), without a lock
  // but for one short one.
  void Count(const NamespaceId& ns, std::span<const BlockKey> chain, uint32_t matched_count);

  // Keys that were ever asked for, each once: an estimate, within 1% mostly.
  double distinct_keys() const { return distinct_.Estimate(); }
  // The share of the keys asked for that had been asked for before: what a cache that never forgets
  // would have had. 0 before the first.
  double infinite_hit_ratio() const;
  const HotPrefixes& prefixes() const { return prefixes_; }

 private:
  static constexpr size_t kPrefixPlaces = 128;

  StoreCounters& counters_;
  HyperLogLog distinct_;
  HotPrefixes prefixes_{kPrefixPlaces};
};

}  // namespace ibid
