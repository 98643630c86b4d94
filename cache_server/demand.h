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

// The prefixes that are most frequent of late, of any number of them, in bounded memory:
// "space-saving" (Metwally et al., 2005) over counts that fade. A lookup that is half_life lookups
// old counts half of one that comes now. What has more than 1 in `places_count` of all that counts
// is always among them.
class HotPrefixes {
 public:
  HotPrefixes(size_t places_count, uint64_t half_life_lookups);

  void Count(const NamespaceId& ns, const BlockKey& first, uint32_t matched_count);
  // The hottest first. Counts are rounded.
  std::vector<HotPrefix> Top(size_t count) const;

 private:
  struct Place {
    NamespaceId ns;
    BlockKey first;
    double matches = 0, excess = 0, matched_blocks = 0;  // in units of weight_ at their time
    uint32_t longest_match = 0;
  };

  void Fade() IBID_REQUIRES(mutex_);

  const size_t places_count_;
  const double growth_;  // from one lookup to the next
  mutable Mutex mutex_;
  double weight_ IBID_GUARDED_BY(mutex_) = 1;  // what a lookup counts now: it grows, none shrinks
  std::vector<Place> places_ IBID_GUARDED_BY(mutex_);
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
  static constexpr uint64_t kPrefixHalfLifeLookups = 20'000;

  StoreCounters& counters_;
  HyperLogLog distinct_;
  HotPrefixes prefixes_{kPrefixPlaces, kPrefixHalfLifeLookups};
};

}  // namespace ibid
