// The shell: it owns the parts, passes each call to the path that does it, and runs what is due.
//
//   Offer, Reserve, Commit --> PublishPath --+
//   Match, Acquire ----------> ReadPath -----+--> Residency --> index, policies, arena
//   queued writes -----------> DiskWriter ---+--> DiskTier --> extent files, directory
//   start --------------------> Recovery -----+
#include "cache_server/block_store.h"

#include <pthread.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "cache_server/block_verifier.h"
#include "cache_server/disk_writer.h"
#include "cache_server/event_watch.h"
#include "cache_server/gauges.h"
#include "cache_server/let_go_queue.h"
#include "cache_server/memory_flush.h"
#include "cache_server/pin_path.h"
#include "cache_server/publish_path.h"
#include "cache_server/quota_moves.h"
#include "cache_server/read_path.h"
#include "cache_server/recovery.h"
#include "cache_server/residency.h"
#include "cache_server/stats_history.h"
#include "cache_server/store_parts.h"
#include "cache_server/tenant_gauges.h"
#include "core/check.h"
#include "core/log.h"
#include "core/random_id.h"

namespace ibid {
namespace {

constexpr absl::Duration kMaintenancePeriod = absl::Milliseconds(200);
constexpr absl::Duration kFlushAtStop = absl::Seconds(5);
constexpr size_t kDropPieceBlocks = 256;

}  // namespace

class BlockStoreImpl {
 public:
  BlockStoreImpl(BlockStoreOptions options, const Clock* clock, std::unique_ptr<HostArena> arena,
                 std::unique_ptr<DiskTier> disk, std::unique_ptr<GpuTier> gpu,
                 std::unique_ptr<Clock> own_clock)
      : own_clock(std::move(own_clock)),
        parts(std::move(options), clock, std::move(arena), std::move(disk), std::move(gpu)),
        residency(parts),
        recovery(parts, residency),
        writer(parts, residency),
        publish(parts, residency, recovery),
        let_go(residency, publish, [this] { WakeMaintenance(); }),
        mover(parts, residency),
        pins(parts, residency),
        quota_moves(parts, residency),
        read(std::make_unique<ReadPath>(parts, residency, recovery,
                                        parts.gpu == nullptr ? nullptr : &mover)),
        tenant_gauges(parts.options.metrics) {}

  absl::Status Start() {
    if (parts.disk != nullptr) {
      IBID_RETURN_IF_ERROR(recovery.Start());
      IBID_RETURN_IF_ERROR(pins.Restore());
      writer.Start();
    }
    if (parts.gpu != nullptr) mover.Start();
    if (parts.options.has_maintenance_thread) {
      maintenance_thread = std::thread([this] { RunMaintenanceThread(); });
      pthread_setname_np(maintenance_thread.native_handle(), "ibid-maintain");
    }
    return absl::OkStatus();
  }

  ~BlockStoreImpl() {
    {
      MutexLock lock(mutex);
      is_stopping = true;
    }
    stopping.NotifyAll();
    if (maintenance_thread.joinable()) maintenance_thread.join();
    read.reset();  // its threads end
    mover.Stop();
    writer.Stop(kFlushAtStop);
  }

  // Session by session, block by block: nobody waits for more than one of them.
  void RunMaintenance() {
    for (const SessionId session : parts.sessions.ids())
      let_go.Add(parts.sessions.Expire(session, parts.Now()));
    pins.Expire();
    residency.UpdateCapacities();
    residency.DemoteAhead();
    parts.events.RunMaintenance();
    if (parts.disk != nullptr) parts.disk->HealIfDue();
    gauges.Set(parts);
    tenant_gauges.Set(TenantsOf(parts));
    LogTierState();
    history.AddIfDue(parts.Now(), [this] { return Sample(); });
  }

  // One line whenever the disk tier falls ill, and one when it is well again.
  void LogTierState() {
    if (parts.disk == nullptr) return;
    const std::string state = parts.disk->state();
    std::string before;
    {
      MutexLock lock(mutex);
      before = std::exchange(disk_state, state);
    }
    if (before == state) return;
    if (state == "ok") {
      IBID_LOG(info, "disk tier: ok again, it was {}", before);
    } else {
      IBID_LOG(warn, "disk tier: {}", state);
    }
  }

