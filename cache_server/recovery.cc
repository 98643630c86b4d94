// Why a block cannot come back after it was dropped:
// - The disk writer, the only one that deletes records and frees slots, is paused until the scan
//   and the last IndexOne are over: a record that was read still holds when its block is indexed.
// - A drop first notes the block in `forgotten_`, then removes what it finds in the index, entries
//   with kDiskUnsettled included; indexing first makes such an entry, then asks `forgotten_`. So
//   one of the two sees the other.
#include "cache_server/recovery.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/log.h"

namespace ibid {
namespace {

// Between two log lines of one place.
constexpr int64_t kLogPeriodSeconds = 10;
constexpr size_t kRecordsAhead = 32;
constexpr absl::Duration kRescanBackoff = absl::Seconds(1);
// For the records of void namespaces' blocks to go.
constexpr absl::Duration kRemovalsWait = absl::Seconds(5);

}  // namespace

Recovery::~Recovery() {
  {
    MutexLock lock(mutex_);
    is_stopping_.store(true);
  }
  stopping_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

absl::Status Recovery::Start() {
  IBID_ASSIGN_OR_RETURN(std::vector<DiskNamespace> stored, parts_.disk->directory().Namespaces());
  RestoreNamespaces(std::move(stored));
  is_running_.store(true, std::memory_order_release);
  parts_.disk_queue.Pause(true);
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "ibid-recovery");
  return absl::OkStatus();
}

void Recovery::RestoreNamespaces(std::vector<DiskNamespace> stored) {
  // A namespace that was closed and opened again may have left a record of its old number, with no
  // blocks: the highest number is the one in use.
  std::sort(stored.begin(), stored.end(),
            [](const DiskNamespace& a, const DiskNamespace& b) { return a.number > b.number; });
  for (const DiskNamespace& ns : stored) {
    const auto layout = KvLayout::Parse(ns.layout);
    if (layout.ok() && layout->Validate().ok() && parts_.namespaces.Find(ns.id) == nullptr) {
      parts_.namespaces.Restore(ns.id, ns.number, *layout, TenantOf(ns));
      continue;
    }
    IBID_LOG(warn, "disk tier: the record of namespace {} (number {}) is void; so are its blocks",
             DigestToShortHex(ns.id.digest), ns.number);
    parts_.namespaces.NeverUse(ns.number);
    void_namespaces_.push_back(ns.number);
  }
}

uint32_t Recovery::TenantOf(const DiskNamespace& ns) {
  if (!ns.tenant.has_value()) return kNoTenant;
  const absl::StatusOr<uint32_t> tenant = parts_.tenants.Open(*ns.tenant);
  if (tenant.ok()) return *tenant;
  IBID_LOG(warn, "disk tier: namespace {} waits for a tenant to open it: {}",
           DigestToShortHex(ns.id.digest), tenant.status().message());
  return kNoTenant;
}

// While they stand, their numbers are not given out again.
void Recovery::DeleteVoidNamespaces() {
  if (void_namespaces_.empty() || !parts_.disk_queue.WaitForRemovals(kRemovalsWait)) return;
  DiskDirectory::Change change;
  change.delete_namespaces = void_namespaces_;
  // Should it fail, the next start finds them void again.
  (void)parts_.disk->Commit(change, /*is_synced=*/false);
}

// Who waits for the disk must not wait for a directory that may never be whole again.
void Recovery::AnswerDurableWrites(const absl::Status& why) {
  for (const DiskWrite& write : parts_.disk_queue.TakeDurableWrites()) {
    residency_.EndBusy(write.id);
    write.durable_done(absl::UnavailableError(absl::StrCat("durable: ", why.message())));
    residency_.DropRef(write.id);
  }
}

void Recovery::Run() {
  // Without a complete scan free room is unknown: it is repeated until it succeeds. Records that
  // are indexed already are passed over.
  while (true) {
    const absl::Status status = ScanAll();
    if (status.ok() || is_stopping_.load()) break;
    IBID_LOG_EVERY(kLogPeriodSeconds, error,
                   "disk tier: {}; blocks are not written until the scan succeeds",
                   status.message());
    parts_.disk->SetScanError(std::string(status.message()));
    is_failing_.store(true, std::memory_order_release);
    AnswerDurableWrites(status);
    MutexLock lock(mutex_);
    if (!is_stopping_.load()) stopping_.WaitFor(mutex_, kRescanBackoff);
  }
  if (is_stopping_.load()) return;
  IBID_LOG(info, "disk tier: {} blocks recovered, {} void records", indexed_count_.load(),
           void_count_.load());
  {
    MutexLock lock(mutex_);
    is_running_.store(false, std::memory_order_release);
    while (lookups_count_ > 0) lookups_done_.Wait(mutex_);
    forgotten_.clear();
    forgotten_namespaces_.clear();
    voided_.clear();
  }
  parts_.disk->SetScanError("");
  is_failing_.store(false, std::memory_order_release);
  parts_.disk_queue.Pause(false);
  DeleteVoidNamespaces();
}

absl::Status Recovery::ScanAll() {
  // Some records ahead of the index, so that its places have come into the cache by then.
  std::vector<DiskRecord> ahead;
  const auto index_ahead = [&] {
    for (const DiskRecord& record : ahead) IndexScanned(record);
    ahead.clear();
  };
  const absl::Status status = parts_.disk->directory().Scan(
      [&](const DiskRecord& record) {
        parts_.index.PrefetchPlace(record.ns, record.key);
        parts_.index.PrefetchPlace(record.ns, record.parent);
        ahead.push_back(record);
        if (ahead.size() >= kRecordsAhead) index_ahead();
        return !is_stopping_.load(std::memory_order_relaxed);
      },
      [this](uint32_t ns, const BlockKey& key) {
        DiskRecord record;
        record.ns = ns;
        record.key = key;
        DropRecord(record);
      });
  index_ahead();
  return status;
}

void Recovery::IndexScanned(const DiskRecord& record) {
  const NamespacePtr ns = parts_.namespaces.Find(record.ns);
  if (ns == nullptr || IsForgotten(record.ns, record.key)) {
    DropRecord(record);
  } else {
    Index(*ns, record);
  }
}

// The record of a block that is not, or no longer, in the index. Its slot was never booked.
void Recovery::DropRecord(const DiskRecord& record) {
  {
    MutexLock lock(mutex_);
    if (!voided_.insert({record.ns, record.key}).second) return;  // a scan may be repeated
  }
  ++void_count_;
  parts_.disk_queue.PushRemoval({record.ns, record.key, kNoPage, /*frees_slot=*/false});
}

bool Recovery::IsForgotten(uint32_t ns, const BlockKey& key) {
  MutexLock lock(mutex_);
  return forgotten_namespaces_.contains(ns) || forgotten_.contains({ns, key});
}

void Recovery::Forget(uint32_t ns, const BlockKey& key) {
  if (!is_running()) return;
  // What has no record cannot come back: the writer, who could make one, is paused.
  if (absl::IsNotFound(parts_.disk->directory().Lookup(ns, key).status())) return;
  MutexLock lock(mutex_);
  forgotten_.insert({ns, key});
}

void Recovery::ForgetNamespace(uint32_t ns) {
  if (!is_running()) return;
  MutexLock lock(mutex_);
  forgotten_namespaces_.insert(ns);
}

bool Recovery::IndexOne(const NamespaceInfo& ns, const BlockKey& key) {
  {
    MutexLock lock(mutex_);
    if (!is_running() || forgotten_namespaces_.contains(ns.number) ||
        forgotten_.contains({ns.number, key})) {
      return false;
    }
    ++lookups_count_;
  }
  const auto record = parts_.disk->directory().Lookup(ns.number, key);
  if (record.ok()) {
    Index(ns, *record);
    WaitUntilIndexed(ns, key);
  }
  {
    MutexLock lock(mutex_);
    --lookups_count_;
  }
  lookups_done_.NotifyAll();
  return record.ok();
}

// The scan may be at this very record: its block is there in a moment.
void Recovery::WaitUntilIndexed(const NamespaceInfo& ns, const BlockKey& key) {
  IndexShard& shard = parts_.index.ShardOf(key);
  MutexLock lock(shard.mutex);
  while (true) {
    const EntryId id = shard.Find(ns.number, key);
    if (id == kNoEntry || !shard.Get(id).Has(kDiskUnsettled)) return;
    shard.settled.WaitFor(shard.mutex, absl::Seconds(1));
  }
}

void Recovery::Index(const NamespaceInfo& ns, const DiskRecord& record) {
  if (record.payload_bytes != ns.payload_bytes) {
    DropRecord(record);
    return;
  }
  EntryId parent = residency_.RefParent(ns, record.parent, record.position);
  IndexShard& shard = parts_.index.ShardOf(record.key);
  EntryId id;
  bool is_new = false;
  bool is_void = false;
  {
    MutexLock lock(shard.mutex);
    id = shard.Find(ns.number, record.key);
    if (id == kNoEntry) id = shard.Insert(ns.number, record.key);
    IndexEntry& entry = shard.Get(id);
    is_new = !entry.is_resident() && !entry.is_filling() && !entry.is_in_use();
    if (is_new) {
      if (entry.parent == kNoEntry) std::swap(entry.parent, parent);
      if (!entry.Has(kPositionKnown)) entry.details().position = record.position;
      entry.Set(kPositionKnown);
      entry.details().checksum = record.checksum;
      entry.details().token_count = record.token_count;
      entry.Set(kDiskUnsettled);
      ++entry.busy;
    } else {
      // Another thread is indexing it or has done so; else the block was published anew.
      is_void = !entry.is_on_disk() && !entry.Has(kDiskUnsettled);
    }
  }
  if (parent != kNoEntry) residency_.DropRef(parent);
  if (is_void) DropRecord(record);
  if (is_new) BringIn(ns, shard, id, record);
}

// Books the slot of an entry that has kDiskUnsettled and is busy, and makes the block resident.
void Recovery::BringIn(const NamespaceInfo& ns, IndexShard& shard, EntryId id,
                       const DiskRecord& record) {
  std::optional<uint32_t> page;
  if (!IsForgotten(record.ns, record.key)) page = parts_.disk->ClaimSlot(record, id);
  BlockTraits traits;
  {
    MutexLock lock(shard.mutex);
    traits = residency_.TraitsOf(shard.Get(id), ns);
  }
  if (page.has_value()) {
    // Whatever its quota: what is too much leaves as other blocks come.
    parts_.book.Insert(TierName::kDisk, id, traits.parent, ns.slot_pages, ns.owner());
    parts_.counters.OnCopyIn(TierName::kDisk, id, *parts_.clock);
    ++indexed_count_;
  } else {
    DropRecord(record);
  }
  {
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(id);
    entry.disk_page = page.value_or(kNoPage);
    if (page.has_value()) {
      // An unknown parent was written as zeros.
      const bool is_parent_known = record.parent != BlockKey{};
      parts_.events.TellNew(entry, TierName::kDisk, ns, is_parent_known ? &record.parent : nullptr);
    }
    entry.Clear(kDiskUnsettled);
    shard.settled.NotifyAll();
  }
  if (page.has_value()) parts_.book.Admit(TierName::kDisk, id, traits);
  residency_.EndBusy(id);
}

}  // namespace ibid
