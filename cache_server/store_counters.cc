#include "cache_server/store_counters.h"

namespace ibid {

StoreCounters::StoreCounters(MetricsRegistry* registry) {
  if (registry == nullptr) return;
  MetricsRegistry& r = *registry;
  static constexpr const char* kTiers[] = {"host", "disk", "gpu"};
  static constexpr const char* kReasons[kEvictionReasonsCount] = {"room", "demoted", "lost",
                                                                  "quota", "quota_lost"};
  for (int tier = 0; tier < kTiersCount; ++tier) {
    tiers_[tier].residence_seconds = &MakeAgeHistogram(
        r, "ibid_store_residence_seconds",
        "How long copies were in the tier when they left it; sampled", {{"tier", kTiers[tier]}});
    tiers_[tier].hits.Export(&MakeCounter(r, "ibid_store_hits_total",
                                          "Acquired blocks, by the tier they came from",
                                          {{"tier", kTiers[tier]}}));
    for (int reason = 0; reason < kEvictionReasonsCount; ++reason) {
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
}

void StoreCounters::OnCopyIn(TierName name, EntryId id, const Clock& clock) {
  ++tier(name).blocks;
  ResidenceSamples& residence = tier(name).residence;
  if (residence.IsSampled(id)) residence.OnEnter(id, clock.Now());
}

void StoreCounters::OnCopyOut(TierName name, EntryId id, const Clock& clock) {
  --tier(name).blocks;
  ResidenceSamples& residence = tier(name).residence;
  if (!residence.IsSampled(id)) return;
  const auto stay = residence.OnLeave(id, clock.Now());
  prometheus::Histogram* const seconds = tier(name).residence_seconds;
  if (stay.has_value() && seconds != nullptr) seconds->Observe(absl::ToDoubleSeconds(*stay));
}

void StoreCounters::ObserveDiskRead(absl::Duration took) {
  if (disk_read_seconds_ != nullptr) disk_read_seconds_->Observe(absl::ToDoubleSeconds(took));
}

void StoreCounters::ObserveDiskWrite(absl::Duration took) {
  if (disk_write_seconds_ != nullptr) disk_write_seconds_->Observe(absl::ToDoubleSeconds(took));
}

}  // namespace ibid
