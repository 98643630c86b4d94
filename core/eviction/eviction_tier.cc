// Invariants:
// - A block is in the tier <=> its place is not kOutside.
// - The policy knows a block (OnInsert was called, OnRemove was not) <=> its place is neither
//   kOutside nor kNew.
// - A block in the inner list had a child in the tier when it came there; whoever takes its last
//   child out gives it back to the policy.
// - children_count of a node is the number of blocks in the tier whose parent it is.
// - A block that is kept back is in the list of its place and priority.
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

BlockList* EvictionTier::KeptBackList(EntryId b) {
  switch (lists_.PlaceOf(b)) {
    case Place::kKept:
      return &kept_[lists_[b].priority];
    case Place::kInner:
      return &inner_[lists_[b].priority];
    case Place::kDeferred:
      return &deferred_[lists_[b].priority];
    default:
      return nullptr;
  }
}

bool EvictionTier::IsKnownToPolicy(EntryId b) const {
  const Place place = lists_.PlaceOf(b);
  return place != Place::kOutside && place != Place::kNew;
}

void EvictionTier::EndKeptBack(EntryId b) {
  BlockList* const list = KeptBackList(b);
  if (list != nullptr) lists_.Unlink(*list, b, Place::kTaken);
}

void EvictionTier::KeepBack(EntryId b, Place place) {
  lists_[b].place = static_cast<uint32_t>(place);
  lists_.PushHottest(*KeptBackList(b), b, place);
}

void EvictionTier::Insert(EntryId b, EntryId parent, uint32_t slot_pages) {
  if (parent != kNoEntry) ++lists_.Ensure(parent).children_count;
  has_had_blocks_ = true;
  BlockNode& node = lists_.Ensure(b);
  IBID_CHECK(node.place == static_cast<uint32_t>(Place::kOutside))
      << "block " << b << " came twice into a tier";
  node.place = static_cast<uint32_t>(Place::kNew);
  node.word = 0;
  if (node.priority != 0) kept_pages_ += slot_pages;
}

void EvictionTier::SetPriority(EntryId b, KeepPriority priority, uint32_t slot_pages) {
  BlockNode& node = lists_.Ensure(b);
  if (node.priority == static_cast<uint32_t>(priority)) return;
  if (contains(b)) {
    if (node.priority != 0) kept_pages_ -= slot_pages;
    if (priority != KeepPriority::kNone) kept_pages_ += slot_pages;
  }
  const bool was_kept_back = KeptBackList(b) != nullptr;
  EndKeptBack(b);
  node.priority = static_cast<uint32_t>(priority);
  // Where it belongs now shows when the policy hands it out again.
  if (was_kept_back) policy_->PutBack(b);
}

void EvictionTier::Admit(EntryId b, const BlockTraits& traits) {
  if (lists_.PlaceOf(b) != Place::kNew) return;
  policy_->OnInsert(b, traits);
}

void EvictionTier::Lookup(std::span<const ChainBlock> chain, uint32_t block_tokens) {
  if (!has_had_blocks_) return;  // there is nothing to use, and nothing to learn yet
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
  if (lists_[b].priority != 0) kept_pages_ -= leaving.slot_pages;
  lists_[b].place = static_cast<uint32_t>(Place::kOutside);
  if (parent == kNoEntry) return;
  IBID_CHECK(lists_[parent].children_count > 0);
  --lists_[parent].children_count;
  if (lists_[parent].children_count == 0 && lists_.PlaceOf(parent) == Place::kInner) {
    PutBack(parent);
  }
}

EntryId EvictionTier::TakeLeaf(BlockList& list) {
  while (!list.is_empty()) {
    const EntryId b = list.coldest;
    lists_.Unlink(list, b, Place::kTaken);
    if (lists_[b].children_count == 0) return b;
    KeepBack(b, Place::kInner);
  }
  return kNoEntry;
}

EntryId EvictionTier::TakeVictim(KeepPriority priority) {
  if (priority != KeepPriority::kNone) return TakeLeaf(kept_[static_cast<int>(priority)]);
  for (EntryId b = policy_->TakeVictim(); b != kNoEntry; b = policy_->TakeVictim()) {
    const BlockNode& node = lists_[b];
    if (node.children_count > 0) {
      KeepBack(b, Place::kInner);
    } else if (node.priority > 0) {
      KeepBack(b, Place::kKept);
    } else {
      return b;
    }
  }
  return kNoEntry;
}

void EvictionTier::PutBack(EntryId b) {
  EndKeptBack(b);
  if (lists_.PlaceOf(b) == Place::kTaken) policy_->PutBack(b);
}

void EvictionTier::Defer(EntryId b) {
  if (lists_.PlaceOf(b) == Place::kTaken) KeepBack(b, Place::kDeferred);
}

EntryId EvictionTier::TakeDeferred(KeepPriority priority) {
  return TakeLeaf(deferred_[static_cast<int>(priority)]);
}

void EvictionTier::Undefer(EntryId b) {
  if (lists_.PlaceOf(b) == Place::kDeferred) PutBack(b);
}

EntryId EvictionTier::TakeInner(KeepPriority priority) {
  BlockList& list = inner_[static_cast<int>(priority)];
  const EntryId b = list.coldest;
  if (b != kNoEntry) lists_.Unlink(list, b, Place::kTaken);
  return b;
}

void EvictionTier::PutBackInner(EntryId b) {
  if (lists_.PlaceOf(b) == Place::kTaken) KeepBack(b, Place::kInner);
}

}  // namespace ibid
