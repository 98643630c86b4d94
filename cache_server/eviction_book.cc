// Invariant: a block is deferred in a tier only if, when it was taken, the other tier had a child
// of it and not itself. Both ends of that condition undo the deferral: a copy that comes to the
// other tier, a child that leaves it.
#include "cache_server/eviction_book.h"

#include <cstring>

#include "core/random_id.h"

namespace ibid {
namespace {

// Bounds the search for an inner block that the disk has too.
constexpr int kInnerTriesMax = 64;

}  // namespace

EvictionBook::EvictionBook(absl::string_view policy_name)
    : seed_(RandomId()),
      tiers_{std::make_unique<EvictionTier>(policy_name),
             std::make_unique<EvictionTier>(policy_name)} {}

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

void EvictionBook::Insert(TierName tier, EntryId b, EntryId parent) {
  MutexLock lock(mutex_);
  Of(tier).Insert(b, parent);
  OtherThan(tier).Undefer(b);
}

void EvictionBook::Admit(TierName tier, EntryId b, const BlockTraits& traits) {
  MutexLock lock(mutex_);
  Of(tier).Admit(b, traits);
}

void EvictionBook::Remove(TierName tier, EntryId b, EntryId parent, const LeavingBlock& leaving) {
  MutexLock lock(mutex_);
  Of(tier).Remove(b, parent, leaving);
  if (parent != kNoEntry && Of(tier).children_count(parent) == 0) OtherThan(tier).Undefer(parent);
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

EntryId EvictionBook::TakeVictim(TierName tier_name) {
  MutexLock lock(mutex_);
  EvictionTier& tier = Of(tier_name);
  const EvictionTier& other = OtherThan(tier_name);
  for (EntryId b = tier.TakeVictim(); b != kNoEntry; b = tier.TakeVictim()) {
    if (other.contains(b) || other.children_count(b) == 0) return b;
    tier.Defer(b);
  }
  for (int i = 0; tier_name == TierName::kHost && i < kInnerTriesMax; ++i) {
    const EntryId b = tier.TakeInner();
    if (b == kNoEntry) break;
    if (other.contains(b)) return b;
    tier.PutBackInner(b);
  }
  return tier.TakeDeferred();
}

}  // namespace ibid
