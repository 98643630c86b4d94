// Invariant: a block is deferred in a tier only if, when it was taken, another tier had a child of
// it and none had itself. Both ends of that condition undo the deferral: a copy that comes to
// another tier, a child that leaves one.
#include "cache_server/eviction_book.h"

#include <cstring>

#include "core/random_id.h"

namespace ibid {
namespace {

// Bounds the search for an inner block that another tier has too.
constexpr int kInnerTriesMax = 64;

}  // namespace

EvictionBook::EvictionBook(absl::string_view policy_name)
    : seed_(RandomId()),
      tiers_{std::make_unique<EvictionTier>(policy_name),
             std::make_unique<EvictionTier>(policy_name),
             std::make_unique<EvictionTier>(policy_name)} {}

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

void EvictionBook::Insert(TierName tier, EntryId b, EntryId parent, uint32_t slot_pages) {
  MutexLock lock(mutex_);
  Of(tier).Insert(b, parent, slot_pages);
  UndeferElsewhere(tier, b);
}

void EvictionBook::SetPriority(EntryId b, KeepPriority priority, uint32_t slot_pages) {
  MutexLock lock(mutex_);
  Of(TierName::kHost).SetPriority(b, priority, slot_pages);
  Of(TierName::kDisk).SetPriority(b, priority, slot_pages);
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

void EvictionBook::Lookup(std::span<const ChainBlock> chain, uint32_t block_tokens) {
  for (const auto& tier : tiers_) {
    MutexLock lock(mutex_);
    tier->Lookup(chain, block_tokens);
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

EntryId EvictionBook::TakeOfPriority(TierName tier_name, KeepPriority priority) {
  EvictionTier& tier = Of(tier_name);
  for (EntryId b = tier.TakeVictim(priority); b != kNoEntry; b = tier.TakeVictim(priority)) {
    if (IsElsewhere(tier_name, b) || !HasChildElsewhere(tier_name, b)) return b;
    tier.Defer(b);
  }
  for (int i = 0; tier_name != TierName::kDisk && i < kInnerTriesMax; ++i) {
    const EntryId b = tier.TakeInner(priority);
    if (b == kNoEntry) break;
    if (IsElsewhere(tier_name, b)) return b;
    tier.PutBackInner(b);
  }
  return tier.TakeDeferred(priority);
}

}  // namespace ibid