  StatsSample Sample() const {
    const StoreCounters& counters = parts.counters;
    return {parts.Now(),
            counters.tier(TierName::kGpu).hits.value(),
            counters.tier(TierName::kHost).hits.value(),
            counters.tier(TierName::kDisk).hits.value(),
            counters.missed_blocks.value(),
            counters.asked_keys.value(),
            counters.matched_keys.value(),
            counters.published_blocks.value()};
  }

  void WakeMaintenance() {
    MutexLock lock(mutex);
    has_let_go = true;
    stopping.NotifyAll();
  }

  // What sessions let go, at once and piece by piece; all else each kMaintenancePeriod.
  void RunMaintenanceThread() {
    const SteadyClock clock;
    absl::Time due = clock.Now() + kMaintenancePeriod;
    while (true) {
      {
        MutexLock lock(mutex);
        const absl::Duration left = due - clock.Now();
        if (!is_stopping && !has_let_go && left > absl::ZeroDuration()) {
          stopping.WaitFor(mutex, left);
        }
        if (is_stopping) return;
        has_let_go = false;
      }
      const bool has_let_go_more = let_go.RunPiece();
      if (quota_moves.RunPiece() || has_let_go_more) WakeMaintenance();
      if (clock.Now() < due) continue;
      RunMaintenance();
      due = clock.Now() + kMaintenancePeriod;
    }
  }

  // Namespaces that have no block give way when a new one finds no place. False when there is none.
  bool CloseEmptyNamespaces() {
    if (recovery.is_running()) return false;  // their blocks may be yet to come
    absl::flat_hash_set<uint32_t> used;
    for (uint32_t number = 0; number < BlockIndex::kShardsCount; ++number) {
      IndexShard& shard = parts.index.shard(number);
      MutexLock lock(shard.mutex);
      shard.AddNamespacesTo(&used);
    }
    DiskDirectory::Change change;
    const std::vector<NamespacePtr> closed = parts.namespaces.CloseAllExcept(used);
    if (closed.empty()) return false;
    parts.events.CloseNamespaces(closed);
    for (const NamespacePtr& ns : closed) {
      if (ns->is_on_disk.load()) change.delete_namespaces.push_back(ns->number);
    }
    // A namespace's record outlives those of its blocks, or its number would be given out while
    // they stand. Should this fail, the next start finds a namespace without blocks.
    if (!change.is_empty() && parts.disk_queue.WaitForRemovals(absl::ZeroDuration())) {
      (void)parts.disk->Commit(change, /*is_synced=*/false);
    }
    return true;
  }

  // Calls `each` with every visible entry, its shard locked, and finishes what it returns without a
  // lock. In pieces: no shard is locked for long.
  template <typename Each>
  void ForEachBlock(const Each& each) {
    for (uint32_t number = 0; number < BlockIndex::kShardsCount; ++number) {
      IndexShard& shard = parts.index.shard(number);
      uint32_t cursor = 0;
      bool has_more = true;
      while (has_more) {
        std::vector<Aftermath> aftermaths;
        {
          MutexLock lock(shard.mutex);
          std::vector<EntryId> ids;
          has_more = shard.Collect(&cursor, kDropPieceBlocks, &ids);
          for (const EntryId id : ids) aftermaths.push_back(each(shard, id));
        }
        for (const Aftermath& after : aftermaths) residency.Finish(after);
      }
    }
  }

  // A block whose disk copy is on its way in or out counts as there: it must not come back.
  static bool IsDroppable(const IndexEntry& entry) {
    return entry.is_resident() || entry.Has(kDiskUnsettled);
  }

  // All blocks of a namespace, or of all of them (null).
  size_t DropAll(const NamespaceInfo* ns) {
    size_t dropped_count = 0;
    ForEachBlock([&](IndexShard& shard, EntryId id) IBID_NO_THREAD_SAFETY_ANALYSIS {
      const IndexEntry& entry = shard.Get(id);
      if ((ns != nullptr && entry.ns != ns->number) || !IsDroppable(entry)) return Aftermath{};
      ++dropped_count;
      return residency.Remove(shard, id);
    });
    return dropped_count;
  }

  bool DropOne(const NamespaceInfo& ns, const BlockKey& key) {
    if (recovery.is_running()) recovery.IndexOne(ns, key);
    recovery.Forget(ns.number, key);
    IndexShard& shard = parts.index.ShardOf(key);
    Aftermath after;
    {
      MutexLock lock(shard.mutex);
      const EntryId id = shard.Find(ns.number, key);
      if (id == kNoEntry || !IsDroppable(shard.Get(id))) return false;
      after = residency.Remove(shard, id);
    }
    residency.Finish(after);
    return true;
  }

