// The blocks of one tier, and which of them leaves next: a policy's order under the rule that
// children leave before parents, so that a prefix loses its end and never gets a hole.
//
//   blocks of owners with a quota      all other blocks
//   [share][share]...                  [common share]          eviction_share.h
//
// An owner over its quota loses its own coldest block; when the tier is full, the share loses that
// uses most of what it may have: of its quota, or, the common one, of the whole tier.
//
// Thread safety: none (the owner's lock). Pure: no clock or I/O. Every call is amortised O(1), but
// Lookup, which is O(keys), and those that look at each share: TakeVictim by FirstToLose.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/eviction/block_lists.h"
#include "core/eviction/block_owners.h"
#include "core/eviction/eviction_policy.h"
#include "core/eviction/eviction_share.h"
#include "core/eviction/keep_priority.h"

namespace ibid {

class EvictionTier {
 public:
  static constexpr uint64_t kNoQuota = EvictionShare::kNoQuota;

  // `policy_name` must be one of EvictionPolicyNames. `owners` must outlive the tier; without it
  // all blocks are nobody's.
  explicit EvictionTier(absl::string_view policy_name, const BlockOwners* owners = nullptr);

  void SetCapacity(uint64_t blocks);
  // What the tier holds when it is full: the measure of shares. Before the first call it is 0.
  void SetRoom(uint64_t pages);
  // `pages` is the most that blocks of `owner` may take from here on; kNoQuota: they have no share
  // of their own. Returns whether blocks of it that came before are to be moved (Move); until then
  // they stay where they are, and count neither for the quota nor in the share.
  bool SetQuota(OwnerId owner, uint64_t pages);
  // Brings `b`, which will be `to`'s in the owners from here on, into the share where it belongs
  // now, its order learnt anew. Does nothing more when it is there; nothing at all when it is not
  // in the tier. `slot_pages` as in Insert.
  void Move(EntryId b, OwnerId to, uint32_t slot_pages, const BlockTraits& traits);

  // `b` came into the tier, in a slot of so many pages. It is a child of `parent` from here on, and
  // no candidate before Admit. REQUIRES: not in the tier. Returns FitsQuota.
  bool Insert(EntryId b, EntryId parent, uint32_t slot_pages = 0);
  // REQUIRES: Insert was called; Admit was not. Does nothing when `b` has left meanwhile.
  void Admit(EntryId b, const BlockTraits& traits);
  // A request asks for `chain`, of blocks of `owner`; see EvictionPolicy::OnLookup.
  void Lookup(std::span<const ChainBlock> chain, const LookupTraits& traits,
              OwnerId owner = kNobody);
  // `b` was used on its own. Does nothing when it is not there, or was not admitted.
  void Use(EntryId b);
  // `b` has left the tier; `parent` and the slot as in Insert. Does nothing when it is not there.
  void Remove(EntryId b, EntryId parent, const LeavingBlock& leaving);

  // Of `b`, in the tier or not, until it is set anew. `slot_pages` as in Insert.
  void SetPriority(EntryId b, KeepPriority priority, uint32_t slot_pages);

  KeepPriority priority(EntryId b) const {
    return lists_.Has(b) ? static_cast<KeepPriority>(lists_[b].priority) : KeepPriority::kNone;
  }

  // The block of this priority that should leave next, of the first share to lose that has one, or
  // kNoEntry; it has no child in the tier. The caller either removes it, or calls PutBack once what
  // kept it is over. Lower priorities are to be asked for first: before that those of higher ones
  // are not known. What else a share gives out (deferred, inner) is asked of the share.
  EntryId TakeVictim(KeepPriority priority = KeepPriority::kNone);
  // A taken, inner or deferred block is a candidate again. Harmless at any time.
  void PutBack(EntryId b);
  // See EvictionShare.
  void Defer(EntryId b) { ShareOf(b).Defer(b); }
  void Undefer(EntryId b) { ShareOf(b).Undefer(b); }

  // The share that uses most of what it may.
  EvictionShare& FirstToLose();
  // All shares that have blocks, in that order. O(shares log shares).
  std::vector<EvictionShare*> SharesByUse();
  EvictionShare& common_share() { return *common_; }
  // Null when `owner` has none.
  EvictionShare* OwnShare(OwnerId owner) {
    return owner < own_shares_.size() ? own_shares_[owner].get() : nullptr;
  }
  bool has_own_shares() const { return !with_share_.empty(); }
  // Of a block, in the tier or not yet.
  EvictionShare& ShareOf(EntryId b);

  bool contains(EntryId b) const { return lists_.PlaceOf(b) != Place::kOutside; }
  // Whether the owner of `b`, which is in the tier, is within its quota.
  bool FitsQuota(EntryId b) {
    const EvictionShare& share = ShareOf(b);
    return share.used_pages <= share.quota_pages;
  }
  // How many blocks of the tier name `b` as parent, whether or not `b` is in the tier itself.
  uint32_t children_count(EntryId b) const { return lists_.Has(b) ? lists_[b].children_count : 0; }
  // Of the blocks in the tier that have a priority.
  uint64_t kept_pages() const { return kept_pages_; }
  // Of the blocks of each owner that had any, by OwnerId.
  std::span<const uint64_t> used_pages() const { return used_pages_; }

 private:
  OwnerId OwnerOf(EntryId b) const { return owners_ == nullptr ? kNobody : owners_->Of(b); }
  // Where blocks of `owner` that come now belong.
  EvictionShare& ShareFor(OwnerId owner);
  void CountUse(OwnerId owner, int64_t pages);
  void SetCapacityOf(EvictionShare& share);
  // The share of an owner without a quota ends with its last block.
  void DropShareIfOver(OwnerId owner);
  double UseOf(const EvictionShare& share) const;
  // `chain` without the blocks that are in other shares, for which `masked` has room.
  std::span<const ChainBlock> OnlyOf(const EvictionShare& share, std::span<const ChainBlock> chain,
                                     std::vector<ChainBlock>* masked);

  const std::string policy_name_;
  const BlockOwners* const owners_;
  BlockLists lists_;
  uint64_t capacity_blocks_ = 0;
  uint64_t room_pages_ = 0;
  uint64_t kept_pages_ = 0;
  bool has_had_blocks_ = false;
  const std::unique_ptr<EvictionShare> common_;
  std::vector<std::unique_ptr<EvictionShare>> own_shares_;  // by owner; null: none
  std::vector<OwnerId> with_share_;                         // whose are not null
  std::vector<uint64_t> used_pages_;                        // by owner
};

}  // namespace ibid
