// Invariant: gpu_page of an entry is set <=> the slot is allocated to it and the gpu policy knows
// it, but for the moments in which the entry is busy on this thread's account.
#include "cache_server/gpu_mover.h"

#include <pthread.h>

#include <algorithm>
#include <future>
#include <utility>

#include "core/check.h"
#include "core/log.h"

namespace ibid {
namespace {

// Between two log lines of one place.
constexpr int64_t kLogPeriodSeconds = 10;
// Copies under way at the same time.
constexpr size_t kBatchMax = 16;
constexpr int kClearTriesMax = 4;

}  // namespace

struct GpuMover::Promotion {
  Wish wish;
  NamespacePtr ns;
  BlockTraits traits;
  uint32_t host_page = kNoPage;
  uint32_t gpu_page = kNoPage;
  std::promise<absl::Status> copied;
};

GpuMover::GpuMover(StoreParts& parts, Residency& residency)
    : parts_(parts), residency_(residency) {}

void GpuMover::Start() {
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "ibid-gpu-move");
}

void GpuMover::Stop() {
  {
    MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  has_wishes_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void GpuMover::Offer(std::span<const EntryId> ids, std::span<const BlockKey> keys) {
  size_t count = 0;
  {
    MutexLock lock(mutex_);
    const size_t room = parts_.options.gpu_promote_queue_max - wishes_.size();
    for (; count < std::min(room, ids.size()); ++count) {
      wishes_.push_back(Wish{ids[count], keys[count]});
    }
    parts_.gpu_moves_waiting += count;
  }
  if (count > 0) has_wishes_.NotifyOne();
  if (count < ids.size()) parts_.counters.skipped_promotions.Add(ids.size() - count);
}

bool GpuMover::WaitUntilIdle(absl::Duration timeout) {
  const SteadyClock clock;
  const absl::Time until = clock.Now() + timeout;
  MutexLock lock(mutex_);
  while (!wishes_.empty() || taken_count_ > 0) {
    const absl::Duration left = until - clock.Now();
    if (left <= absl::ZeroDuration()) return false;
    idle_.WaitFor(mutex_, left);
  }
  return true;
}

std::vector<GpuMover::Wish> GpuMover::TakeWishes() {
  std::vector<Wish> wishes;
  MutexLock lock(mutex_);
  parts_.gpu_moves_waiting -= taken_count_;
  taken_count_ = 0;  // those taken last are granted
  if (wishes_.empty()) idle_.NotifyAll();
  while (wishes_.empty() && !is_stopping_) has_wishes_.Wait(mutex_);
  if (is_stopping_) return wishes;
  for (; !wishes_.empty() && wishes.size() < kBatchMax; wishes_.pop_front()) {
    wishes.push_back(wishes_.front());
  }
  taken_count_ = wishes.size();
  return wishes;
}

void GpuMover::Run() {
  for (auto wishes = TakeWishes(); !wishes.empty(); wishes = TakeWishes()) {
    Promote(std::move(wishes));
  }
}

void GpuMover::Promote(std::vector<Wish> wishes) {
  std::vector<Promotion> promotions(wishes.size());
  std::vector<Promotion*> begun;
  for (size_t i = 0; i < wishes.size(); ++i) {
    promotions[i].wish = wishes[i];
    if (!Begin(promotions[i])) continue;
    begun.push_back(&promotions[i]);
    const uint64_t bytes = uint64_t{promotions[i].ns->slot_pages} * kPageBytes;
    parts_.gpu->Write(promotions[i].gpu_page, parts_.arena->View(promotions[i].host_page, bytes),
                      [&copied = promotions[i].copied](absl::Status status) {
                        copied.set_value(std::move(status));
                      });
  }
  for (Promotion* promotion : begun) End(*promotion);
}

// Makes the entry busy, so that its host copy stays, and finds it a slot. False when there is
// nothing to do.
bool GpuMover::Begin(Promotion& promotion) {
  const EntryId id = promotion.wish.id;
  IndexShard& shard = parts_.index.ShardOf(id);
  uint32_t ns_number = 0;
  {
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(id);
    // Others may read the host copy meanwhile; who wants to move it sees that the entry is busy.
    if (!entry.Has(kMapped) || entry.key != promotion.wish.key || !entry.is_in_host() ||
        entry.is_in_gpu() || entry.Has(kGpuUnsettled)) {
      return false;
    }
    ++entry.busy;
    entry.Set(kGpuUnsettled);
    promotion.host_page = entry.host_page;
    ns_number = entry.ns;
  }
  promotion.ns = parts_.namespaces.Find(ns_number);
  if (promotion.ns != nullptr && parts_.gpu->CanEverFit(promotion.ns->slot_pages)) {
    {
      MutexLock lock(shard.mutex);
      promotion.traits = residency_.TraitsOf(shard.Get(id), *promotion.ns);
    }
    const EntryId parent = promotion.traits.parent;
    if (residency_.Enter(TierName::kGpu, id, parent, *promotion.ns, [&] {
          const KeepPriority priority = parts_.book.priority(TierName::kGpu, id);
          return EvictOne(priority, id).value_or(0);
        })) {
      const auto page = AllocateGpu(promotion.ns->slot_pages, id);
      if (page.has_value()) {
        promotion.gpu_page = *page;
        return true;
      }
      residency_.LeaveUnseen(TierName::kGpu, id, parent, *promotion.ns);
    }
  }
  {
    MutexLock lock(shard.mutex);
    shard.Get(id).Clear(kGpuUnsettled);
  }
  residency_.EndBusy(id);
  return false;
}

void GpuMover::End(Promotion& promotion) {
  const EntryId id = promotion.wish.id;
  const absl::Status status = promotion.copied.get_future().get();
  if (status.ok()) {
    parts_.book.Admit(TierName::kGpu, id, promotion.traits);
    parts_.counters.OnCopyIn(TierName::kGpu, id, *parts_.clock);
    parts_.counters.gpu_promoted_blocks.Add();
  } else {
    IBID_LOG_EVERY(kLogPeriodSeconds, warn, "gpu tier: {}", status.message());
    residency_.LeaveUnseen(TierName::kGpu, id, promotion.traits.parent, *promotion.ns);
    parts_.gpu->Free(promotion.gpu_page);
  }
  {
    IndexShard& shard = parts_.index.ShardOf(id);
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(id);
    entry.Clear(kGpuUnsettled);
    if (status.ok()) {
      // Should it be doomed by now, the last Settle takes this copy out too.
      entry.gpu_page = promotion.gpu_page;
      parts_.events.TellCame(entry, TierName::kGpu, BlockChange::kPromoted);
    }
  }
  residency_.EndBusy(id);
}

std::optional<uint32_t> GpuMover::AllocateGpu(uint32_t slot_pages, EntryId owner) {
  std::optional<uint32_t> page = parts_.gpu->Allocate(slot_pages, owner);
  if (page.has_value()) return page;
  // A copy up here is a gain in speed only: none of a higher priority leaves for it.
  const KeepPriority priority = parts_.book.priority(TierName::kGpu, owner);
  const uint32_t tries_max = 2 * parts_.gpu->slots_per_extent_max() + 64;
  for (uint32_t i = 0; i < tries_max && !page.has_value(); ++i) {
    const std::optional<uint32_t> freed_pages = EvictOne(priority);
    if (!freed_pages.has_value()) return std::nullopt;
    if (*freed_pages != slot_pages) ClearExtent(*freed_pages, slot_pages);
    page = parts_.gpu->Allocate(slot_pages, owner);
  }
  return page;
}

std::optional<uint32_t> GpuMover::EvictOne(KeepPriority priority_max, EntryId beside) {
  while (true) {
    const EntryId id = beside == kNoEntry
                           ? parts_.book.TakeVictim(TierName::kGpu, priority_max)
                           : parts_.book.TakeVictimBeside(TierName::kGpu, beside, priority_max);
    if (id == kNoEntry) return std::nullopt;
    IndexShard& shard = parts_.index.ShardOf(id);
    uint32_t gpu_page = kNoPage;
    uint32_t ns_number = 0;
    EntryId parent = kNoEntry;
    LeavingBlock leaving;
    bool has_other_copy = false;
    {
      MutexLock lock(shard.mutex);
      IndexEntry& entry = shard.Get(id);
      if (!entry.is_in_gpu() || entry.Has(kDoomed)) continue;
      if (entry.is_in_use()) {
        entry.Set(kParkedGpu);
        continue;
      }
      ++entry.busy;
      has_other_copy = entry.is_in_host() || entry.is_on_disk();
      if (!has_other_copy) entry.Set(kHostInTransit);
      gpu_page = entry.gpu_page;
      ns_number = entry.ns;
      parent = entry.parent;
      leaving = {parts_.book.FingerprintOf(entry.key), /*is_eviction=*/true};
    }
    EvictionReason reason = EvictionReason::kRoom;
    bool has_room_below = true;
    if (!has_other_copy) {
      const NamespacePtr ns = parts_.namespaces.Find(ns_number);
      const absl::Status copied = ns == nullptr
                                      ? absl::NotFoundError("")
                                      : CopyToHost(id, gpu_page, *ns, Residency::Room::kEvict);
      reason = copied.ok() ? EvictionReason::kDemoted : EvictionReason::kLost;
      has_room_below = !absl::IsResourceExhausted(copied);
    }
    bool is_read = false;
    {
      MutexLock lock(shard.mutex);
      IndexEntry& entry = shard.Get(id);
      entry.Clear(kHostInTransit);
      is_read = entry.busy > 1;  // somebody came meanwhile who may be reading the slot
      if (is_read || !has_room_below) {
        entry.Set(kParkedGpu);
      } else {
        entry.gpu_page = kNoPage;
        parts_.events.TellLeft(entry, TierName::kGpu);
      }
    }
    if (is_read || !has_room_below) {
      residency_.EndBusy(id);
      if (!has_room_below) return std::nullopt;  // a last copy is not lost for a second one
      continue;
    }
    leaving.slot_pages = parts_.gpu->SlotPages(gpu_page);
    parts_.book.Remove(TierName::kGpu, id, parent, leaving);
    const uint32_t slot_pages = parts_.gpu->Free(gpu_page);
    parts_.counters.OnCopyOut(TierName::kGpu, id, *parts_.clock);
    parts_.counters.CountEviction(TierName::kGpu, ReasonOf(reason, beside != kNoEntry));
    residency_.EndBusy(id);
    return slot_pages;
  }
}

bool GpuMover::CopyDown(EntryId id) {
  IndexShard& shard = parts_.index.ShardOf(id);
  uint32_t gpu_page = kNoPage;
  uint32_t ns_number = 0;
  {
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(id);
    if (!entry.Has(kMapped) || !entry.is_in_gpu() || entry.is_in_host() || entry.is_on_disk() ||
        entry.busy > 0) {
      return false;
    }
    ++entry.busy;
    entry.Set(kHostInTransit);
    gpu_page = entry.gpu_page;
    ns_number = entry.ns;
  }
  const NamespacePtr ns = parts_.namespaces.Find(ns_number);
  const bool is_copied =
      ns != nullptr && CopyToHost(id, gpu_page, *ns, Residency::Room::kEvictClean).ok();
  {
    MutexLock lock(shard.mutex);
    shard.Get(id).Clear(kHostInTransit);
  }
  if (!is_copied) residency_.EndBusy(id);
  return is_copied;
}

absl::Status GpuMover::CopyToHost(EntryId id, uint32_t gpu_page, const NamespaceInfo& ns,
                                  Residency::Room room) {
  IndexShard& shard = parts_.index.ShardOf(id);
  BlockTraits traits;
  {
    MutexLock lock(shard.mutex);
    traits = residency_.TraitsOf(shard.Get(id), ns);
  }
  const bool has_entered = residency_.EnterHost(id, traits.parent, ns, room);
  std::optional<uint32_t> page;
  if (has_entered) page = residency_.AllocateHost(ns.slot_pages, id, room);
  absl::Status status = absl::ResourceExhaustedError(
      has_entered ? "the host tier has no room" : "its tenant's host_bytes_max has no room");
  if (page.has_value()) {
    const uint64_t bytes = uint64_t{ns.slot_pages} * kPageBytes;
    status = parts_.gpu->Read(gpu_page, parts_.arena->View(*page, bytes));
  }
  if (!status.ok()) {
    IBID_LOG_EVERY(kLogPeriodSeconds, warn, "gpu tier: a block cannot be copied down: {}",
                   status.message());
    if (has_entered) residency_.LeaveUnseen(TierName::kHost, id, traits.parent, ns);
    if (page.has_value()) parts_.arena->Free(*page);
    return status;
  }
  {
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(id);
    entry.host_page = *page;
    parts_.events.TellCame(entry, TierName::kHost, BlockChange::kStored);
  }
  parts_.counters.OnCopyIn(TierName::kHost, id, *parts_.clock);
  parts_.book.Admit(TierName::kHost, id, traits);
  return absl::OkStatus();
}

// As Residency::ClearHostExtent.
void GpuMover::ClearExtent(uint32_t victim_pages, uint32_t wanted_pages) {
  std::vector<uint32_t> tried;
  for (int i = 0; i < kClearTriesMax; ++i) {
    const auto clearing = parts_.gpu->BeginClear(victim_pages, wanted_pages, tried);
    if (!clearing.has_value()) return;
    bool is_clear = true;
    for (const ExtentAllocator::Slot& slot : clearing->slots) {
      is_clear = MoveWithin(slot.owner, slot.page, victim_pages);
      if (!is_clear) break;
    }
    parts_.gpu->EndClear(clearing->extent);
    if (is_clear) return;
    tried.push_back(clearing->extent);
  }
}

bool GpuMover::MoveWithin(EntryId id, uint32_t from, uint32_t slot_pages) {
  IndexShard& shard = parts_.index.ShardOf(id);
  {
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(id);
    if (entry.gpu_page != from || entry.is_in_use() || entry.Has(kDoomed)) return false;
    ++entry.busy;
  }
  const std::optional<uint32_t> to = parts_.gpu->Allocate(slot_pages, id);
  const uint64_t bytes = uint64_t{slot_pages} * kPageBytes;
  bool is_moved = to.has_value() && parts_.gpu->Move(from, *to, bytes).ok();
  if (is_moved) {
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(id);
    // A reader that came meanwhile looks at the old slot.
    is_moved = entry.busy == 1 && entry.holds == 0;
    if (is_moved) entry.gpu_page = *to;
  }
  residency_.EndBusy(id);
  if (is_moved) parts_.counters.moved_blocks.Add();
  if (to.has_value()) parts_.gpu->Free(is_moved ? from : *to);
  return is_moved;
}

}  // namespace ibid
