// Invariants:
// - A block is in the tier <=> its place is not kOutside. It is in the share of its owner <=> its
//   node says is_own; else in the common one. Only its own share is told of it.
// - children_count of a node is the number of blocks in the tier whose parent it is.
// - used_pages and blocks_count of a share are of the blocks in it; used_pages_ of an owner is of
//   its blocks in any share.
#include "core/eviction/eviction_tier.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace ibid {

EvictionTier::EvictionTier(absl::string_view policy_name, const BlockOwners* owners)
    : policy_name_(policy_name),
      owners_(owners),
      common_(std::make_unique<EvictionShare>(policy_name, lists_)) {}

// ---- Shares

EvictionShare& EvictionTier::ShareOf(EntryId b) {
  const bool is_own = lists_.Has(b) && lists_[b].is_own != 0;
  return is_own ? *own_shares_[OwnerOf(b)] : *common_;
}

EvictionShare& EvictionTier::ShareFor(OwnerId owner) {
  EvictionShare* const own = OwnShare(owner);
  return own != nullptr && own->quota_pages != kNoQuota ? *own : *common_;
}

void EvictionTier::SetCapacity(uint64_t blocks) {
  capacity_blocks_ = blocks;
  common_->SetCapacity(blocks);
  for (const OwnerId owner : with_share_) SetCapacityOf(*own_shares_[owner]);
}

void EvictionTier::SetRoom(uint64_t pages) {
  room_pages_ = pages;
  for (const OwnerId owner : with_share_) SetCapacityOf(*own_shares_[owner]);
}

void EvictionTier::SetCapacityOf(EvictionShare& share) {
  const double part = room_pages_ == 0 || share.quota_pages >= room_pages_
                          ? 1
                          : static_cast<double>(share.quota_pages) / room_pages_;
  share.SetCapacity(static_cast<uint64_t>(static_cast<double>(capacity_blocks_) * part));
}

bool EvictionTier::SetQuota(OwnerId owner, uint64_t pages) {
  EvictionShare* own = OwnShare(owner);
  if (own == nullptr && pages == kNoQuota) return false;
  if (own == nullptr) {
    if (own_shares_.size() <= owner) own_shares_.resize(size_t{owner} + 1);
    own_shares_[owner] = std::make_unique<EvictionShare>(policy_name_, lists_);
    own = own_shares_[owner].get();
    with_share_.push_back(owner);
  }
  own->quota_pages = pages;
  SetCapacityOf(*own);
  const uint64_t used_pages = owner < used_pages_.size() ? used_pages_[owner] : 0;
  const uint64_t misplaced_pages =
      pages == kNoQuota ? own->used_pages : used_pages - own->used_pages;
  DropShareIfOver(owner);
  return misplaced_pages > 0;
}

void EvictionTier::DropShareIfOver(OwnerId owner) {
  const EvictionShare* const own = OwnShare(owner);
  if (own == nullptr || own->quota_pages != kNoQuota || own->blocks_count > 0) return;
  own_shares_[owner] = nullptr;
  with_share_.erase(std::find(with_share_.begin(), with_share_.end(), owner));
}

void EvictionTier::CountUse(OwnerId owner, int64_t pages) {
  if (used_pages_.size() <= owner) used_pages_.resize(size_t{owner} + 1);
  used_pages_[owner] += static_cast<uint64_t>(pages);
}

void EvictionTier::Move(EntryId b, OwnerId to, uint32_t slot_pages, const BlockTraits& traits) {
  if (!contains(b)) return;
  const OwnerId from = OwnerOf(b);
  if (from != to) {
    CountUse(from, -int64_t{slot_pages});
    CountUse(to, slot_pages);
  }
  EvictionShare& old_share = ShareOf(b);
  EvictionShare& new_share = ShareFor(to);
  if (&old_share == &new_share) return;
  BlockNode& node = lists_[b];
  const bool was_new = node.place == static_cast<uint32_t>(Place::kNew);
  old_share.Remove(b, {traits.fingerprint, /*is_eviction=*/false, slot_pages});
  old_share.used_pages -= slot_pages;
  --old_share.blocks_count;
  node.place = static_cast<uint32_t>(Place::kNew);
  node.is_own = &new_share == common_.get() ? 0 : 1;
  new_share.used_pages += slot_pages;
  ++new_share.blocks_count;
  DropShareIfOver(from);
  if (was_new) return;
  BlockTraits known = traits;
  if (known.parent != kNoEntry && &ShareOf(known.parent) != &new_share) known.parent = kNoEntry;
  new_share.Admit(b, known);
}

double EvictionTier::UseOf(const EvictionShare& share) const {
  if (share.blocks_count == 0) return -1;
  const uint64_t may_use = std::min(share.quota_pages, room_pages_);
  return static_cast<double>(share.used_pages) /
         static_cast<double>(std::max(may_use, uint64_t{1}));
}

EvictionShare& EvictionTier::FirstToLose() {
  EvictionShare* first = common_.get();
  if (!has_own_shares()) return *first;
  double most = UseOf(*first);
  for (const OwnerId owner : with_share_) {
    const double use = UseOf(*own_shares_[owner]);
    if (use <= most) continue;
    most = use;
    first = own_shares_[owner].get();
  }
  return *first;
}

