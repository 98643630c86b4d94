// Acquire: how the bytes of a block are read, from the host tier in place, from the others into a
// host slot or a buffer.
//
// Invariants:
// - Who waits for a disk read has one reference on the entry, so that its id keeps its meaning; the
// read itself is busy.
// - waiters_[id] is not empty <=> a read of it is queued or running and will take them.
// - Every Acquire that got past the namespace is answered once and counted once: as a hit of a tier
// or as a miss.
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache_server/read_path.h"
#include "core/check.h"
#include "core/limit.h"
#include "core/log.h"

namespace ibid {
namespace {

// Between two log lines of one place.
constexpr int64_t kLogPeriodSeconds = 10;
constexpr absl::string_view kHostTier = "host";
constexpr absl::string_view kDiskTier = "disk";
constexpr absl::string_view kGpuTier = "gpu";

absl::Status UnknownNamespace(const NamespaceId& ns) {
  return absl::FailedPreconditionError(
      absl::StrCat("namespace ", DigestToShortHex(ns.digest), " is not open"));
}

// A hold on an entry, which keeps the host slot.
class HoldPin final : public BlockRef::Pin {
 public:
  HoldPin(Residency& residency, EntryId id, uint64_t payload_bytes)
      : residency_(residency), id_(id), payload_bytes_(payload_bytes) {}
  ~HoldPin() override { residency_.EndHold(id_, payload_bytes_); }

 private:
  Residency& residency_;
  const EntryId id_;
  const uint64_t payload_bytes_;
};

// Bytes of their own, shared by all who waited for the read.
class BufferPin final : public BlockRef::Pin {
 public:
  explicit BufferPin(ReadBuffers::Buffer buffer) : buffer_(std::move(buffer)) {}

