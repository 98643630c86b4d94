// Invariants:
// - A block is in the tier <=> its place is not kOutside.
// - The policy knows a block (OnInsert was called, OnRemove was not) <=> its place is neither
//   kOutside nor kNew.
// - A block in the inner list had a child in the tier when it came there; whoever takes its last
//   child out gives it back to the policy.
// - children_count of a node is the number of blocks in the tier whose parent it is.
#include "core/eviction/eviction_tier.h"

#include <utility>

#include "core/check.h"

namespace ibid {
namespace {

// Blocks of a chain lie anywhere in the array of nodes: they are fetched this far ahead.
constexpr size_t kPrefetchDistance = 12;

}  // namespace

EvictionTier::EvictionTier(absl::string_view policy_name) {
  auto policy = MakeEvictionPolicy(policy_name, lists_);
  IBID_CHECK(policy.ok()) << policy.status().ToString();
  policy_ = *std::move(policy);
}

BlockList* EvictionTier::KeptBackList(Place place) {
  if (place == Place::kInner) return &inner_;
  if (place == Place::kDeferred) return &deferred_;
  return nullptr;
}

bool EvictionTier::IsKnownToPolicy(EntryId b) const {
  const Place place = lists_.PlaceOf(b);
  return place != Place::kOutside && place != Place::kNew;
}

void EvictionTier::EndKeptBack(EntryId b) {
  BlockList* const list = KeptBackList(lists_.PlaceOf(b));
  if (list != nullptr) lists_.Unlink(*list, b, Place::kTaken);
}

void EvictionTier::Insert(EntryId b, EntryId parent) {
  if (parent != kNoEntry) ++lists_.Ensure(parent).children_count;
  BlockNode& node = lists_.Ensure(b);
  IBID_CHECK(node.place == static_cast<uint32_t>(Place::kOutside))
      << "block " << b << " came twice into a tier";
  node.place = static_cast<uint32_t>(Place::kNew);
  node.word = 0;
}

void EvictionTier::Admit(EntryId b, const BlockTraits& traits) {
  if (lists_.PlaceOf(b) != Place::kNew) return;
  policy_->OnInsert(b, traits);
}

void EvictionTier::Lookup(std::span<const ChainBlock> chain, uint32_t block_tokens) {
  for (size_t i = 0; i < chain.size(); ++i) {
    if (i + kPrefetchDistance < chain.size()) lists_.Prefetch(chain[i + kPrefetchDistance].id);
    EndKeptBack(chain[i].id);
  }
  policy_->OnLookup(chain, block_tokens);
}

void EvictionTier::Use(EntryId b) {
  if (!IsKnownToPolicy(b)) return;
  EndKeptBack(b);
  policy_->OnUse(b);
}

void EvictionTier::Remove(EntryId b, EntryId parent, const LeavingBlock& leaving) {
  if (!contains(b)) return;
  EndKeptBack(b);
  if (IsKnownToPolicy(b)) policy_->OnRemove(b, leaving);
  lists_[b].place = static_cast<uint32_t>(Place::kOutside);
  if (parent == kNoEntry) return;
  IBID_CHECK(lists_[parent].children_count > 0);
  --lists_[parent].children_count;
  if (lists_[parent].children_count == 0 && lists_.PlaceOf(parent) == Place::kInner) {
    PutBack(parent);
  }
}

void EvictionTier::KeepInner(EntryId b) { lists_.PushHottest(inner_, b, Place::kInner); }

EntryId EvictionTier::TakeVictim() {
  for (EntryId b = policy_->TakeVictim(); b != kNoEntry; b = policy_->TakeVictim()) {
    if (lists_[b].children_count == 0) return b;
    KeepInner(b);
  }
  return kNoEntry;
}

void EvictionTier::PutBack(EntryId b) {
  EndKeptBack(b);
  if (lists_.PlaceOf(b) == Place::kTaken) policy_->PutBack(b);
}

void EvictionTier::Defer(EntryId b) {
  if (lists_.PlaceOf(b) == Place::kTaken) lists_.PushHottest(deferred_, b, Place::kDeferred);
}

EntryId EvictionTier::TakeDeferred() {
  while (!deferred_.is_empty()) {
    const EntryId b = deferred_.coldest;
    lists_.Unlink(deferred_, b, Place::kTaken);
    if (lists_[b].children_count == 0) return b;
    KeepInner(b);
  }
  return kNoEntry;
}

void EvictionTier::Undefer(EntryId b) {
  if (lists_.PlaceOf(b) == Place::kDeferred) PutBack(b);
}

EntryId EvictionTier::TakeInner() {
  const EntryId b = inner_.coldest;
  if (b != kNoEntry) lists_.Unlink(inner_, b, Place::kTaken);
  return b;
}

void EvictionTier::PutBackInner(EntryId b) {
  if (lists_.PlaceOf(b) == Place::kTaken) KeepInner(b);
}

}  // namespace ibid
