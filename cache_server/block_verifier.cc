// Invariant: between BeginCheck and EndBusy the entry is busy, so its copies stay where they are;
// while an id waits for its turn the entry has one reference more, so that the id keeps its
// meaning.
#include "cache_server/block_verifier.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "core/check.h"
#include "core/log.h"

namespace ibid {
namespace {

// Between two log lines of one place.
constexpr int64_t kLogPeriodSeconds = 10;
// Blocks named at a time.
constexpr size_t kPieceBlocks = 64;
// How soon a verify that keeps its pace learns that it is cancelled.
constexpr absl::Duration kPaceSlice = absl::Milliseconds(50);

}  // namespace

struct BlockVerifier::Copies {
  EntryId id = kNoEntry;
  NamespacePtr ns;
  BlockKey key;
  uint64_t checksum = 0;
  uint32_t host_page = kNoPage;
  uint32_t gpu_page = kNoPage;
  uint32_t disk_page = kNoPage;

  size_t count() const {
    return (host_page != kNoPage ? 1 : 0) + (gpu_page != kNoPage ? 1 : 0) +
           (disk_page != kNoPage ? 1 : 0);
  }
};

absl::StatusOr<VerifyReport> BlockVerifier::Run() {
  for (const TierName tier : {TierName::kGpu, TierName::kHost, TierName::kDisk}) {
    report_.copies +=
        static_cast<uint64_t>(std::max<int64_t>(0, parts_.counters.tier(tier).blocks.load()));
  }
  absl::Status status;
  for (uint32_t number = 0; number < BlockIndex::kShardsCount && status.ok(); ++number) {
    IndexShard& shard = parts_.index.shard(number);
    uint32_t cursor = 0;
    bool has_more = true;
    while (has_more && status.ok()) {
      std::vector<EntryId> ids;
      {
        MutexLock lock(shard.mutex);
        has_more = shard.Collect(&cursor, kPieceBlocks, &ids);
        for (const EntryId id : ids) ++shard.Get(id).refs;
      }
      for (const EntryId id : ids) {
        if (status.ok()) status = CheckBlock(id);
        residency_.DropRef(id);
      }
    }
  }
  if (!status.ok()) return status;
  return report_;
}

absl::Status BlockVerifier::CheckBlock(EntryId id) {
  Copies copies;
  if (!BeginCheck(id, &copies)) return absl::OkStatus();
  std::vector<TierName> damaged;
  if (copies.host_page != kNoPage && !IsHostCopyRight(copies)) damaged.push_back(TierName::kHost);
  if (copies.gpu_page != kNoPage && !IsGpuCopyRight(copies)) damaged.push_back(TierName::kGpu);
  absl::Status status;
  if (copies.disk_page != kNoPage) {
    const absl::StatusOr<bool> on_disk = IsDiskCopyRight(copies);
    status = on_disk.status();
    if (on_disk.ok() && !*on_disk) damaged.push_back(TierName::kDisk);
  }
  if (!damaged.empty()) Discard(copies, damaged);
  residency_.EndBusy(id);
  IBID_RETURN_IF_ERROR(status);
  return KeepPace();
}

// False when there is nothing to check.
bool BlockVerifier::BeginCheck(EntryId id, Copies* copies) {
  uint32_t ns_number;
  {
    IndexShard& shard = parts_.index.ShardOf(id);
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(id);
    if (!entry.Has(kMapped) || !entry.is_resident()) return false;
    ++entry.busy;
    ns_number = entry.ns;
    copies->id = id;
    copies->key = entry.key;
    copies->checksum = entry.details().checksum;
    if (entry.is_in_host()) copies->host_page = entry.host_page;
    copies->gpu_page = entry.gpu_page;
    copies->disk_page = entry.disk_page;
  }
  copies->ns = parts_.namespaces.Find(ns_number);
  if (copies->ns != nullptr) return true;
  residency_.EndBusy(id);
  return false;
}

void BlockVerifier::CountChecked(uint64_t bytes) {
  ++report_.checked_copies;
  report_.checked_bytes += bytes;
  parts_.counters.verified_copies.Add();
}

// Errors: ResourceExhausted.
absl::StatusOr<MutableByteView> BlockVerifier::BufferOf(uint64_t bytes) {
  if (buffer_.size() < bytes) {
    IBID_ASSIGN_OR_RETURN(buffer_, HostMemory::CreatePrivate(bytes));
  }
  return buffer_.view().first(bytes);
}

bool BlockVerifier::IsHostCopyRight(const Copies& copies) {
  const uint64_t bytes = copies.ns->payload_bytes;
  CountChecked(bytes);
  if (Checksum(parts_.arena->View(copies.host_page, bytes)) == copies.checksum) return true;
  ++report_.damaged_host_copies;
  return false;
}

bool BlockVerifier::IsGpuCopyRight(const Copies& copies) {
  const uint64_t slot_bytes = uint64_t{copies.ns->slot_pages} * kPageBytes;
  const absl::StatusOr<MutableByteView> slot = BufferOf(slot_bytes);
  if (!slot.ok()) return true;  // nobody knows: a reader will find out
  const absl::Status read = parts_.gpu->Read(copies.gpu_page, *slot);
  CountChecked(slot_bytes);
  if (!read.ok()) {
    ++report_.unreadable_gpu_copies;
    IBID_LOG_EVERY(kLogPeriodSeconds, warn, "verify: {}", read.message());
    return false;
  }
  if (Checksum(slot->first(copies.ns->payload_bytes)) == copies.checksum) return true;
  ++report_.damaged_gpu_copies;
  return false;
}

// Errors: Unavailable (the tier is down: no fault of the block), ResourceExhausted (memory).
absl::StatusOr<bool> BlockVerifier::IsDiskCopyRight(const Copies& copies) {
  const uint64_t slot_bytes = uint64_t{copies.ns->slot_pages} * kPageBytes;
  IBID_ASSIGN_OR_RETURN(const MutableByteView slot, BufferOf(slot_bytes));
  if (!parts_.disk->health().is_readable()) return absl::UnavailableError(parts_.disk->state());
  const absl::Status read = parts_.disk->ReadSlot(copies.disk_page, slot);
  CountChecked(slot_bytes);
  if (!read.ok()) {
    ++report_.unreadable_disk_copies;
    IBID_LOG_EVERY(kLogPeriodSeconds, warn, "verify: {}", read.message());
    return false;
  }
  if (Checksum(slot.first(copies.ns->payload_bytes)) == copies.checksum) return true;
  ++report_.damaged_disk_copies;
  return false;
}

void BlockVerifier::Discard(const Copies& copies, std::span<const TierName> damaged) {
  parts_.counters.corrupt_blocks.Add();
  bool is_kept = damaged.size() < copies.count();
  for (const TierName tier : damaged) is_kept = is_kept && residency_.RemoveCopy(tier, copies.id);
  if (!is_kept) return Drop(copies);
  ++report_.kept_blocks;
  IBID_LOG_EVERY(kLogPeriodSeconds, warn,
                 "verify: block {} has a damaged copy; that is removed, a sound one stays",
                 DigestToShortHex(copies.key.digest));
}

void BlockVerifier::Drop(const Copies& copies) {
  IBID_LOG_EVERY(kLogPeriodSeconds, warn, "verify: block {} is damaged; it is dropped",
                 DigestToShortHex(copies.key.digest));
  IndexShard& shard = parts_.index.ShardOf(copies.id);
  Aftermath after;
  {
    MutexLock lock(shard.mutex);
    if (!shard.Get(copies.id).Has(kMapped)) return;
    after = residency_.Remove(shard, copies.id);
  }
  residency_.Finish(after);
}

absl::Status BlockVerifier::KeepPace() {
  while (true) {
    if (!on_progress_(report_))
      return absl::CancelledError("the caller is gone, or the server stops");
    if (bytes_per_second_ == 0) return absl::OkStatus();
    const absl::Time due = began_ + absl::Seconds(static_cast<double>(report_.checked_bytes) /
                                                  static_cast<double>(bytes_per_second_));
    const absl::Duration left = due - clock_.Now();
    if (left <= absl::ZeroDuration()) return absl::OkStatus();
    absl::SleepFor(std::min(left, kPaceSlice));
  }
}

}  // namespace ibid
