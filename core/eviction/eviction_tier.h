// The blocks of one tier, and which of them leaves next: a policy's order under the rule that
// children leave before parents, so that a prefix loses its end and never gets a hole.
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
// Lookup, which is O(keys).
#pragma once

#include <array>
#include <memory>
#include <span>

#include "core/eviction/block_lists.h"
#include "core/eviction/eviction_policy.h"
#include "core/eviction/keep_priority.h"

namespace ibid {

class EvictionTier {
 public:
  // `policy_name` must be one of EvictionPolicyNames.
  explicit EvictionTier(absl::string_view policy_name);

  void SetCapacity(uint64_t blocks) { policy_->SetCapacity(blocks); }

  // `b` came into the tier, in a slot of so many pages. It is a child of `parent` from here on, and
  // no candidate before Admit. REQUIRES: not in the tier.
  void Insert(EntryId b, EntryId parent, uint32_t slot_pages = 0);
  // REQUIRES: Insert was called; Admit was not. Does nothing when `b` has left meanwhile.
  void Admit(EntryId b, const BlockTraits& traits);
  // A request asks for `chain`; see EvictionPolicy::OnLookup.
  void Lookup(std::span<const ChainBlock> chain, uint32_t block_tokens);
  // `b` was used on its own. Does nothing when it is not there, or was not admitted.
  void Use(EntryId b);
  // `b` has left the tier; `parent` as in Insert. Does nothing when it is not there.
  void Remove(EntryId b, EntryId parent, const LeavingBlock& leaving);

  // Of `b`, in the tier or not, until it is set anew. `slot_pages` as in Insert.
  void SetPriority(EntryId b, KeepPriority priority, uint32_t slot_pages);

  // The block of this priority that should leave next, or kNoEntry; it has no child in the tier.
  // The caller either removes it, or calls PutBack once what kept it is over. Lower priorities are
  // to be asked for first: before that those of higher ones are not known.
  EntryId TakeVictim(KeepPriority priority = KeepPriority::kNone);
  // A taken, inner or deferred block is a candidate again. Harmless at any time.
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

  bool contains(EntryId b) const { return lists_.PlaceOf(b) != Place::kOutside; }
  // How many blocks of the tier name `b` as parent, whether or not `b` is in the tier itself.
  uint32_t children_count(EntryId b) const { return lists_.Has(b) ? lists_[b].children_count : 0; }
  // Of the blocks in the tier that have a priority.
  uint64_t kept_pages() const { return kept_pages_; }

 private:
  using ListOfEach = std::array<BlockList, kKeepPriorityNames.size()>;

  BlockList* KeptBackList(EntryId b);
  bool IsKnownToPolicy(EntryId b) const;
  // Takes `b` out of the list in which it was kept back, if it is in one.
  void EndKeptBack(EntryId b);
  void KeepBack(EntryId b, Place place);
  // The coldest of `list` that has no child in the tier; those that have one become inner.
  EntryId TakeLeaf(BlockList& list);

  BlockLists lists_;
  ListOfEach kept_;  // of kNone: always empty
  ListOfEach inner_;
  ListOfEach deferred_;
  uint64_t kept_pages_ = 0;
  bool has_had_blocks_ = false;
  std::unique_ptr<EvictionPolicy> policy_;
};

}  // namespace ibid
