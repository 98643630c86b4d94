// Why a record cannot come back after its block was dropped: the disk writer, the only one that
// deletes records and frees slots, is paused until the scan is over; a block dropped meanwhile is
// in `forgotten_`, which the scan asks.
#include "cache_server/recovery.h"

#include <pthread.h>

#include <utility>

#include "core/check.h"
#include "core/log.h"

namespace ibid {
namespace {

// Between two log lines of one place.
constexpr int64_t kLogPeriodSeconds = 10;
constexpr absl::Duration kRescanBackoff = absl::Seconds(1);

}  // namespace

Recovery::~Recovery() {
  is_stopping_.store(true);
  stopping_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

absl::Status Recovery::Start() {
  IBID_ASSIGN_OR_RETURN(const std::vector<DiskNamespace> stored,
                        parts_.disk->directory().Namespaces());
  for (const DiskNamespace& ns : stored) {
    const auto layout = KvLayout::Parse(ns.layout);
    if (layout.ok() && parts_.namespaces.Find(ns.id) == nullptr) {
      parts_.namespaces.Restore(ns.id, ns.number, *layout);
    } else {
      IBID_LOG(error, "disk tier: namespace {} has a bad record; its blocks are dropped",
               ns.number);
    }
  }
  is_running_.store(true, std::memory_order_release);
  parts_.disk_queue.Pause(true);
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "ibid-recovery");
  return absl::OkStatus();
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
    MutexLock lock(mutex_);
    stopping_.WaitFor(mutex_, kRescanBackoff);
  }
  if (is_stopping_.load()) return;
  IBID_LOG(info, "disk tier: {} blocks recovered, {} void records", indexed_count_.load(),
           void_count_.load());
  is_running_.store(false, std::memory_order_release);
  parts_.disk_queue.Pause(false);
  MutexLock lock(mutex_);
  forgotten_.clear();
  forgotten_namespaces_.clear();
}

absl::Status Recovery::ScanAll() {
  return parts_.disk->directory().Scan(
      [this](const DiskRecord& record) {
        const NamespacePtr ns = parts_.namespaces.Find(record.ns);
        if (ns == nullptr || IsForgotten(record.ns, record.key)) {
          DropRecord(record);
        } else {
          Index(*ns, record);
        }
        return !is_stopping_.load(std::memory_order_relaxed);
      },
      [this](uint32_t ns, const BlockKey& key) {
        DiskRecord record;
        record.ns = ns;
        record.key = key;
        DropRecord(record);
      });
}

// The record of a block that is not, or no longer, in the index. Its slot was never booked.
void Recovery::DropRecord(const DiskRecord& record) {
  ++void_count_;
  parts_.disk_queue.PushRemoval({record.ns, record.key, kNoPage, /*frees_slot=*/false});
}

bool Recovery::IsForgotten(uint32_t ns, const BlockKey& key) {
  MutexLock lock(mutex_);
  return forgotten_namespaces_.contains(ns) || forgotten_.contains({ns, key});
}

void Recovery::Forget(uint32_t ns, const BlockKey& key) {
  if (!is_running()) return;
  MutexLock lock(mutex_);
  forgotten_.insert({ns, key});
}

void Recovery::ForgetNamespace(uint32_t ns) {
  if (!is_running()) return;
  MutexLock lock(mutex_);
  forgotten_namespaces_.insert(ns);
}

bool Recovery::IndexOne(const NamespaceInfo& ns, const BlockKey& key) {
  if (!is_running() || IsForgotten(ns.number, key)) return false;
  const auto record = parts_.disk->directory().Lookup(ns.number, key);
  if (!record.ok()) return false;
  Index(ns, *record);
  // The scan may be at this very record: its block is there in a moment.
  IndexShard& shard = parts_.index.ShardOf(key);
  MutexLock lock(shard.mutex);
  while (true) {
    const EntryId id = shard.Find(ns.number, key);
    if (id == kNoEntry || !shard.Get(id).Has(kIndexing)) return true;
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
  bool is_known;
  {
    MutexLock lock(shard.mutex);
    id = shard.Find(ns.number, record.key);
    if (id == kNoEntry) id = shard.Insert(ns.number, record.key);
    IndexEntry& entry = shard.Get(id);
    is_known = entry.is_resident() || entry.is_filling() || entry.is_in_use();
    if (!is_known) {
      if (entry.parent == kNoEntry) std::swap(entry.parent, parent);
      if (!entry.Has(kPositionKnown)) entry.position = record.position;
      entry.Set(kPositionKnown);
      entry.checksum = record.checksum;
      entry.token_count = record.token_count;
      entry.Set(kIndexing);
      ++entry.busy;
    }
  }
  if (parent != kNoEntry) residency_.DropRef(parent);
  if (is_known) return;
  // Another thread that indexes the same record sees that it is busy and leaves it to this one.
  const std::optional<uint32_t> page = parts_.disk->ClaimSlot(record, id);
  if (page.has_value()) {
    {
      MutexLock lock(shard.mutex);
      parent = shard.Get(id).parent;
    }
    parts_.book.Insert(TierName::kDisk, id, parent);
    SetIndexed(shard, id, *page);
    ++parts_.counters.tier(TierName::kDisk).blocks;
    parts_.book.Use(TierName::kDisk, id);
    ++indexed_count_;
  } else {
    DropRecord(record);
    SetIndexed(shard, id, kNoPage);
  }
  residency_.EndBusy(id);
  if (IsForgotten(ns.number, record.key)) RemoveForgotten(ns, record.key, page.value_or(kNoPage));
}

void Recovery::SetIndexed(IndexShard& shard, EntryId id, uint32_t page) {
  MutexLock lock(shard.mutex);
  IndexEntry& entry = shard.Get(id);
  entry.disk_page = page;
  entry.Clear(kIndexing);
  shard.settled.NotifyAll();
}

// The block was dropped while it was being indexed, too late for one of the two to see the other.
void Recovery::RemoveForgotten(const NamespaceInfo& ns, const BlockKey& key, uint32_t page) {
  IndexShard& shard = parts_.index.ShardOf(key);
  Aftermath after;
  {
    MutexLock lock(shard.mutex);
    const EntryId id = shard.Find(ns.number, key);
    if (page == kNoPage || id == kNoEntry || shard.Get(id).disk_page != page) return;
    after = residency_.Remove(shard, id);
  }
  residency_.Finish(after);
}

}  // namespace ibid
