// Invariants, of the blocks in the share:
// - The policy knows a block (OnInsert was called, OnRemove was not) <=> its place is neither
//   kOutside nor kNew.
// - A block in the inner list had a child in the tier when it came there; whoever takes its last
//   child out gives it back to the policy.
// - A block that is kept back is in the list of its place and priority.
#include "core/eviction/eviction_share.h"

#include <utility>

#include "core/check.h"

namespace ibid {
namespace {

// Blocks of a chain lie anywhere in the array of nodes: they are fetched this far ahead.
constexpr size_t kPrefetchDistance = 12;

std::unique_ptr<EvictionPolicy> MakePolicy(absl::string_view name, BlockLists& lists) {
  auto policy = MakeEvictionPolicy(name, lists);
  IBID_CHECK(policy.ok()) << policy.status().ToString();
  return *std::move(policy);
}

}  // namespace

EvictionShare::EvictionShare(absl::string_view policy_name, BlockLists& lists)
    : lists_(lists), policy_(MakePolicy(policy_name, lists)) {}

BlockList* EvictionShare::KeptBackList(EntryId b) {
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

bool EvictionShare::IsKnownToPolicy(EntryId b) const {
  const Place place = lists_.PlaceOf(b);
  return place != Place::kOutside && place != Place::kNew;
}

void EvictionShare::EndKeptBack(EntryId b) {
  BlockList* const list = KeptBackList(b);
  if (list != nullptr) lists_.Unlink(*list, b, Place::kTaken);
}

void EvictionShare::KeepBack(EntryId b, Place place) {
  lists_[b].place = static_cast<uint32_t>(place);
  lists_.PushHottest(*KeptBackList(b), b, place);
}

void EvictionShare::Remove(EntryId b, const LeavingBlock& leaving) {
  EndKeptBack(b);
  if (IsKnownToPolicy(b)) policy_->OnRemove(b, leaving);
  lists_[b].place = static_cast<uint32_t>(Place::kOutside);
}

void EvictionShare::SetPriority(EntryId b, KeepPriority priority) {
  const bool was_kept_back = KeptBackList(b) != nullptr;
  EndKeptBack(b);
  lists_[b].priority = static_cast<uint32_t>(priority);
  // Where it belongs now shows when the policy hands it out again.
  if (was_kept_back) policy_->PutBack(b);
}

void EvictionShare::Lookup(std::span<const ChainBlock> chain, const LookupTraits& traits) {
  for (size_t i = 0; i < chain.size(); ++i) {
    if (i + kPrefetchDistance < chain.size()) lists_.Prefetch(chain[i + kPrefetchDistance].id);
    EndKeptBack(chain[i].id);
  }
  policy_->OnLookup(chain, traits);
}

void EvictionShare::Use(EntryId b) {
  if (!IsKnownToPolicy(b)) return;
  EndKeptBack(b);
  policy_->OnUse(b);
}

EntryId EvictionShare::TakeLeaf(BlockList& list) {
  while (!list.is_empty()) {
    const EntryId b = list.coldest;
    lists_.Unlink(list, b, Place::kTaken);
    if (lists_[b].children_count == 0) return b;
    KeepBack(b, Place::kInner);
  }
  return kNoEntry;
}

EntryId EvictionShare::TakeVictim(KeepPriority priority) {
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

void EvictionShare::PutBack(EntryId b) {
  EndKeptBack(b);
  if (lists_.PlaceOf(b) == Place::kTaken) policy_->PutBack(b);
}

void EvictionShare::Defer(EntryId b) {
  if (lists_.PlaceOf(b) == Place::kTaken) KeepBack(b, Place::kDeferred);
}

EntryId EvictionShare::TakeDeferred(KeepPriority priority) {
  return TakeLeaf(deferred_[static_cast<int>(priority)]);
}

void EvictionShare::Undefer(EntryId b) {
  if (lists_.PlaceOf(b) == Place::kDeferred) PutBack(b);
}

EntryId EvictionShare::TakeInner(KeepPriority priority) {
  BlockList& list = inner_[static_cast<int>(priority)];
  const EntryId b = list.coldest;
  if (b != kNoEntry) lists_.Unlink(list, b, Place::kTaken);
  return b;
}

void EvictionShare::PutBackInner(EntryId b) {
  if (lists_.PlaceOf(b) == Place::kTaken) KeepBack(b, Place::kInner);
}

}  // namespace ibid
