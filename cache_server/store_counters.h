// What the store counts, for stats() and for the metrics registry, in one place each.
//
// Thread safety: every method, from any thread; reads of several counters are not one instant.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "cache_server/eviction_book.h"
#include "cache_server/residence_samples.h"
#include "core/clock.h"
#include "core/metrics.h"

namespace ibid {

// A count that only grows, exported if there is a registry.
class Tally {
 public:
  void Export(prometheus::Counter* counter) { exported_ = counter; }
  void Add(uint64_t count = 1) {
    value_.fetch_add(count, std::memory_order_relaxed);
    if (exported_ != nullptr) exported_->Increment(static_cast<double>(count));
  }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
  prometheus::Counter* exported_ = nullptr;
};

enum class EvictionReason {
  kRoom,       // another copy stays
  kDemoted,    // was written, or copied down, first
  kLost,       // the last copy
  kQuota,      // as kRoom, to keep the quota of its tenant
  kQuotaLost,  // as kLost, for that
};
inline constexpr int kEvictionReasonsCount = 5;
// Of a copy that left for `reason`, or for that because of a quota.
constexpr EvictionReason ReasonOf(EvictionReason reason, bool is_for_quota) {
  if (!is_for_quota || reason == EvictionReason::kDemoted) return reason;
  return reason == EvictionReason::kRoom ? EvictionReason::kQuota : EvictionReason::kQuotaLost;
}

struct TierCounters {
  static constexpr size_t kResidenceSamplesMax = 4'096;

  Tally hits;
  std::array<Tally, kEvictionReasonsCount> evictions;  // by EvictionReason
  std::atomic<int64_t> blocks{0};
  ResidenceSamples residence{kResidenceSamplesMax};
  prometheus::Histogram* residence_seconds = nullptr;

  uint64_t evictions_count() const {
    uint64_t count = 0;
    for (const Tally& tally : evictions) count += tally.value();
    return count;
  }
};

class StoreCounters {
 public:
  explicit StoreCounters(MetricsRegistry* registry);

  TierCounters& tier(TierName name) { return tiers_[static_cast<int>(name)]; }
  const TierCounters& tier(TierName name) const { return tiers_[static_cast<int>(name)]; }
  // hits of all tiers + misses: every answered Acquire is one of them, so the sum is exact at any
  // time.
  uint64_t requested_blocks() const {
    return tiers_[0].hits.value() + tiers_[1].hits.value() + tiers_[2].hits.value() +
           missed_blocks.value();
  }
  void CountEviction(TierName name, EvictionReason reason) {
    tier(name).evictions[static_cast<int>(reason)].Add();
  }
  // A copy of the block came into the tier, or has left it.
  void OnCopyIn(TierName name, EntryId id, const Clock& clock);
  void OnCopyOut(TierName name, EntryId id, const Clock& clock);
  void ObserveDiskRead(absl::Duration took);
  void ObserveDiskWrite(absl::Duration took);

  Tally missed_blocks;
  Tally published_blocks;
  Tally rejected_blocks;
  Tally corrupt_blocks;
  Tally verified_copies;
  Tally asked_keys;    // of chains that were matched with a lease: there or not
  Tally matched_keys;  // of these, what was there
  Tally promoted_blocks;
  Tally gpu_promoted_blocks;  // from host to gpu
  Tally skipped_promotions;   // that the full queue left out
  Tally moved_blocks;         // to empty an extent for another slot size
  Tally skipped_writes;       // write-throughs that the full queue, or a broken disk, left out
  Tally disk_write_bytes;
  Tally disk_read_bytes;
  std::atomic<int64_t> pinned_bytes{0};

 private:
  TierCounters tiers_[kTiersCount];
  prometheus::Histogram* disk_read_seconds_ = nullptr;
  prometheus::Histogram* disk_write_seconds_ = nullptr;
};

}  // namespace ibid