  // A namespace that came from the disk directory without a tenant has blocks already.
  void Own(NamespaceInfo& ns, uint32_t tenant) {
    if (!ns.OwnIfNobodys(tenant) || !ns.is_on_disk.load()) return;
    parts.has_misplaced_blocks = true;
    WakeMaintenance();
    DiskDirectory::Change change;
    change.put_namespaces.push_back(parts.RecordOf(ns));
    // Should this fail, the next run's first tenant owns it.
    (void)parts.disk->Commit(change, /*is_synced=*/false);
  }

  Reservation MakeReservation(WriterSlot slot);

  const uint64_t incarnation = RandomId();
  const std::unique_ptr<Clock> own_clock;
  StoreParts parts;
  Residency residency;
  Recovery recovery;
  DiskWriter writer;
  PublishPath publish;
  LetGoQueue let_go;
  GpuMover mover;
  PinPath pins;
  QuotaMoves quota_moves;
  std::unique_ptr<ReadPath> read;
  StatsHistory history;
  TenantGauges tenant_gauges;
  StoreGauges gauges{parts.options.metrics};

  Mutex mutex;
  CondVar stopping;
  bool is_stopping IBID_GUARDED_BY(mutex) = false;
  std::string disk_state IBID_GUARDED_BY(mutex) = "ok";  // that was logged last
  bool has_let_go IBID_GUARDED_BY(mutex) = false;        // let_go may have work
  std::thread maintenance_thread;
};

// ---- Reservation

struct Reservation::State {
  PublishPath& publish;
  WriterSlot slot;
};

Reservation::Reservation(std::unique_ptr<State> state) : state_(std::move(state)) {}
Reservation::Reservation(Reservation&&) noexcept = default;

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this == &other) return *this;
  if (state_ != nullptr) state_->publish.Abort(state_->slot);
  state_ = std::move(other.state_);
  return *this;
}

Reservation::~Reservation() {
  if (state_ != nullptr) state_->publish.Abort(state_->slot);
}

MutableByteView Reservation::payload() const {
  IBID_CHECK(state_ != nullptr) << "a moved-from or committed Reservation";
  return state_->slot.payload;
}

void Reservation::Commit(uint64_t checksum, uint64_t computed, bool durable,
                         std::function<void(absl::Status)> done) && {
  IBID_CHECK(state_ != nullptr) << "Commit was called before";
  const std::unique_ptr<State> state = std::move(state_);
  state->publish.Commit(std::move(state->slot), checksum, computed, durable, std::move(done));
}

Reservation BlockStoreImpl::MakeReservation(WriterSlot slot) {
  return Reservation(
      std::make_unique<Reservation::State>(Reservation::State{publish, std::move(slot)}));
}

// ---- BlockStore

BlockStore::BlockStore(std::unique_ptr<BlockStoreImpl> impl) : impl_(std::move(impl)) {}
BlockStore::~BlockStore() = default;

absl::StatusOr<std::unique_ptr<BlockStore>> BlockStore::Open(BlockStoreOptions options) {
  IBID_RETURN_IF_ERROR(options.Validate());
  // The arena is populated from the start: a process that asks for too much would be killed later.
  if (const uint64_t available = AvailableMemory();
      options.populates_arena && options.host_bytes_max > available) {
    return absl::ResourceExhaustedError(
        absl::StrCat("host_bytes_max ", options.host_bytes_max, ": this process can have only ",
                     available, " bytes of memory now; give less as --host_bytes_max"));
  }
  std::unique_ptr<Clock> own_clock;
  const Clock* clock = options.clock;
  if (clock == nullptr) {
    own_clock = std::make_unique<SteadyClock>();
    clock = own_clock.get();
  }
  std::unique_ptr<DiskTier> disk;
  if (!options.disk_directory.empty()) {
    IBID_ASSIGN_OR_RETURN(
        disk, DiskTier::Open({options.disk_directory, options.disk_bytes_max,
                              options.disk_directory_bytes_reserve, options.extent_bytes, clock,
                              options.wrap_extent_io, options.directory_env}));
  }
  IBID_ASSIGN_OR_RETURN(auto arena, HostArena::Create(options.host_bytes_max, options.extent_bytes,
                                                      options.populates_arena));
  std::unique_ptr<GpuTier> gpu;
  if (options.create_gpu_memory) {
    IBID_ASSIGN_OR_RETURN(auto memory, options.create_gpu_memory());
    // Slower without it, no more.
    if (const absl::Status locked = memory->RegisterHost(arena->View(0, options.host_bytes_max));
        !locked.ok()) {
      IBID_LOG(warn, "gpu tier: the host arena is not page-locked: {}", locked.message());
    }
    gpu = std::make_unique<GpuTier>(std::move(memory), options.extent_bytes);
  }
  auto impl =
      std::make_unique<BlockStoreImpl>(std::move(options), clock, std::move(arena), std::move(disk),
                                       std::move(gpu), std::move(own_clock));
  IBID_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<BlockStore>(new BlockStore(std::move(impl)));
}

