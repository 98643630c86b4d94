// Invariants:
// - host_page of an entry is set <=> the slot is allocated to it and the host policy knows it
// (Insert before the page is
//   set, Remove after it is cleared). The same for disk_page.
// - Copies are taken out of an entry only while holds == 0, busy == 0 and no writer is there. From
// then until the
//   policies have forgotten it the entry is busy and kHostInTransit: nobody brings a new copy in
//   before the old one is gone.
// - Whoever changes what TiersOf says of an entry that is not doomed tells parts_.events so before
// the shard is unlocked.
// - A victim that turns out to be in use carries kParkedHost or kParkedDisk; whoever ends that use
// puts it back.
#include "cache_server/residency.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/check.h"

namespace ibid {
namespace {

// In kOnDemotion mode this share of the host tier is kept free ahead of need.
constexpr uint64_t kDemoteAheadDivisor = 16;
constexpr int kClearTriesMax = 4;
// How long an allocation waits in all for threads that empty extents; then it evicts on.
constexpr absl::Duration kClearingWaitMax = absl::Seconds(1);

}  // namespace

void Residency::TakeHostCopy(IndexEntry& entry, Aftermath* after) {
  after->was_host_resident = entry.is_in_host();
  after->host_page = entry.host_page;
  after->parent = entry.parent;
  after->fingerprint = parts_.book.FingerprintOf(entry.key);
  entry.host_page = kNoPage;
  entry.Clear(kFilling);
  entry.Set(kHostInTransit);
  ++entry.busy;
  after->took_host = true;
}

void Residency::TakeCopies(IndexEntry& entry, Aftermath* after) {
  TakeHostCopy(entry, after);
  after->disk_page = entry.disk_page;
  after->gpu_page = entry.gpu_page;
  after->ns = entry.ns;
  after->key = entry.key;
  entry.disk_page = kNoPage;
  entry.gpu_page = kNoPage;
}

Aftermath Residency::Settle(IndexShard& shard, EntryId id) {
  Aftermath after;
  after.id = id;
  IndexEntry& entry = shard.Get(id);
  if (!entry.is_in_use()) {
    after.put_back_host = entry.Has(kParkedHost);
    after.put_back_disk = entry.Has(kParkedDisk);
    after.put_back_gpu = entry.Has(kParkedGpu);
    entry.Clear(kParkedHost);
    entry.Clear(kParkedDisk);
    entry.Clear(kParkedGpu);
    const bool has_copies = entry.host_page != kNoPage || entry.disk_page != kNoPage ||
                            entry.is_in_gpu() || entry.is_filling();
    if (entry.Has(kDoomed) && !entry.Has(kHasWriter) && has_copies) TakeCopies(entry, &after);
  }
  after.parent_to_drop = shard.FreeIfUnused(id);
  return after;
}

Aftermath Residency::Remove(IndexShard& shard, EntryId id) {
  Aftermath after;
  after.id = id;
  IndexEntry& entry = shard.Get(id);
  const TierSet had = TiersOf(entry);
  after.wakes_waiters = entry.Has(kHasWaiters);
  entry.Clear(kHasWaiters);
  if (entry.is_in_use() || entry.Has(kHasWriter)) {
    after.ns = entry.ns;
    after.key = entry.key;
    after.record_page = entry.disk_page;
    after.was_pinned = entry.Has(kPinned);
    shard.Unmap(id);
    entry.Set(kDoomed);
  } else {
    TakeCopies(entry, &after);
  }
  parts_.events.TellDropped(entry, had);
  return after;
}

bool Residency::RemoveCopy(TierName tier, EntryId id) {
  IndexShard& shard = parts_.index.ShardOf(id);
  Aftermath after;
  after.id = id;
  {
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(id);
    // Who holds a block may be looking at its copy in memory; of that on disk it has a copy.
    const bool is_seen = tier != TierName::kDisk && entry.holds > 0;
    if (entry.busy > 1 || is_seen || entry.Has(kDoomed)) return false;
    after.ns = entry.ns;
    after.key = entry.key;
    after.parent = entry.parent;
    after.fingerprint = parts_.book.FingerprintOf(entry.key);
    if (tier == TierName::kHost) {
      TakeHostCopy(entry, &after);
      entry.Clear(kParkedHost);
    } else if (tier == TierName::kDisk) {
      after.disk_page = std::exchange(entry.disk_page, kNoPage);
      entry.Set(kDiskUnsettled);
      entry.Clear(kParkedDisk);
    } else {
      after.gpu_page = std::exchange(entry.gpu_page, kNoPage);
      entry.Set(kGpuUnsettled);
      entry.Clear(kParkedGpu);
    }
    parts_.events.TellLeft(entry, tier);
  }
  Finish(after);
  MutexLock lock(shard.mutex);
  if (tier == TierName::kDisk) shard.Get(id).Clear(kDiskUnsettled);
  if (tier == TierName::kGpu) shard.Get(id).Clear(kGpuUnsettled);
  return true;
}

void Residency::Finish(const Aftermath& after) {
  const EntryId id = after.id;
  LeavingBlock leaving{after.fingerprint, after.is_eviction};
  if (after.wakes_waiters) parts_.waits.WakeEntry(id);
  if (after.host_page != kNoPage) {
    leaving.slot_pages = parts_.arena->SlotPages(after.host_page);
    parts_.book.Remove(TierName::kHost, id, after.parent, leaving);
    parts_.arena->Free(after.host_page);
    if (after.was_host_resident) parts_.counters.OnCopyOut(TierName::kHost, id, *parts_.clock);
  }
  if (after.disk_page != kNoPage) {
    leaving.slot_pages = parts_.disk->SlotPages(after.disk_page);
    parts_.book.Remove(TierName::kDisk, id, after.parent, leaving);
    parts_.disk_queue.PushRemoval({after.ns, after.key, after.disk_page, /*frees_slot=*/true});
    parts_.counters.OnCopyOut(TierName::kDisk, id, *parts_.clock);
  }
  if (after.gpu_page != kNoPage) {
    leaving.slot_pages = parts_.gpu->SlotPages(after.gpu_page);
    parts_.book.Remove(TierName::kGpu, id, after.parent, leaving);
    parts_.gpu->Free(after.gpu_page);
    parts_.counters.OnCopyOut(TierName::kGpu, id, *parts_.clock);
  }
  if (after.record_page != kNoPage) {
    parts_.disk_queue.PushRemoval({after.ns, after.key, after.record_page, /*frees_slot=*/false});
  }
  if (after.put_back_host) parts_.book.PutBack(TierName::kHost, id);
  if (after.put_back_disk) parts_.book.PutBack(TierName::kDisk, id);
  if (after.put_back_gpu) parts_.book.PutBack(TierName::kGpu, id);
  if (after.was_pinned) {
    const EntryId unpinned = parts_.pins.Rebind(after.ns, after.key);
    if (unpinned != kNoEntry) DropRef(unpinned);
  }
  if (after.took_host) EndTransit(id);
  if (after.parent_to_drop != kNoEntry) DropRef(after.parent_to_drop);
}

// A chain of entries that only their children kept is freed from its end to its start: a loop, not
// a recursion.
void Residency::DropRef(EntryId id) {
  while (id != kNoEntry) {
    IndexShard& shard = parts_.index.ShardOf(id);
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(id);
    IBID_CHECK(entry.refs > 0) << "entry " << id;
    --entry.refs;
    // Nothing follows it now: it may be the next to leave.
    if (entry.refs == 0) shard.PrefetchPlace(shard.HashOf(entry.ns, entry.key));
    id = shard.FreeIfUnused(id);
  }
}

void Residency::Prefetch(EntryId id) {
  if (id == kNoEntry) return;
  IndexShard& shard = parts_.index.ShardOf(id);
  MutexLock lock(shard.mutex);
  shard.Prefetch(id);
}

void Residency::EndBusy(EntryId id) {
  IndexShard& shard = parts_.index.ShardOf(id);
  Aftermath after;
  {
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(id);
    IBID_CHECK(entry.busy > 0) << "entry " << id;
    --entry.busy;
    after = Settle(shard, id);
  }
  Finish(after);
}

// The policies have forgotten what TakeHostCopy took.
void Residency::EndTransit(EntryId id) {
  IndexShard& shard = parts_.index.ShardOf(id);
  Aftermath after;
  {
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(id);
    entry.Clear(kHostInTransit);
    --entry.busy;
    after = Settle(shard, id);
  }
  Finish(after);
}

void Residency::EndHold(EntryId id, uint64_t payload_bytes) {
  IndexShard& shard = parts_.index.ShardOf(id);
  Aftermath after;
  {
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(id);
    IBID_CHECK(entry.holds > 0) << "entry " << id;
    if (--entry.holds == 0) parts_.counters.pinned_bytes -= static_cast<int64_t>(payload_bytes);
    after = Settle(shard, id);
  }
  Finish(after);
}

void Residency::EndHolds(const HeldBlocks& blocks) {
  for (const EntryId id : blocks.ids) EndHold(id, blocks.payload_bytes);
}

BlockTraits Residency::TraitsOf(const IndexEntry& entry, const NamespaceInfo& ns) const {
  BlockTraits traits;
  traits.fingerprint = parts_.book.FingerprintOf(entry.key);
  traits.parent = entry.parent;
  traits.position = entry.details().position;
  traits.block_tokens = ns.layout.block_tokens;
  traits.is_tail = entry.details().token_count < ns.layout.block_tokens;
  return traits;
}

// By the mean size of the blocks that are there. An empty tier says nothing: what it had holds on.
void Residency::UpdateCapacities() {
  const auto update = [this](TierName tier, const ExtentAllocator::Usage& usage) {
    if (usage.slots_count == 0) return;
    const uint64_t slot_bytes = std::max<uint64_t>(1, usage.used_bytes / usage.slots_count);
    parts_.book.SetCapacity(tier, usage.total_bytes / slot_bytes);
  };
  update(TierName::kHost, parts_.arena->usage());
  if (parts_.disk != nullptr) update(TierName::kDisk, parts_.disk->usage());
  if (parts_.gpu != nullptr) update(TierName::kGpu, parts_.gpu->usage());
}

EntryId Residency::RefParent(const NamespaceInfo& ns, const BlockKey& parent, uint32_t position) {
  if (position == 0 || parent == RootParent(ns.id)) return kNoEntry;
  IndexShard& shard = parts_.index.ShardOf(parent);
  MutexLock lock(shard.mutex);
  EntryId id = shard.Find(ns.number, parent);
  if (id == kNoEntry) id = shard.Insert(ns.number, parent);
  IndexEntry& entry = shard.Get(id);
  if (!entry.Has(kPositionKnown)) {
    entry.Set(kPositionKnown);
    entry.details().position = position - 1;
  }
  // Positions that fall strictly make a cycle of parents impossible, whatever clients claim.
  if (entry.details().position + 1 != position) return kNoEntry;
  ++entry.refs;
  return id;
}

bool Residency::Enter(TierName tier, EntryId id, EntryId parent, const NamespaceInfo& ns,
                      absl::FunctionRef<uint32_t()> evict_own) {
  bool fits = parts_.book.Insert(tier, id, parent, ns.slot_pages, ns.owner());
  bool can_fit = fits || parts_.book.CanFitQuota(tier, id, ns.slot_pages);
  // A quota that was lowered is reached step by step: each block that comes lets go of at most as
  // much as two of its size.
  for (uint64_t freed_pages = 0; can_fit && !fits && freed_pages < 2 * uint64_t{ns.slot_pages};) {
    const uint32_t pages = evict_own();
    freed_pages += pages;
    can_fit = pages > 0;
    fits = parts_.book.FitsQuota(tier, id);
  }
  if (fits || can_fit) return true;
  LeaveUnseen(tier, id, parent, ns);
  return false;
}

bool Residency::EnterHost(EntryId id, EntryId parent, const NamespaceInfo& ns, Room room) {
  return Enter(TierName::kHost, id, parent, ns, [&]() -> uint32_t {
    if (room == Room::kFreeOnly) return 0;
    return EvictOneFromHost(room == Room::kEvictClean, id).value_or(0);
  });
}

std::optional<uint32_t> Residency::AllocateHost(uint32_t slot_pages, EntryId owner, Room room) {
  std::optional<uint32_t> page = parts_.arena->Allocate(slot_pages, owner);
  if (page.has_value() || room == Room::kFreeOnly) return page;
  // Enough to empty two extents of any size in use, whoever else takes what this thread frees.
  const uint32_t tries_max = 2 * parts_.arena->slots_per_extent_max() + 64;
  std::optional<absl::Time> waits_until;
  for (uint32_t i = 0; i < tries_max; ++i) {
    const std::optional<uint32_t> freed_pages = EvictOneFromHost(room == Room::kEvictClean);
    if (freed_pages.value_or(slot_pages) == slot_pages) {
      page = parts_.arena->Allocate(slot_pages, owner);
    } else {
      if (!waits_until.has_value()) waits_until = SteadyClock().Now() + kClearingWaitMax;
      page = AllocateByClearing(*freed_pages, slot_pages, owner, *waits_until);
    }
    if (page.has_value() || !freed_pages.has_value()) return page;
  }
  return std::nullopt;
}

std::optional<uint32_t> Residency::EvictOneFromHost(bool clean_only, EntryId beside) {
  while (true) {
    const EntryId id = beside == kNoEntry ? parts_.book.TakeVictim(TierName::kHost)
                                          : parts_.book.TakeVictimBeside(TierName::kHost, beside);
    if (id == kNoEntry) return std::nullopt;
    Aftermath after;
    after.id = id;
    EvictionReason reason = EvictionReason::kRoom;
    {
      IndexShard& shard = parts_.index.ShardOf(id);
      MutexLock lock(shard.mutex);
      IndexEntry& entry = shard.Get(id);
      // Not there: someone else is taking it out.
      if (!entry.is_in_host() || entry.Has(kDoomed)) continue;
      if (entry.is_in_use()) {
        entry.Set(kParkedHost);
        continue;
      }
      const bool is_last_copy = !entry.is_on_disk() && !entry.is_in_gpu();
      if (clean_only && is_last_copy) {
        after.put_back_host = true;
      } else {
        reason = is_last_copy ? EvictionReason::kLost : EvictionReason::kRoom;
        after.is_eviction = true;
        TakeHostCopy(entry, &after);
        parts_.events.TellLeft(entry, TierName::kHost);
      }
    }
    if (after.put_back_host) {
      Finish(after);
      return std::nullopt;
    }
    Prefetch(after.parent);
    const uint32_t slot_pages = parts_.arena->SlotPages(after.host_page);
    Finish(after);
    parts_.counters.CountEviction(TierName::kHost, ReasonOf(reason, beside != kNoEntry));
    return slot_pages;
  }
}

void Residency::EvictDemoted(EntryId id) {
  Aftermath after;
  after.id = id;
  {
    IndexShard& shard = parts_.index.ShardOf(id);
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(id);
    if (entry.is_in_host() && entry.is_on_disk() && !entry.is_in_use() && !entry.Has(kDoomed)) {
      after.is_eviction = true;
      TakeHostCopy(entry, &after);
      parts_.events.TellLeft(entry, TierName::kHost);
    } else if (entry.is_in_use()) {
      entry.Set(kParkedHost);
    } else {
      after.put_back_host = true;
    }
  }
  if (after.took_host) {
    parts_.counters.CountEviction(TierName::kHost, EvictionReason::kDemoted);
  }
  Finish(after);
}

void Residency::EndDemotion(EntryId id, const NamespaceInfo& ns) {
  EvictDemoted(id);
  CountDemoting(ns, -int64_t{ns.slot_pages});
}

void Residency::CountDemoting(const NamespaceInfo& ns, int64_t pages) {
  MutexLock lock(demoting_mutex_);
  demoting_bytes_ += static_cast<uint64_t>(pages) * kPageBytes;
  // A namespace may have got its owner meanwhile: nobody has fewer than none.
  int64_t& of_owner = demoting_pages_of_[ns.owner()];
  of_owner = std::max(int64_t{0}, of_owner + pages);
}

bool Residency::DemotesAhead() const {
  return parts_.disk != nullptr && parts_.options.disk_write == DiskWriteMode::kOnDemotion &&
         parts_.disk->health().is_writable() && !parts_.disk_queue.is_paused();
}

// One for each that comes keeps the balance, until half of the quota is on its way to disk: what
// waits for a slow disk cannot make room.
void Residency::DemoteAheadOf(EntryId id, const NamespaceInfo& ns) {
  if (!DemotesAhead() ||
      !parts_.book.IsNearQuota(TierName::kHost, id, ns.slot_pages, kDemoteAheadDivisor)) {
    return;
  }
  {
    const uint64_t half = parts_.tenants.QuotaOf(ns.owner()).host_bytes_max / 2;
    MutexLock lock(demoting_mutex_);
    if (static_cast<uint64_t>(demoting_pages_of_[ns.owner()]) * kPageBytes >= half) return;
  }
  const EntryId victim = parts_.book.TakeVictimBeside(TierName::kHost, id);
  uint64_t bytes = 0;
  if (victim != kNoEntry) (void)DemoteOne(victim, &bytes);
}

void Residency::DemoteAhead() {
  if (!DemotesAhead()) return;
  const ExtentAllocator::Usage usage = parts_.arena->usage();
  const uint64_t wanted_bytes = usage.total_bytes - usage.total_bytes / kDemoteAheadDivisor;
  uint64_t done_bytes = demoting_bytes_.load();
  while (usage.used_bytes > wanted_bytes + done_bytes) {
    const EntryId id = parts_.book.TakeVictim(TierName::kHost);
    uint64_t bytes = 0;
    if (id == kNoEntry || !DemoteOne(id, &bytes)) return;
    done_bytes += bytes;
  }
}

bool Residency::WritesOnUse() const {
  return parts_.disk != nullptr && parts_.options.disk_write != DiskWriteMode::kOnDemotion &&
         parts_.disk_queue.has_room();
}

bool Residency::IsUnwritten(const IndexEntry& entry) {
  constexpr uint16_t kUnderWay = kWriteQueued | kWriting | kDiskUnsettled | kDoomed;
  return entry.is_in_host() && !entry.is_on_disk() && (entry.flags & kUnderWay) == 0;
}

void Residency::WriteUsed(EntryId id, const NamespacePtr& ns) {
  if (!WritesOnUse()) return;
  {
    IndexShard& shard = parts_.index.ShardOf(id);
    MutexLock lock(shard.mutex);
    if (!ClaimWrite(shard.Get(id))) return;
  }
  QueueWrite(id, ns);
}

bool Residency::ClaimWrite(IndexEntry& entry) {
  if (!IsUnwritten(entry)) return false;
  entry.Set(kWriteQueued);
  ++entry.refs;  // the disk writer's
  return true;
}

void Residency::QueueWrite(EntryId id, const NamespacePtr& ns) {
  if (parts_.disk->health().is_writable() &&
      parts_.disk_queue.PushWrite({id, ns, /*evict_after=*/false, nullptr})) {
    return;
  }
  {
    IndexShard& shard = parts_.index.ShardOf(id);
    MutexLock lock(shard.mutex);
    shard.Get(id).Clear(kWriteQueued);
  }
  DropRef(id);
}

// A block that was committed in the moment in which its namespace was closed. The caller has a
// reference.
void Residency::DropOrphan(EntryId id) {
  IndexShard& shard = parts_.index.ShardOf(id);
  Aftermath after;
  {
    MutexLock lock(shard.mutex);
    if (shard.Get(id).Has(kMapped)) after = Remove(shard, id);
  }
  if (after.id != kNoEntry) Finish(after);
  DropRef(id);
}

// Evicts a victim that is on disk, else queues it to be written first; `bytes` is what becomes free
// by it. False when the queue is full.
bool Residency::DemoteOne(EntryId id, uint64_t* bytes) {
  uint32_t ns_number = 0;
  bool is_clean = false;
  {
    IndexShard& shard = parts_.index.ShardOf(id);
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(id);
    if (!entry.is_in_host() || entry.Has(kDoomed)) return true;
    if (entry.is_in_use()) {
      entry.Set(kParkedHost);
      return true;
    }
    is_clean = entry.is_on_disk();
    ns_number = entry.ns;
    ++entry.refs;
  }
  const NamespacePtr ns = parts_.namespaces.Find(ns_number);
  if (ns == nullptr) {
    DropOrphan(id);
    return true;
  }
  bool is_accepted = true;
  *bytes = uint64_t{ns->slot_pages} * kPageBytes;
  if (is_clean) {
    EvictDemoted(id);
  } else {
    CountDemoting(*ns, ns->slot_pages);
    is_accepted = parts_.disk_queue.PushWrite({id, ns, /*evict_after=*/true, nullptr});
    if (is_accepted) return true;  // the reference is the writer's
    CountDemoting(*ns, -int64_t{ns->slot_pages});
    parts_.book.PutBack(TierName::kHost, id);
  }
  DropRef(id);
  return is_accepted;
}

// Two at once would count the same free slots as room for what they move, and who went on evicting
// meanwhile would evict for nothing. Holds no lock while it waits: moves wait for nobody.
std::optional<uint32_t> Residency::AllocateByClearing(uint32_t victim_pages, uint32_t slot_pages,
                                                      EntryId owner, absl::Time until) {
  {
    const SteadyClock clock;
    MutexLock lock(clearing_mutex_);
    while (is_clearing_) {
      const absl::Duration left = until - clock.Now();
      if (left <= absl::ZeroDuration()) return std::nullopt;
      clearing_ended_.WaitFor(clearing_mutex_, left);
    }
    is_clearing_ = true;
  }
  std::optional<uint32_t> page = parts_.arena->Allocate(slot_pages, owner);
  if (!page.has_value()) {
    ClearHostExtent(victim_pages, slot_pages);
    page = parts_.arena->Allocate(slot_pages, owner);
  }
  {
    MutexLock lock(clearing_mutex_);
    is_clearing_ = false;
  }
  clearing_ended_.NotifyOne();
  return page;
}

// Moves the blocks of the sparsest extent of one slot size into free slots of that size, so that
// the extent can be cut anew. Nothing leaves the tier by it, so prefixes keep no holes.
void Residency::ClearHostExtent(uint32_t victim_pages, uint32_t wanted_pages) {
  std::vector<uint32_t> tried;
  for (int i = 0; i < kClearTriesMax; ++i) {
    const auto clearing = parts_.arena->BeginClear(victim_pages, wanted_pages, tried);
    if (!clearing.has_value()) return;
    bool is_clear = true;
    for (const ExtentAllocator::Slot& slot : clearing->slots) {
      is_clear = MoveInHost(slot.owner, slot.page, victim_pages);
      if (!is_clear) break;
    }
    parts_.arena->EndClear(clearing->extent);
    if (is_clear) return;
    tried.push_back(clearing->extent);
  }
}

bool Residency::MoveInHost(EntryId id, uint32_t from, uint32_t slot_pages) {
  IndexShard& shard = parts_.index.ShardOf(id);
  {
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(id);
    if (entry.host_page != from) return true;  // it has left by itself
    if (entry.is_filling() || entry.is_in_use() || entry.Has(kDoomed)) return false;
    ++entry.busy;
  }
  const std::optional<uint32_t> to = parts_.arena->Allocate(slot_pages, id);
  bool is_moved = false;
  if (to.has_value()) {
    const uint64_t bytes = uint64_t{slot_pages} * kPageBytes;
    std::memcpy(parts_.arena->View(*to, bytes).data(), parts_.arena->View(from, bytes).data(),
                bytes);
  }
  Aftermath after;
  {
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(id);
    // A reader that came meanwhile looks at the old slot.
    is_moved = to.has_value() && entry.holds == 0 && entry.busy == 1 && !entry.Has(kDoomed);
    if (is_moved) entry.host_page = *to;
    --entry.busy;
    after = Settle(shard, id);
  }
  Finish(after);
  if (is_moved) {
    parts_.arena->Free(from);
    parts_.counters.moved_blocks.Add();
  } else if (to.has_value()) {
    parts_.arena->Free(*to);
  }
  return is_moved;
}

}  // namespace ibid
