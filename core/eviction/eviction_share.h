// The blocks of a tier among which one policy chooses: all of them, or those of one owner that has
// a quota there.
//
//        coldest                                   hottest
//   <- policy's order   [leaf][inner][leaf] ... [leaf][leaf]
//         |                  |
//         v                  +-> inner list, until its last child leaves; then back to the policy
//      TakeVictim
//
// A block of a priority is kept back when the policy hands it out, in a list of its priority; the
// three kinds of lists (kept, inner, deferred) exist once for each priority.
//
// Thread safety: none (the owner's lock). Pure: no clock or I/O. Every call is amortised O(1), but
// Lookup, which is O(keys). What is said of a block is REQUIRED to be said to its own share.
#pragma once

#include <array>
#include <limits>
#include <memory>
#include <span>

#include "core/eviction/block_lists.h"
#include "core/eviction/eviction_policy.h"
#include "core/eviction/keep_priority.h"

namespace ibid {

class EvictionShare {
 public:
  static constexpr uint64_t kNoQuota = std::numeric_limits<uint64_t>::max();

  // `policy_name` must be one of EvictionPolicyNames. `lists` must outlive the share.
  EvictionShare(absl::string_view policy_name, BlockLists& lists);

  void SetCapacity(uint64_t blocks) { policy_->SetCapacity(blocks); }

  // `b`, whose place is kNew, is a candidate.
  void Admit(EntryId b, const BlockTraits& traits) { policy_->OnInsert(b, traits); }
  // `b` leaves the share, and its place is kOutside. REQUIRES: it is in the tier.
  void Remove(EntryId b, const LeavingBlock& leaving);
  // As in EvictionTier, of blocks in the share.
  void Lookup(std::span<const ChainBlock> chain, const LookupTraits& traits);
  void Use(EntryId b);
  void SetPriority(EntryId b, KeepPriority priority);
  EntryId TakeVictim(KeepPriority priority = KeepPriority::kNone);
  void PutBack(EntryId b);

  // A taken block that should leave only when nothing else of its priority can.
  void Defer(EntryId b);
  // The coldest deferred block without a child in the tier, taken as by TakeVictim.
  EntryId TakeDeferred(KeepPriority priority = KeepPriority::kNone);
  // Undoes Defer; does nothing for a block that is not deferred.
  void Undefer(EntryId b);

  // The coldest of the blocks that were passed over because of a child, taken as by TakeVictim.
  EntryId TakeInner(KeepPriority priority = KeepPriority::kNone);
  // Undoes TakeInner; the block is the last to be taken so again.
  void PutBackInner(EntryId b);

  // Counted by the tier.
  uint64_t quota_pages = kNoQuota;
  uint64_t used_pages = 0;
  uint64_t blocks_count = 0;

 private:
  using ListOfEach = std::array<BlockList, kKeepPriorityNames.size()>;

  BlockList* KeptBackList(EntryId b);
  bool IsKnownToPolicy(EntryId b) const;
  // Takes `b` out of the list in which it was kept back, if it is in one.
  void EndKeptBack(EntryId b);
  void KeepBack(EntryId b, Place place);
  // The coldest of `list` that has no child in the tier; those that have one become inner.
  EntryId TakeLeaf(BlockList& list);

  BlockLists& lists_;
  ListOfEach kept_;  // of kNone: always empty
  ListOfEach inner_;
  ListOfEach deferred_;
  const std::unique_ptr<EvictionPolicy> policy_;
};

}  // namespace ibid