uint64_t BlockStore::incarnation() const { return impl_->incarnation; }
const HostArena& BlockStore::arena() const { return *impl_->parts.arena; }
TenantTable& BlockStore::tenants() { return impl_->parts.tenants; }

std::vector<TenantInfo> BlockStore::Tenants() const { return TenantsOf(impl_->parts); }

absl::StatusOr<uint64_t> BlockStore::OpenNamespace(const NamespaceId& ns, const KvLayout& layout,
                                                   absl::string_view tenant) {
  IBID_RETURN_IF_ERROR(layout.Validate());
  const uint32_t slot_pages =
      static_cast<uint32_t>(RoundUp(layout.PayloadBytes(), kPageBytes) / kPageBytes);
  if (!impl_->parts.arena->CanEverFit(slot_pages)) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout ", layout.ToString(), ": a block of ", layout.PayloadBytes(),
                     " bytes can never fit: extent_bytes is ", impl_->parts.options.extent_bytes,
                     ", host_bytes_max ", impl_->parts.options.host_bytes_max));
  }
  absl::StatusOr<NamespacePtr> info = impl_->parts.namespaces.Open(ns, layout);
  if (absl::IsResourceExhausted(info.status()) && impl_->CloseEmptyNamespaces()) {
    info = impl_->parts.namespaces.Open(ns, layout);
  }
  IBID_RETURN_IF_ERROR(info.status());
  IBID_ASSIGN_OR_RETURN(const uint32_t number, impl_->parts.tenants.Open(tenant));
  impl_->Own(**info, number);
  if (!(*info)->is_announced.exchange(true)) {
    IBID_LOG(info, "namespace {} opened: {}", DigestToShortHex(ns.digest), layout.ToString());
  }
  return (*info)->payload_bytes;
}

absl::StatusOr<KvLayout> BlockStore::LayoutOf(const NamespaceId& ns) const {
  const NamespacePtr info = impl_->parts.namespaces.Find(ns);
  if (info != nullptr) return info->layout;
  return absl::FailedPreconditionError(absl::StrCat("namespace ", DigestToShortHex(ns.digest),
                                                    " is not open; call OpenNamespace first"));
}

absl::StatusOr<SessionId> BlockStore::OpenSession(absl::string_view client_name) {
  return impl_->parts.sessions.Open(client_name, impl_->parts.Now());
}

absl::Status BlockStore::KeepAlive(SessionId session, bool renew_leases) {
  return impl_->parts.sessions.Touch(session, impl_->parts.Now(), renew_leases);
}

void BlockStore::ReleaseLeases(SessionId session, std::span<const LeaseId> leases) {
  LetGo let_go;
  let_go.session = session;
  for (const LeaseId lease : leases) impl_->parts.sessions.TakeLease(session, lease, &let_go);
  impl_->let_go.Add(std::move(let_go));
}

void BlockStore::EndSession(SessionId session) {
  impl_->let_go.Add(impl_->parts.sessions.End(session));
}

absl::StatusOr<std::vector<OfferState>> BlockStore::Offer(SessionId session, const NamespaceId& ns,
                                                          std::span<const BlockKey> keys) {
  return impl_->publish.Offer(session, ns, keys);
}

absl::StatusOr<ClaimResult> BlockStore::Claim(SessionId session, const NamespaceId& ns,
                                              std::span<const BlockKey> keys,
                                              absl::Duration take_over_after) {
  return impl_->publish.Claim(session, ns, keys, take_over_after);
}

