// Invariants, under mutex_:
// - blocks_ has an element <=> a pin names the block. Its entry has kPinned, counts one reference
//   for it, and has the element's priority in the book.
// - That entry is the mapped one of the key, but for the moment between its removal and Rebind.
// - must_stay_pages_ is the sum over the elements that a pin of kMustStay names: as it counts
// blocks
//   that are not stored too, the copies in a tier never take more.
#include "cache_server/pin_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/host_memory.h"
#include "core/limit.h"

namespace ibid {
namespace {

uint64_t MustStayPagesMax(const BlockStoreOptions& options) {
  uint64_t bytes = options.host_bytes_max;
  if (!options.disk_directory.empty()) {
    bytes = std::min(bytes, options.disk_bytes_max - options.disk_directory_bytes_reserve);
  }
  return bytes / kPageBytes * options.must_stay_percent_max / 100;
}

}  // namespace

KeepPriority PinTable::Pinned::priority() const {
  for (size_t i = pins_count.size() - 1; i > 0; --i) {
    if (pins_count[i] > 0) return static_cast<KeepPriority>(i);
  }
  return KeepPriority::kNone;
}

PinTable::PinTable(const BlockStoreOptions& options, BlockIndex* index, EvictionBook* book,
                   const TenantTable* tenants)
    : must_stay_percent_max_(options.must_stay_percent_max),
      pins_max_(options.pins_max),
      pinned_blocks_max_(options.pinned_blocks_max),
      must_stay_pages_max_(MustStayPagesMax(options)),
      has_disk_(!options.disk_directory.empty()),
      index_(*index),
      book_(*book),
      tenants_(*tenants) {}

PinTable::OwnLimit PinTable::OwnLimitOf(const NamespaceInfo& ns) const {
  const TenantQuota quota = tenants_.QuotaOf(ns.owner());
  const bool is_disk = has_disk_ && quota.disk_bytes_max < quota.host_bytes_max;
  const uint64_t bytes_max = is_disk ? quota.disk_bytes_max : quota.host_bytes_max;
  if (bytes_max == TenantQuota::kNoLimit) return {};
  return {bytes_max / kPageBytes * must_stay_percent_max_ / 100,
          is_disk ? "disk_bytes_max" : "host_bytes_max", bytes_max, tenants_.NameOf(ns.owner())};
}

absl::Status PinTable::CheckLimits(const NamespaceInfo& ns, std::span<const BlockKey> keys,
                                   KeepPriority priority, bool is_new, const OwnLimit& own) const {
  if (is_new && pins_.size() >= pins_max_)
    return LimitReached("too many pins", "pins_max", pins_max_);
  uint64_t new_blocks = 0;
  uint64_t new_pages = 0;
  for (const BlockKey& key : keys) {
    const auto it = blocks_.find({ns.number, key});
    if (it == blocks_.end()) ++new_blocks;
    const bool is_kept = it != blocks_.end() && it->second.priority() == KeepPriority::kMustStay;
    if (priority == KeepPriority::kMustStay && !is_kept) new_pages += ns.slot_pages;
  }
  if (blocks_.size() + new_blocks > pinned_blocks_max_) {
    return LimitReached(
        absl::StrCat("too many pinned blocks: ", blocks_.size(), " and ", new_blocks, " more"),
        "pinned_blocks_max", pinned_blocks_max_);
  }
  return new_pages == 0 ? absl::OkStatus() : CheckMustStay(ns, new_pages, own);
}

absl::Status PinTable::CheckMustStay(const NamespaceInfo& ns, uint64_t new_pages,
                                     const OwnLimit& own) const {
  if (must_stay_pages_ + new_pages > must_stay_pages_max_) {
    return LimitReached(
        absl::StrCat(
            "blocks that must stay have ", must_stay_pages_ * kPageBytes, " bytes and ",
            new_pages * kPageBytes, " more, of ", must_stay_pages_max_ * kPageBytes,
            " that they may take of the smallest tier; unpin some, pin a shorter prefix or "
            "with a lower priority"),
        "must_stay_percent_max", must_stay_percent_max_);
  }
  const auto it = own_must_stay_pages_.find(ns.owner());
  const uint64_t own_pages = it == own_must_stay_pages_.end() ? 0 : it->second;
  if (own_pages + new_pages > own.pages_max) {
    return LimitReached(
        absl::StrCat("tenant \"", own.tenant, "\" has ", own_pages * kPageBytes,
                     " bytes of blocks that must stay, and ", new_pages * kPageBytes, " more, of ",
                     own.pages_max * kPageBytes, " that they may take: ", must_stay_percent_max_,
                     " % of its quota"),
        own.name, own.bytes_max);
  }
  return absl::OkStatus();
}

EntryId PinTable::Bind(uint32_t ns, const BlockKey& key) {
  IndexShard& shard = index_.ShardOf(key);
  MutexLock lock(shard.mutex);
  EntryId id = shard.Find(ns, key);
  if (id == kNoEntry) id = shard.Insert(ns, key);
  IndexEntry& entry = shard.Get(id);
  entry.Set(kPinned);
  ++entry.refs;
  return id;
}

void PinTable::Unbind(EntryId entry) {
  IndexShard& shard = index_.ShardOf(entry);
  MutexLock lock(shard.mutex);
  shard.Get(entry).Clear(kPinned);
}

void PinTable::Count(Pinned& pinned, KeepPriority priority, int by) {
  const KeepPriority before = pinned.priority();
  pinned.pins_count[static_cast<size_t>(priority)] += static_cast<uint32_t>(by);
  const KeepPriority after = pinned.priority();
  if (before == after) return;
  if (before == KeepPriority::kMustStay) {
    must_stay_pages_ -= pinned.slot_pages;
    own_must_stay_pages_[pinned.owner] -= pinned.slot_pages;
  }
  if (after == KeepPriority::kMustStay) {
    must_stay_pages_ += pinned.slot_pages;
    own_must_stay_pages_[pinned.owner] += pinned.slot_pages;
  }
  book_.SetPriority(pinned.entry, after, pinned.slot_pages);
}

absl::Status PinTable::Put(PinId id, const NamespacePtr& ns, std::span<const BlockKey> keys,
                           KeepPriority priority, absl::Time ends_at,
                           std::vector<EntryId>* unpinned) {
  const OwnLimit own = OwnLimitOf(*ns);
  MutexLock lock(mutex_);
  IBID_RETURN_IF_ERROR(CheckLimits(*ns, keys, priority, !pins_.contains(id.value), own));
  Pin pin{ns, priority, ends_at, {}};
  pin.blocks.reserve(keys.size());
  for (const BlockKey& key : keys) {
    const auto [it, is_new] = blocks_.try_emplace({ns->number, key});
    if (is_new) {
      it->second.entry = Bind(ns->number, key);
      it->second.slot_pages = ns->slot_pages;
      it->second.owner = ns->owner();
    }
    Count(it->second, priority, 1);
    pin.blocks.push_back(&*it);
  }
  // After the new one, so that what both name is never without a pin.
  const auto old = pins_.find(id.value);
  if (old != pins_.end()) LetGo(old->second, unpinned);
  pins_[id.value] = std::move(pin);
  pins_count_ = pins_.size();
  return absl::OkStatus();
}

void PinTable::LetGo(const Pin& pin, std::vector<EntryId>* unpinned) {
  for (PinnedBlocks::value_type* const block : pin.blocks) {
    Pinned& pinned = block->second;
    Count(pinned, pin.priority, -1);
    if (pinned.priority() != KeepPriority::kNone) continue;
    Unbind(pinned.entry);
    unpinned->push_back(pinned.entry);
    blocks_.erase(block->first);
  }
}

bool PinTable::Remove(PinId id, std::vector<EntryId>* unpinned) {
  MutexLock lock(mutex_);
  const auto it = pins_.find(id.value);
  if (it == pins_.end()) return false;
  LetGo(it->second, unpinned);
  pins_.erase(it);
  pins_count_ = pins_.size();
  return true;
}

std::vector<PinId> PinTable::Expire(absl::Time now, std::vector<EntryId>* unpinned) {
  std::vector<PinId> over;
  if (pins_count() == 0) return over;
  MutexLock lock(mutex_);
  for (const auto& [id, pin] : pins_) {
    if (pin.ends_at <= now) over.push_back({id});
  }
  for (const PinId id : over) {
    const auto it = pins_.find(id.value);
    LetGo(it->second, unpinned);
    pins_.erase(it);
  }
  pins_count_ = pins_.size();
  return over;
}

bool PinTable::Has(PinId id) const {
  MutexLock lock(mutex_);
  return pins_.contains(id.value);
}

EntryId PinTable::Rebind(uint32_t ns, const BlockKey& key) {
  MutexLock lock(mutex_);
  const auto it = blocks_.find({ns, key});
  if (it == blocks_.end()) return kNoEntry;
  Pinned& pinned = it->second;
  const EntryId found = Bind(ns, key);
  if (found == pinned.entry) return found;  // somebody else was here first: a reference too much
  const EntryId old = std::exchange(pinned.entry, found);
  book_.SetPriority(old, KeepPriority::kNone, pinned.slot_pages);
  book_.SetPriority(found, pinned.priority(), pinned.slot_pages);
  Unbind(old);
  return old;
}

std::optional<PinInfo> PinTable::Describe(PinId id, absl::Time now) const {
  PinInfo info;
  info.id = id;
  MutexLock lock(mutex_);
  const auto it = pins_.find(id.value);
  if (it == pins_.end()) return std::nullopt;
  const Pin& pin = it->second;
  info.ns = pin.ns->id;
  info.priority = pin.priority;
  info.left = std::max(pin.ends_at - now, absl::ZeroDuration());
  info.blocks = pin.blocks.size();
  for (const PinnedBlocks::value_type* block : pin.blocks) {
    IndexShard& shard = index_.ShardOf(block->first.second);
    MutexLock shard_lock(shard.mutex);
    const IndexEntry& entry = shard.Get(block->second.entry);
    if (entry.Has(kDoomed)) continue;
    info.stored_blocks += entry.is_resident() ? 1 : 0;
    info.host_blocks += entry.is_in_host() ? 1 : 0;
    info.disk_blocks += entry.is_on_disk() ? 1 : 0;
  }
  return info;
}

std::vector<PinId> PinTable::ids() const {
  std::vector<PinId> ids;
  MutexLock lock(mutex_);
  for (const auto& [id, pin] : pins_) ids.push_back({id});
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace ibid
