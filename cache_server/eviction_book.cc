// Invariant: a block is deferred in a tier only if, when it was taken, another tier had a child of
// it and none had itself. Both ends of that condition undo the deferral: a copy that comes to
// another tier, a child that leaves one. A block has one owner in all tiers.
#include "cache_server/eviction_book.h"

#include <algorithm>
#include <cstring>

#include "core/random_id.h"

namespace ibid {
namespace {

// Bounds the search for an inner block that another tier has too.
constexpr int kInnerTriesMax = 64;

constexpr TierPages kNoQuotas = {EvictionTier::kNoQuota, EvictionTier::kNoQuota,
                                 EvictionTier::kNoQuota};

KeepPriority InGpu(KeepPriority priority) { return std::min(priority, KeepPriority::kHigh); }

}  // namespace

EvictionBook::EvictionBook(absl::string_view policy_name)
    : seed_(RandomId()),
      tiers_{std::make_unique<EvictionTier>(policy_name, &owners_),
             std::make_unique<EvictionTier>(policy_name, &owners_),
             std::make_unique<EvictionTier>(policy_name, &owners_)} {}

bool EvictionBook::IsElsewhere(TierName tier, EntryId b) {
  for (int i = 0; i < kTiersCount; ++i) {
    if (i != static_cast<int>(tier) && tiers_[i]->contains(b)) return true;
  }
  return false;
}

bool EvictionBook::HasChildElsewhere(TierName tier, EntryId b) {
  for (int i = 0; i < kTiersCount; ++i) {
    if (i != static_cast<int>(tier) && tiers_[i]->children_count(b) > 0) return true;
  }
  return false;
}

void EvictionBook::UndeferElsewhere(TierName tier, EntryId b) {
  for (int i = 0; i < kTiersCount; ++i) {
    if (i != static_cast<int>(tier)) tiers_[i]->Undefer(b);
  }
}

uint64_t EvictionBook::FingerprintOf(const BlockKey& key) const {
  uint64_t words[2];
  std::memcpy(words, key.digest.data(), sizeof(words));
  const unsigned __int128 product =
      static_cast<unsigned __int128>(words[0] ^ seed_) * (words[1] ^ 0x9E3779B97F4A7C15u);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

void EvictionBook::SetCapacity(TierName tier, uint64_t blocks) {
  MutexLock lock(mutex_);
  Of(tier).SetCapacity(blocks);
}

void EvictionBook::SetRoom(TierName tier, uint64_t pages) {
  MutexLock lock(mutex_);
  Of(tier).SetRoom(pages);
}

bool EvictionBook::Insert(TierName tier, EntryId b, EntryId parent, uint32_t slot_pages,
                          OwnerId owner) {
  MutexLock lock(mutex_);
  if (!IsElsewhere(tier, b)) owners_.Set(b, owner);
  // The gpu tier is told of priorities with the blocks that have one: most never come there.
  if (tier == TierName::kGpu) {
    Of(tier).SetPriority(b, InGpu(Of(TierName::kHost).priority(b)), slot_pages);
  }
  const bool fits = Of(tier).Insert(b, parent, slot_pages);
  UndeferElsewhere(tier, b);
  return fits;
}

bool EvictionBook::SetQuotas(uint64_t version, std::span<const TierPages> quotas) {
  MutexLock lock(mutex_);
  if (version <= quotas_version_) return false;
  quotas_version_ = version;
  quotas_.resize(std::max(quotas_.size(), quotas.size()), kNoQuotas);
  bool must_move = false;
  for (size_t owner = 0; owner < quotas_.size(); ++owner) {
    const TierPages& pages = owner < quotas.size() ? quotas[owner] : kNoQuotas;
    for (int tier = 0; tier < kTiersCount; ++tier) {
      if (quotas_[owner][tier] == pages[tier]) continue;
      must_move |= tiers_[tier]->SetQuota(static_cast<OwnerId>(owner), pages[tier]);
    }
    quotas_[owner] = pages;
  }
  return must_move;
}

void EvictionBook::Move(EntryId b, OwnerId owner, uint32_t slot_pages, const BlockTraits& traits) {
  MutexLock lock(mutex_);
  for (const auto& tier : tiers_) tier->Move(b, owner, slot_pages, traits);
  owners_.Set(b, owner);
}

bool EvictionBook::FitsQuota(TierName tier, EntryId b) {
  MutexLock lock(mutex_);
  return Of(tier).FitsQuota(b);
}

bool EvictionBook::IsNearQuota(TierName tier, EntryId b, uint32_t slot_pages, uint64_t divisor) {
  MutexLock lock(mutex_);
  const EvictionShare& share = Of(tier).ShareOf(b);
  return share.quota_pages != EvictionTier::kNoQuota &&
         share.used_pages + slot_pages > share.quota_pages - share.quota_pages / divisor;
}

bool EvictionBook::CanFitQuota(TierName tier, EntryId b, uint32_t slot_pages) {
  MutexLock lock(mutex_);
  return slot_pages <= Of(tier).ShareOf(b).quota_pages;
}

std::vector<TierPages> EvictionBook::UsedPages() {
  std::vector<TierPages> used;
  MutexLock lock(mutex_);
  for (int tier = 0; tier < kTiersCount; ++tier) {
    const std::span<const uint64_t> pages = tiers_[tier]->used_pages();
    if (used.size() < pages.size()) used.resize(pages.size(), TierPages{});
    for (size_t owner = 0; owner < pages.size(); ++owner) used[owner][tier] = pages[owner];
  }
  return used;
}

uint64_t EvictionBook::ShareBlocks(TierName tier, EntryId b) {
  MutexLock lock(mutex_);
  return Of(tier).ShareOf(b).blocks_count;
}

void EvictionBook::SetPriority(EntryId b, KeepPriority priority, uint32_t slot_pages) {
  MutexLock lock(mutex_);
  Of(TierName::kHost).SetPriority(b, priority, slot_pages);
  Of(TierName::kDisk).SetPriority(b, priority, slot_pages);
  EvictionTier& gpu = Of(TierName::kGpu);
  if (gpu.contains(b)) gpu.SetPriority(b, InGpu(priority), slot_pages);
}

KeepPriority EvictionBook::priority(TierName tier, EntryId b) {
  MutexLock lock(mutex_);
  return Of(tier).priority(b);
}

uint64_t EvictionBook::kept_pages(TierName tier) {
  MutexLock lock(mutex_);
  return Of(tier).kept_pages();
}

void EvictionBook::Admit(TierName tier, EntryId b, const BlockTraits& traits) {
  MutexLock lock(mutex_);
  Of(tier).Admit(b, traits);
}

void EvictionBook::Remove(TierName tier, EntryId b, EntryId parent, const LeavingBlock& leaving) {
  MutexLock lock(mutex_);
  Of(tier).Remove(b, parent, leaving);
  if (parent != kNoEntry && Of(tier).children_count(parent) == 0) UndeferElsewhere(tier, parent);
}

void EvictionBook::PutBack(TierName tier, EntryId b) {
  MutexLock lock(mutex_);
  Of(tier).PutBack(b);
}

void EvictionBook::Use(EntryId b) {
  MutexLock lock(mutex_);
  for (const auto& tier : tiers_) tier->Use(b);
}

void EvictionBook::Lookup(std::span<const ChainBlock> chain, const LookupTraits& traits,
                          OwnerId owner) {
  for (const auto& tier : tiers_) {
    MutexLock lock(mutex_);
    tier->Lookup(chain, traits, owner);
  }
}

EntryId EvictionBook::TakeVictim(TierName tier, KeepPriority priority_max) {
  MutexLock lock(mutex_);
  for (const KeepPriority priority :
       {KeepPriority::kNone, KeepPriority::kLow, KeepPriority::kHigh}) {
    if (priority > priority_max) break;
    const EntryId b = TakeOfPriority(tier, priority);
    if (b != kNoEntry) return b;
  }
  return kNoEntry;
}

EntryId EvictionBook::TakeVictimBeside(TierName tier, EntryId beside, KeepPriority priority_max) {
  MutexLock lock(mutex_);
  for (const KeepPriority priority :
       {KeepPriority::kNone, KeepPriority::kLow, KeepPriority::kHigh}) {
    if (priority > priority_max) break;
    const EntryId b = TakeOfShare(tier, Of(tier).ShareOf(beside), priority);
    if (b != kNoEntry) return b;
  }
  return kNoEntry;
}

EntryId EvictionBook::TakeOfPriority(TierName tier_name, KeepPriority priority) {
  EvictionTier& tier = Of(tier_name);
  EvictionShare& first = tier.FirstToLose();
  EntryId b = TakeOfShare(tier_name, first, priority);
  if (b != kNoEntry || !tier.has_own_shares()) return b;
  for (EvictionShare* const share : tier.SharesByUse()) {
    if (share != &first) b = TakeOfShare(tier_name, *share, priority);
    if (b != kNoEntry) break;
  }
  return b;
}

EntryId EvictionBook::TakeOfShare(TierName tier_name, EvictionShare& share, KeepPriority priority) {
  for (EntryId b = share.TakeVictim(priority); b != kNoEntry; b = share.TakeVictim(priority)) {
    if (IsElsewhere(tier_name, b) || !HasChildElsewhere(tier_name, b)) return b;
    share.Defer(b);
  }
  for (int i = 0; tier_name != TierName::kDisk && i < kInnerTriesMax; ++i) {
    const EntryId b = share.TakeInner(priority);
    if (b == kNoEntry) break;
    if (IsElsewhere(tier_name, b)) return b;
    share.PutBackInner(b);
  }
  return share.TakeDeferred(priority);
}

}  // namespace ibid