void BlockStore::Withdraw(SessionId session, const NamespaceId& ns,
                          std::span<const BlockKey> keys) {
  impl_->publish.Withdraw(session, ns, keys);
}

absl::StatusOr<Reservation> BlockStore::Reserve(SessionId session, const NamespaceId& ns,
                                                const ChainLink& link) {
  IBID_ASSIGN_OR_RETURN(WriterSlot slot, impl_->publish.Reserve(session, ns, link));
  return impl_->MakeReservation(std::move(slot));
}

absl::StatusOr<MatchResult> BlockStore::Match(SessionId session, const NamespaceId& ns,
                                              std::span<const BlockKey> chain,
                                              const MatchOptions& options) {
  return impl_->read->Match(session, ns, chain, options);
}

MatchWaitId BlockStore::StartMatch(SessionId session, std::vector<ShardChain> shards,
                                   const MatchOptions& options, MatchDone done) {
  return impl_->read->StartMatch(session, std::move(shards), options, std::move(done));
}

void BlockStore::CancelMatch(MatchWaitId wait) { impl_->parts.waits.Cancel(wait.value); }
void BlockStore::EndWaits() { impl_->parts.waits.EndAll(); }

void BlockStore::Acquire(const NamespaceId& ns, const BlockKey& key,
                         std::function<void(absl::StatusOr<BlockRef>)> done, bool is_use) {
  impl_->read->Acquire(ns, key, std::move(done), is_use);
}

absl::Status BlockStore::CheckLease(SessionId session, LeaseId lease) const {
  return impl_->parts.sessions.CheckLease(session, lease, impl_->parts.Now());
}

size_t BlockStore::Drop(const NamespaceId& ns, std::span<const BlockKey> keys) {
  const NamespacePtr info = impl_->parts.namespaces.Find(ns);
  if (info == nullptr) return 0;
  if (keys.empty()) {
    impl_->recovery.ForgetNamespace(info->number);
    return impl_->DropAll(info.get());
  }
  size_t dropped_count = 0;
  for (const BlockKey& key : keys) dropped_count += impl_->DropOne(*info, key) ? 1 : 0;
  return dropped_count;
}

size_t BlockStore::DropEverything() {
  for (const NamespacePtr& ns : impl_->parts.namespaces.All())
    impl_->recovery.ForgetNamespace(ns->number);
  return impl_->DropAll(nullptr);
}

size_t BlockStore::DropCorrupt(const NamespaceId& ns, std::span<const BlockKey> keys) {
  const NamespacePtr info = impl_->parts.namespaces.Find(ns);
  if (info == nullptr) return 0;
  size_t dropped_count = 0;
  for (const BlockKey& key : keys) dropped_count += impl_->read->DropIfCorrupt(*info, key) ? 1 : 0;
  return dropped_count;
}

bool BlockStore::FlushRemovals(absl::Duration timeout) {
  if (impl_->parts.disk == nullptr) return true;
  if (impl_->recovery.is_running() || !impl_->parts.disk->health().is_writable()) {
    timeout = absl::ZeroDuration();
  }
  return impl_->parts.disk_queue.WaitForRemovals(timeout);
}

absl::StatusOr<VerifyReport> BlockStore::Verify(
    uint64_t bytes_per_second, const std::function<bool(const VerifyReport&)>& on_progress) {
  if (impl_->recovery.is_running()) {
    return absl::UnavailableError("the disk directory is still being indexed; try again later");
  }
  return BlockVerifier(impl_->parts, impl_->residency, bytes_per_second, on_progress).Run();
}

absl::StatusOr<PinResult> BlockStore::Pin(PinId id, const NamespaceId& ns,
                                          std::span<const BlockKey> keys,
                                          const PinOptions& options) {
  return impl_->pins.Pin(id, ns, keys, options);
}

absl::Status BlockStore::Unpin(PinId id) { return impl_->pins.Unpin(id); }
std::vector<PinInfo> BlockStore::Pins() const { return impl_->pins.List(); }

void BlockStore::RefuseBlocks() { impl_->parts.is_refusing_blocks = true; }
void BlockStore::TakeBlocks() { impl_->parts.is_refusing_blocks = false; }

