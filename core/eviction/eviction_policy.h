// In which order blocks leave a tier. Pure bookkeeping: no clock, lock or I/O; the only time is the
// number of tokens used so far, so that the same object runs in the server, in `ibid replay` and at
// any speed. One policy object serves one tier.
//
// It orders blocks, nothing else: that a block with children in the tier does not leave before them
// is the business of EvictionTier (eviction_tier.h), which hands such a block out and back.
//
// Thread safety: none (the owner's lock). State: what block_lists.h keeps, and a bounded number of
// bytes for each block that was evicted and is remembered.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/eviction/block_lists.h"

namespace ibid {

// A key of a looked-up chain.
struct ChainBlock {
  uint64_t fingerprint = 0;  // FingerprintOf(key): recognises a block that was here before
  EntryId id = kNoEntry;     // kNoEntry: the owner has no entry of it
};

// What is known of the keys of a lookup.
struct LookupTraits {
  uint32_t block_tokens = 0;    // as in BlockTraits
  uint32_t first_position = 0;  // of the first key in its chain; the asker has the blocks before it
  // Other servers are asked for the rest of the chain, in which these keys may leave gaps.
  bool is_part = false;
};

// What is known of a block when it comes into a tier.
struct BlockTraits {
  uint64_t fingerprint = 0;
  EntryId parent = kNoEntry;  // need not be in the tier
  uint32_t position = 0;      // in its chain, from 0
  uint32_t block_tokens = 0;  // that its slot has room for: the unit of its cost
  bool is_tail = false;       // holds fewer tokens than that
};

// What a block leaves behind.
struct LeavingBlock {
  uint64_t fingerprint = 0;
  bool is_eviction = false;  // it may be asked for again; else it was dropped for good
  uint32_t slot_pages = 0;   // as it was told when the block came
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // How many blocks the tier holds when it is full. May change as sizes mix; before the first call
  // it is 0.
  virtual void SetCapacity(uint64_t blocks) = 0;

  // A request asks for `chain`. Those in the tier are used, last to first; the rest are not there
  // (an id may be of a block of another tier). Taken blocks are candidates again.
  virtual void OnLookup(std::span<const ChainBlock> chain, const LookupTraits& traits) = 0;
  // `b` came into the tier and is a candidate. REQUIRES: it is in no list.
  virtual void OnInsert(EntryId b, const BlockTraits& traits) = 0;
  // `b` was used on its own. A taken block is a candidate again. REQUIRES: OnInsert was called.
  virtual void OnUse(EntryId b) = 0;
  // `b` has left the tier. REQUIRES: OnInsert was called.
  virtual void OnRemove(EntryId b, const LeavingBlock& leaving) = 0;

  // The block that should leave next, or kNoEntry. It is in no list any more: the owner either
  // removes it, or gives it back. Amortised O(1).
  virtual EntryId TakeVictim() = 0;
  // A taken block is a candidate again, about where it was.
  virtual void PutBack(EntryId b) = 0;

 protected:
  // An OnLookup of a policy to which a use is a use: OnUse of each block of the tier, last to
  // first.
  void UseEach(const BlockLists& lists, std::span<const ChainBlock> chain);
};

// The names that MakeEvictionPolicy knows, the default first.
std::span<const absl::string_view> EvictionPolicyNames();

// Errors: InvalidArgument (unknown name; says which there are).
absl::Status CheckEvictionPolicyName(absl::string_view name);

// `lists` must outlive the policy. Errors: those of CheckEvictionPolicyName.
absl::StatusOr<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(absl::string_view name,
                                                                   BlockLists& lists);

}  // namespace ibid