std::vector<EvictionShare*> EvictionTier::SharesByUse() {
  std::vector<std::pair<double, EvictionShare*>> by_use;
  if (common_->blocks_count > 0) by_use.emplace_back(UseOf(*common_), common_.get());
  for (const OwnerId owner : with_share_) {
    EvictionShare* const share = own_shares_[owner].get();
    if (share->blocks_count > 0) by_use.emplace_back(UseOf(*share), share);
  }
  std::stable_sort(by_use.begin(), by_use.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<EvictionShare*> shares;
  for (const auto& [use, share] : by_use) shares.push_back(share);
  return shares;
}

EntryId EvictionTier::TakeVictim(KeepPriority priority) {
  EntryId b = FirstToLose().TakeVictim(priority);
  if (b != kNoEntry || !has_own_shares()) return b;
  for (EvictionShare* const share : SharesByUse()) {
    b = share->TakeVictim(priority);
    if (b != kNoEntry) break;
  }
  return b;
}

// ---- Blocks

bool EvictionTier::Insert(EntryId b, EntryId parent, uint32_t slot_pages) {
  if (parent != kNoEntry) ++lists_.Ensure(parent).children_count;
  has_had_blocks_ = true;
  BlockNode& node = lists_.Ensure(b);
  IBID_CHECK(node.place == static_cast<uint32_t>(Place::kOutside))
      << "block " << b << " came twice into a tier";
  node.place = static_cast<uint32_t>(Place::kNew);
  node.word = 0;
  if (node.priority != 0) kept_pages_ += slot_pages;
  const OwnerId owner = OwnerOf(b);
  EvictionShare& share = ShareFor(owner);
  node.is_own = &share == common_.get() ? 0 : 1;
  share.used_pages += slot_pages;
  ++share.blocks_count;
  CountUse(owner, slot_pages);
  return share.used_pages <= share.quota_pages;
}

void EvictionTier::SetPriority(EntryId b, KeepPriority priority, uint32_t slot_pages) {
  BlockNode& node = lists_.Ensure(b);
  if (node.priority == static_cast<uint32_t>(priority)) return;
  if (contains(b)) {
    if (node.priority != 0) kept_pages_ -= slot_pages;
    if (priority != KeepPriority::kNone) kept_pages_ += slot_pages;
  }
  ShareOf(b).SetPriority(b, priority);
}

void EvictionTier::Admit(EntryId b, const BlockTraits& traits) {
  if (lists_.PlaceOf(b) != Place::kNew) return;
  EvictionShare& share = ShareOf(b);
  if (!has_own_shares() || traits.parent == kNoEntry || &ShareOf(traits.parent) == &share) {
    return share.Admit(b, traits);
  }
  BlockTraits known = traits;  // the parent is one of another share's
  known.parent = kNoEntry;
  share.Admit(b, known);
}

std::span<const ChainBlock> EvictionTier::OnlyOf(const EvictionShare& share,
                                                 std::span<const ChainBlock> chain,
                                                 std::vector<ChainBlock>* masked) {
  for (size_t i = 0; i < chain.size(); ++i) {
    const EntryId b = chain[i].id;
    if (!contains(b) || &ShareOf(b) == &share) continue;
    if (masked->empty()) masked->assign(chain.begin(), chain.end());
    (*masked)[i].id = kNoEntry;
  }
  return masked->empty() ? chain : std::span<const ChainBlock>(*masked);
}

void EvictionTier::Lookup(std::span<const ChainBlock> chain, const LookupTraits& traits,
                          OwnerId owner) {
  if (!has_had_blocks_) return;  // there is nothing to use, and nothing to learn yet
  EvictionShare& share = ShareFor(owner);
  std::vector<ChainBlock> masked;
  if (has_own_shares()) chain = OnlyOf(share, chain, &masked);
  share.Lookup(chain, traits);
}

void EvictionTier::Use(EntryId b) { ShareOf(b).Use(b); }

void EvictionTier::Remove(EntryId b, EntryId parent, const LeavingBlock& leaving) {
  if (!contains(b)) return;
  EvictionShare& share = ShareOf(b);
  const OwnerId owner = OwnerOf(b);
  if (lists_[b].priority != 0) kept_pages_ -= leaving.slot_pages;
  share.Remove(b, leaving);
  lists_[b].is_own = 0;
  share.used_pages -= leaving.slot_pages;
  --share.blocks_count;
  CountUse(owner, -int64_t{leaving.slot_pages});
  DropShareIfOver(owner);
  if (parent == kNoEntry) return;
  IBID_CHECK(lists_[parent].children_count > 0);
  --lists_[parent].children_count;
  if (lists_[parent].children_count == 0 && lists_.PlaceOf(parent) == Place::kInner) {
    PutBack(parent);
  }
}

void EvictionTier::PutBack(EntryId b) { ShareOf(b).PutBack(b); }

}  // namespace ibid