KeepResult BlockStore::KeepOnDisk(absl::Duration timeout, const std::function<bool()>& is_stopped) {
  return MemoryFlush(impl_->parts, impl_->residency, impl_->mover).Run(timeout, is_stopped);
}

BlockStoreStats BlockStore::stats() const {
  const StoreParts& parts = impl_->parts;
  BlockStoreStats stats;
  const auto add_tier = [&](absl::string_view name, TierName tier,
                            const ExtentAllocator::Usage& usage) -> BlockTierStats& {
    const TierCounters& counters = parts.counters.tier(tier);
    BlockTierStats& out = stats.tiers.emplace_back();
    out.tier = std::string(name);
    out.bytes_max = usage.total_bytes;
    out.used_bytes = usage.used_bytes;
    out.largest_free_bytes = usage.largest_free_bytes;
    out.kept_bytes = impl_->parts.book.kept_pages(tier) * kPageBytes;
    out.blocks = static_cast<uint64_t>(std::max<int64_t>(0, counters.blocks.load()));
    out.hits = counters.hits.value();
    out.evictions = counters.evictions_count();
    return out;
  };
  if (parts.gpu != nullptr) {
    const ExtentAllocator::Usage usage = parts.gpu->usage();
    add_tier("gpu", TierName::kGpu, usage).allocated_bytes = usage.total_bytes;
  }
  add_tier("host", TierName::kHost, parts.arena->usage()).allocated_bytes =
      parts.options.host_bytes_max;
  if (parts.disk != nullptr) {
    BlockTierStats& disk = add_tier("disk", TierName::kDisk, parts.disk->usage());
    disk.allocated_bytes = parts.disk->allocated_bytes();
    disk.directory_bytes = parts.disk->directory_bytes();
    disk.state = parts.disk->state();
  }
  stats.sessions = parts.sessions.sessions_count();
  stats.leases = parts.sessions.leases_count();
  stats.reservations = parts.sessions.reservations_count();
  stats.pinned_bytes = static_cast<uint64_t>(parts.counters.pinned_bytes.load());
  stats.pins = parts.pins.pins_count();
  stats.namespaces = parts.namespaces.count();
  stats.requested_blocks = parts.counters.requested_blocks();
  stats.missed_blocks = parts.counters.missed_blocks.value();
  stats.published_blocks = parts.counters.published_blocks.value();
  stats.rejected_blocks = parts.counters.rejected_blocks.value();
  stats.corrupt_blocks = parts.counters.corrupt_blocks.value();
  stats.pending_writes = parts.disk_queue.writes_count();
  stats.waiting_matches = parts.waits.count();
  stats.ending_blocks = impl_->let_go.blocks_count();
  stats.is_recovering = impl_->recovery.is_running();
  stats.asked_keys = parts.counters.asked_keys.value();
  stats.matched_keys = parts.counters.matched_keys.value();
  stats.distinct_keys = parts.demand.distinct_keys();
  stats.infinite_hit_ratio = parts.demand.infinite_hit_ratio();
  stats.is_refusing_blocks = parts.is_refusing_blocks;
  return stats;
}

absl::StatusOr<std::unique_ptr<BlockWatch>> BlockStore::Watch(const WatchOptions& options) {
  return StartWatch(impl_->parts, impl_->residency, impl_->incarnation, options);
}

uint64_t BlockStore::WaitForEvents(uint64_t sequence, absl::Duration timeout) {
  return impl_->parts.events.WaitFor(sequence, timeout);
}

std::vector<SessionInfo> BlockStore::Sessions(size_t count) const {
  return impl_->parts.sessions.List(count, impl_->parts.Now());
}
std::vector<HotPrefix> BlockStore::HottestPrefixes(size_t count) const {
  return impl_->parts.demand.prefixes().Top(count);
}
std::vector<StatsSample> BlockStore::History() const { return impl_->history.All(); }

void BlockStore::RunMaintenance() {
  impl_->RunMaintenance();
  while (impl_->let_go.RunPiece() || impl_->quota_moves.RunPiece()) {
  }
}

bool BlockStore::FlushToDisk(absl::Duration timeout) {
  const SteadyClock clock;
  const absl::Time until = clock.Now() + timeout;
  return impl_->mover.WaitUntilIdle(timeout) &&
         impl_->parts.disk_queue.WaitUntilIdle(std::max(until - clock.Now(), absl::ZeroDuration()));
}

}  // namespace ibid
