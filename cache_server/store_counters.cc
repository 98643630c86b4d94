#include "cache_server/store_counters.h"

#include <iterator>

namespace ibid {

StoreCounters::StoreCounters(MetricsRegistry* registry) {
  if (registry == nullptr) return;
  MetricsRegistry& r = *registry;
  static constexpr const char* kTiers[] = {"host", "disk", "gpu"};
  static constexpr const char* kReasons[] = {"room", "demoted", "lost"};
  for (int tier = 0; tier < kTiersCount; ++tier) {
    tiers_[tier].residence_seconds = &MakeAgeHistogram(
        r, "ibid_store_residence_seconds",
        "How long copies were in the tier when they left it; sampled", {{"tier", kTiers[tier]}});
    tiers_[tier].hits.Export(&MakeCounter(r, "ibid_store_hits_total",
                                          "Acquired blocks, by the tier they came from",
                                          {{"tier", kTiers[tier]}}));
    for (int reason = 0; reason < 3; ++reason) {
      tiers_[tier].evictions[reason].Export(
          &MakeCounter(r, "ibid_store_evictions_total", "Copies that left a tier by policy",
                       {{"tier", kTiers[tier]}, {"reason", kReasons[reason]}}));
    }
  }
  missed_blocks.Export(&MakeCounter(r, "ibid_store_misses_total",
                                    "Acquired blocks that were not there or not readable"));
  published_blocks.Export(&MakeCounter(r, "ibid_store_published_blocks_total", "Blocks committed"));
  rejected_blocks.Export(&MakeCounter(r, "ibid_store_rejected_blocks_total",
                                      "Blocks refused for want of room or by a limit"));
  corrupt_blocks.Export(
      &MakeCounter(r, "ibid_store_corrupt_blocks_total",
                   "Checksum mismatches, at commit, after a disk read or in a verify"));
  verified_copies.Export(&MakeCounter(r, "ibid_store_verified_copies_total",
                                      "Copies of blocks that a verify read again"));
  promoted_blocks.Export(
      &MakeCounter(r, "ibid_store_promoted_blocks_total", "Blocks copied from disk to host"));
  gpu_promoted_blocks.Export(
      &MakeCounter(r, "ibid_store_gpu_promoted_blocks_total", "Blocks copied from host to gpu"));
  skipped_promotions.Export(
      &MakeCounter(r, "ibid_store_skipped_gpu_promotions_total",
                   "Blocks that were not considered for the gpu tier: its queue was full"));
  moved_blocks.Export(
      &MakeCounter(r, "ibid_store_moved_blocks_total", "Blocks moved to empty an extent"));
  skipped_writes.Export(&MakeCounter(r, "ibid_store_skipped_disk_writes_total",
                                     "Blocks that were not written through"));
  asked_keys.Export(&MakeCounter(r, "ibid_store_asked_keys_total",
                                 "Keys of chains that were matched with a lease"));
  matched_keys.Export(
      &MakeCounter(r, "ibid_store_matched_keys_total", "Of the keys asked for, those found"));
  disk_write_bytes.Export(
      &MakeCounter(r, "ibid_store_disk_write_bytes_total", "Block bytes written to disk"));
  disk_read_bytes.Export(
      &MakeCounter(r, "ibid_store_disk_read_bytes_total", "Block bytes read from disk"));
  disk_read_seconds_ =
      &MakeLatencyHistogram(r, "ibid_store_disk_read_seconds", "Time to read a block from disk");
  disk_write_seconds_ =
      &MakeLatencyHistogram(r, "ibid_store_disk_write_seconds", "Time to write a block to disk");
  const auto gauge = [&r](const char* name, const char* help, const MetricLabels& labels = {}) {
    return &MakeGauge(r, name, help, labels);
  };
  gauges_ = {
      gauge("ibid_store_used_bytes", "Bytes of slots in use", {{"tier", "host"}}),
      gauge("ibid_store_used_bytes", "Bytes of slots in use", {{"tier", "disk"}}),
      gauge("ibid_store_disk_allocated_bytes", "Bytes that the extent files take"),
      gauge("ibid_store_blocks", "Blocks resident", {{"tier", "host"}}),
      gauge("ibid_store_blocks", "Blocks resident", {{"tier", "disk"}}),
      gauge("ibid_store_pinned_bytes", "Bytes of blocks that leases or readers hold"),
      gauge("ibid_store_sessions", "Sessions"),
      gauge("ibid_store_leases", "Leases"),
      gauge("ibid_store_reservations", "Blocks offered or reserved, not yet committed"),
      gauge("ibid_store_disk_queue_depth", "Blocks that wait for the disk writer"),
      gauge("ibid_store_disk_is_ok", "1 while the disk tier reads and writes"),
      gauge("ibid_store_bytes_max", "Budget", {{"tier", "host"}}),
      gauge("ibid_store_bytes_max", "Budget", {{"tier", "disk"}}),
      gauge("ibid_store_largest_free_bytes", "Largest free extent", {{"tier", "host"}}),
      gauge("ibid_store_largest_free_bytes", "Largest free extent", {{"tier", "disk"}}),
      gauge("ibid_store_disk_read_queue_depth", "Disk reads queued or running"),
      gauge("ibid_store_namespaces", "Namespaces known"),
      gauge("ibid_store_distinct_keys", "Distinct keys asked for since the start, estimated"),
      gauge("ibid_store_infinite_hit_ratio",
            "Share of the keys asked for that a cache without end would have had, estimated"),
      gauge("ibid_store_used_bytes", "Bytes of slots in use", {{"tier", "gpu"}}),
      gauge("ibid_store_bytes_max", "Budget", {{"tier", "gpu"}}),
      gauge("ibid_store_largest_free_bytes", "Largest free extent", {{"tier", "gpu"}}),
      gauge("ibid_store_blocks", "Blocks resident", {{"tier", "gpu"}}),
      gauge("ibid_store_pins", "Pins of operators"),
      gauge("ibid_store_kept_bytes", "Bytes of slots of pinned blocks", {{"tier", "host"}}),
      gauge("ibid_store_kept_bytes", "Bytes of slots of pinned blocks", {{"tier", "disk"}}),
      gauge("ibid_store_kept_bytes", "Bytes of slots of pinned blocks", {{"tier", "gpu"}}),
      gauge("ibid_store_disk_directory_bytes", "Space that the disk tier's directory takes")};
}

void StoreCounters::OnCopyIn(TierName name, EntryId id, absl::Time now) {
  ++tier(name).blocks;
  tier(name).residence.OnEnter(id, now);
}

void StoreCounters::OnCopyOut(TierName name, EntryId id, absl::Time now) {
  --tier(name).blocks;
  const auto stay = tier(name).residence.OnLeave(id, now);
  prometheus::Histogram* const seconds = tier(name).residence_seconds;
  if (stay.has_value() && seconds != nullptr) seconds->Observe(absl::ToDoubleSeconds(*stay));
}

void StoreCounters::ObserveDiskRead(absl::Duration took) {
  if (disk_read_seconds_ != nullptr) disk_read_seconds_->Observe(absl::ToDoubleSeconds(took));
}

void StoreCounters::ObserveDiskWrite(absl::Duration took) {
  if (disk_write_seconds_ != nullptr) disk_write_seconds_->Observe(absl::ToDoubleSeconds(took));
}

void StoreCounters::SetGauges(const StoreGauges& now) {
  const double values[] = {now.host_used_bytes,
                           now.disk_used_bytes,
                           now.disk_allocated_bytes,
                           now.host_blocks,
                           now.disk_blocks,
                           now.pinned_bytes,
                           now.sessions,
                           now.leases,
                           now.reservations,
                           now.disk_queue_depth,
                           now.is_disk_ok,
                           now.host_bytes_max,
                           now.disk_bytes_max,
                           now.host_largest_free_bytes,
                           now.disk_largest_free_bytes,
                           now.disk_read_queue_depth,
                           now.namespaces,
                           now.distinct_keys,
                           now.infinite_hit_ratio,
                           now.gpu_used_bytes,
                           now.gpu_bytes_max,
                           now.gpu_largest_free_bytes,
                           now.gpu_blocks,
                           now.pins,
                           now.host_kept_bytes,
                           now.disk_kept_bytes,
                           now.gpu_kept_bytes,
                           now.disk_directory_bytes};
  static_assert(std::size(values) == kGaugesCount);
  for (size_t i = 0; i < gauges_.size(); ++i) {
    if (gauges_[i] != nullptr) gauges_[i]->Set(values[i]);
  }
}

}  // namespace ibid