 private:
  const ReadBuffers::Buffer buffer_;
};

}  // namespace

// Where a block is read from, and to: a host slot or a buffer.
struct ReadPath::Target {
  uint32_t disk_page = kNoPage;
  uint32_t gpu_page = kNoPage;   // if set, it is read from there
  uint32_t host_page = kNoPage;  // if set, the host policy knows the block, and nobody else does
  bool is_from_host = false;     // it has come there by itself
  EntryId parent = kNoEntry;
  ReadBuffers::Buffer buffer;
  MutableByteView slot;  // whole pages
  uint64_t checksum = 0;
  uint32_t token_count = 0;
};

void ReadPath::Acquire(const NamespaceId& ns, const BlockKey& key, Done done, bool is_use) {
  Read read{kNoEntry, parts_.namespaces.Find(ns), key};
  if (read.ns == nullptr) return done(UnknownNamespace(ns));
  if (recovery_.is_running()) recovery_.IndexOne(*read.ns, key);
  const uint64_t payload_bytes = read.ns->payload_bytes;
  IndexShard& shard = parts_.index.ShardOf(key);
  uint32_t host_page = kNoPage;
  uint64_t checksum = 0;
  uint32_t token_count = 0;
  {
    MutexLock lock(shard.mutex);
    const EntryId id = shard.Find(read.ns->number, key);
    if (id != kNoEntry && shard.Get(id).is_resident()) {
      read.id = id;
      IndexEntry& entry = shard.Get(id);
      if (entry.is_in_host()) {
        host_page = entry.host_page;
        checksum = entry.details().checksum;
        token_count = entry.details().token_count;
        residency_.AddHold(entry, payload_bytes);
      } else {
        ++entry.refs;
        read.is_from_disk = !entry.is_in_gpu();
      }
    }
  }
  if (read.id == kNoEntry) {
    parts_.counters.missed_blocks.Add();
    done(absl::NotFoundError(""));
  } else if (host_page != kNoPage) {
    if (is_use) parts_.book.Use(read.id);
    if (is_use) residency_.WriteUsed(read.id, read.ns);
    parts_.counters.tier(TierName::kHost).hits.Add();
    done(BlockRef(std::make_unique<HoldPin>(residency_, read.id, payload_bytes),
                  parts_.arena->View(host_page, payload_bytes), checksum, token_count, kHostTier));
  } else {
    read.is_use = is_use;
    QueueRead(read, std::move(done));
  }
}

// REQUIRES: a reference on the entry was counted for `done`.
void ReadPath::QueueRead(const Read& read, Done done) {
  bool is_first;
  {
    MutexLock lock(mutex_);
    std::vector<Done>& waiters = waiters_[read.id];
    is_first = waiters.empty();
    waiters.push_back(std::move(done));
  }
  if (!is_first) return;
  if (read.is_from_disk && !parts_.disk->health().CanRead(parts_.Now())) {
    Answer(read, absl::UnavailableError(parts_.disk->state()), nullptr);
    return;
  }
  ++parts_.disk_reads_waiting;
  const bool is_queued = executor_->TrySubmit([this, read] {
    ReadCopy(read);
    --parts_.disk_reads_waiting;
  });
  if (!is_queued) {
    --parts_.disk_reads_waiting;
    Answer(read,
           LimitReached("too many reads are waiting", "acquire_queue_max",
                        parts_.options.acquire_queue_max),
           nullptr);
  }
}

void ReadPath::ReadCopy(const Read& read) {
  IndexShard& shard = parts_.index.ShardOf(read.id);
  Target target;
  Residency::Room room = Residency::Room::kFreeOnly;
  bool can_promote = false;
  {
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(read.id);
    if (entry.is_in_host() && !entry.Has(kDoomed)) {
      // Copied down from the gpu tier while the read was queued.
      target.is_from_host = true;
      target.host_page = entry.host_page;
      target.checksum = entry.details().checksum;
      target.token_count = entry.details().token_count;
      ++entry.busy;
    } else if ((entry.is_on_disk() || entry.is_in_gpu()) && !entry.Has(kDoomed)) {
      target.gpu_page = entry.gpu_page;
      target.disk_page = entry.disk_page;
      target.checksum = entry.details().checksum;
      target.token_count = entry.details().token_count;
      target.parent = entry.parent;
      can_promote = entry.host_page == kNoPage && !entry.Has(kHostInTransit);
      // The second read shows that the block is warm: then a colder one makes room. The first takes
      // only what is free, so that a scan of the disk does not wash out the host tier.
      if (entry.Has(kReadFromDisk)) room = Residency::Room::kEvictClean;
      entry.Set(kReadFromDisk);
      ++entry.busy;
    }
  }
  if (target.is_from_host) {
    target.slot = parts_.arena->View(target.host_page, uint64_t{read.ns->slot_pages} * kPageBytes);
    if (read.is_use) parts_.book.Use(read.id);
    Answer(read, absl::OkStatus(), &target);
    return residency_.EndBusy(read.id);
  }
  if (target.disk_page == kNoPage && target.gpu_page == kNoPage) {
    return Answer(read, absl::NotFoundError(""), nullptr);
  }
  absl::Status status = ChooseTarget(read, can_promote, room, &target);
  if (status.ok()) status = Fill(read, target);
  // A read that failed is not repeated: the entry goes.
  const bool is_unreadable =
      absl::IsDataLoss(status) || absl::IsNotFound(status) || absl::IsUnavailable(status);
  bool is_promoted = false;
  if (target.host_page != kNoPage) {
    if (status.ok()) is_promoted = Promote(read, target);
    if (status.ok() && !is_promoted) status = absl::NotFoundError("");  // it was dropped meanwhile
    if (!is_promoted) {
      residency_.LeaveUnseen(TierName::kHost, read.id, target.parent, *read.ns);
      parts_.arena->Free(target.host_page);
    }
  }
  if (is_unreadable) DropDamaged(read.ns->number, read.key, read.id);
  if (status.ok()) {
    if (read.is_use) parts_.book.Use(read.id);
    Answer(read, status,
           &target);  // counts the holds of the readers before the entry may be evicted
    residency_.EndBusy(read.id);
  } else {
    residency_.EndBusy(read.id);
    Answer(read, status, nullptr);
  }
}

absl::Status ReadPath::ChooseTarget(const Read& read, bool can_promote, Residency::Room room,
                                    Target* target) {
  const uint64_t slot_bytes = uint64_t{read.ns->slot_pages} * kPageBytes;
  std::optional<uint32_t> page;
  if (can_promote && residency_.EnterHost(read.id, target->parent, *read.ns, room)) {
    page = residency_.AllocateHost(read.ns->slot_pages, read.id, room);
    if (!page.has_value()) {
      residency_.LeaveUnseen(TierName::kHost, read.id, target->parent, *read.ns);
    }
  }
  if (page.has_value()) {
    target->host_page = *page;
    target->slot = parts_.arena->View(*page, slot_bytes);
    return absl::OkStatus();
  }
  IBID_ASSIGN_OR_RETURN(target->buffer, parts_.read_buffers.Take(slot_bytes));
  target->slot = target->buffer->view();
  return absl::OkStatus();
}

absl::Status ReadPath::FillFromDisk(uint32_t disk_page, const Target& target) {
  const absl::Time began = SteadyClock().Now();
  IBID_RETURN_IF_ERROR(parts_.disk->ReadSlot(disk_page, target.slot));
  parts_.counters.ObserveDiskRead(SteadyClock().Now() - began);
  parts_.counters.disk_read_bytes.Add(target.slot.size());
  return absl::OkStatus();
}

absl::Status ReadPath::Fill(const Read& read, Target& target) {
  absl::Status copied = absl::UnavailableError("not in the gpu tier");
  if (target.gpu_page != kNoPage) copied = parts_.gpu->Read(target.gpu_page, target.slot);
  const bool is_from_gpu = copied.ok();
  if (!is_from_gpu) target.gpu_page = kNoPage;
  if (!is_from_gpu && target.disk_page != kNoPage) copied = FillFromDisk(target.disk_page, target);
  IBID_RETURN_IF_ERROR(copied);
  if (Checksum(target.slot.first(read.ns->payload_bytes)) == target.checksum)
    return absl::OkStatus();
  parts_.counters.corrupt_blocks.Add();
  IBID_LOG_EVERY(kLogPeriodSeconds, warn,
                 "{} tier: block {} does not match its checksum; it is dropped",
                 is_from_gpu ? kGpuTier : kDiskTier, DigestToShortHex(read.key.digest));
  return absl::DataLossError("a block does not match its checksum; it was dropped");
}

// The host slot becomes the block's host copy. False when the block was dropped meanwhile.
bool ReadPath::Promote(const Read& read, const Target& target) {
  IndexShard& shard = parts_.index.ShardOf(read.id);
  BlockTraits traits;
  {
    MutexLock lock(shard.mutex);
    const IndexEntry& entry = shard.Get(read.id);
    if (entry.Has(kDoomed)) return false;
    IBID_CHECK(entry.host_page == kNoPage && !entry.Has(kHostInTransit));
    traits = residency_.TraitsOf(entry, *read.ns);
  }
  {
    // Should it be doomed by now, the last Settle takes this copy out too.
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(read.id);
    entry.host_page = target.host_page;
    entry.Clear(kReadFromDisk);
    parts_.events.TellCame(entry, TierName::kHost, BlockChange::kPromoted);
  }
  parts_.counters.OnCopyIn(TierName::kHost, read.id, *parts_.clock);
  parts_.book.Admit(TierName::kHost, read.id, traits);
  parts_.counters.promoted_blocks.Add();
  return true;
}

bool ReadPath::DropIfCorrupt(const NamespaceInfo& ns, const BlockKey& key) {
  IndexShard& shard = parts_.index.ShardOf(key);
  EntryId id;
  uint32_t host_page = kNoPage;
  uint64_t checksum = 0;
  {
    MutexLock lock(shard.mutex);
    id = shard.Find(ns.number, key);
    if (id == kNoEntry || !shard.Get(id).is_in_host()) return false;
    IndexEntry& entry = shard.Get(id);
    host_page = entry.host_page;
    checksum = entry.details().checksum;
    residency_.AddHold(entry, ns.payload_bytes);
  }
  const bool is_corrupt = Checksum(parts_.arena->View(host_page, ns.payload_bytes)) != checksum;
  if (is_corrupt) {
    parts_.counters.corrupt_blocks.Add();
    IBID_LOG_EVERY(kLogPeriodSeconds, error,
                   "host tier: block {} does not match its checksum; it is dropped",
                   DigestToShortHex(key.digest));
    DropDamaged(ns.number, key, id);
  }
  residency_.EndHold(id, ns.payload_bytes);
  return is_corrupt;
}

// REQUIRES: the entry is in use.
void ReadPath::DropDamaged(uint32_t ns, const BlockKey& key, EntryId id) {
  recovery_.Forget(ns, key);
  IndexShard& shard = parts_.index.ShardOf(id);
  Aftermath after;
  {
    MutexLock lock(shard.mutex);
    if (!shard.Get(id).Has(kMapped)) return;
    after = residency_.Remove(shard, id);
  }
  residency_.Finish(after);
}

std::vector<ReadPath::Done> ReadPath::TakeWaiters(EntryId id) {
  MutexLock lock(mutex_);
  const auto it = waiters_.find(id);
  std::vector<Done> waiters = std::move(it->second);
  waiters_.erase(it);
  return waiters;
}

void ReadPath::Answer(const Read& read, const absl::Status& status, const Target* target) {
  std::vector<Done> waiters = TakeWaiters(read.id);
  const uint64_t payload_bytes = read.ns->payload_bytes;
  for (Done& done : waiters) {
    if (!status.ok()) {
      parts_.counters.missed_blocks.Add();
      done(status);
    } else {
      std::unique_ptr<BlockRef::Pin> pin;
      if (target->host_page != kNoPage) {
        IndexShard& shard = parts_.index.ShardOf(read.id);
        {
          MutexLock lock(shard.mutex);
          residency_.AddHold(shard.Get(read.id), payload_bytes);
        }
        pin = std::make_unique<HoldPin>(residency_, read.id, payload_bytes);
      } else {
        pin = std::make_unique<BufferPin>(target->buffer);
      }
      const TierName tier = target->is_from_host          ? TierName::kHost
                            : target->gpu_page != kNoPage ? TierName::kGpu
                                                          : TierName::kDisk;
      parts_.counters.tier(tier).hits.Add();
      done(BlockRef(std::move(pin), target->slot.first(payload_bytes), target->checksum,
                    target->token_count,
                    tier == TierName::kHost  ? kHostTier
                    : tier == TierName::kGpu ? kGpuTier
                                             : kDiskTier));
    }
    residency_.DropRef(read.id);
  }
}

}  // namespace ibid
