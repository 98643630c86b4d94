// The doubly linked lists in which blocks wait to leave a tier, with their links in one plain array
// for all lists: 16 bytes a block.
//
// A block is in one list at most. Which one is known from its `place`; lists of one place (the
// segments of a policy, say) are told apart by `word`, which is the policy's own.
//
// Thread safety: none (the owner's lock).
#pragma once

#include <cstdint>

#include "core/check.h"
#include "core/chunked_array.h"

namespace ibid {

// Names a block while it has an entry in the index. Small and dense; reused after the entry is
// freed.
using EntryId = uint32_t;
inline constexpr EntryId kNoEntry = 0x7FFFFFFF;

// Where a block of a tier is. From kPolicy on the numbers are the policy's.
enum class Place : uint32_t {
  kOutside = 0,   // not in the tier
  kNew = 1,       // in the tier; the policy does not know it yet
  kTaken = 2,     // the policy handed it out
  kInner = 3,     // handed out and kept back, because a child of it is in the tier
  kDeferred = 4,  // handed out and kept back, because it should leave only when nothing else can
  kKept = 5,      // handed out and kept back, because of its priority
  kPolicy = 6,
};

struct BlockNode {
  EntryId colder = kNoEntry;
  EntryId hotter = kNoEntry;
  uint32_t place : 3 = 0;
  uint32_t is_own : 1 = 0;           // in the share of its owner, not in the common one
  uint32_t priority : 2 = 0;         // KeepPriority; stays when the block leaves the tier
  uint32_t children_count : 26 = 0;  // blocks of the tier that name this one as parent
  uint32_t word = 0;
};
static_assert(sizeof(BlockNode) == 16);

struct BlockList {
  EntryId coldest = kNoEntry;
  EntryId hottest = kNoEntry;
  bool is_empty() const { return coldest == kNoEntry; }
};

class BlockLists {
 public:
  // Creates the node if need be; references stay valid.
  BlockNode& Ensure(EntryId b) {
    IBID_CHECK(b < kNoEntry);
    nodes_.EnsureSize(size_t{b} + 1);
    return nodes_[b];
  }
  // REQUIRES: Ensure was called for `b` or a higher id.
  BlockNode& operator[](EntryId b) { return nodes_[b]; }
  const BlockNode& operator[](EntryId b) const { return nodes_[b]; }
  bool Has(EntryId b) const { return b < nodes_.size(); }
  void Prefetch(EntryId b) const {
    if (Has(b)) __builtin_prefetch(&nodes_[b], 1);
  }

  Place PlaceOf(EntryId b) const {
    return Has(b) ? static_cast<Place>(nodes_[b].place) : Place::kOutside;
  }

  // REQUIRES: `b` is in no list.
  void PushHottest(BlockList& list, EntryId b, Place place) {
    InsertAfter(list, list.hottest, b, place);
  }
  void PushColdest(BlockList& list, EntryId b, Place place) {
    InsertAfter(list, kNoEntry, b, place);
  }
  // Directly hotter than `colder`; kNoEntry: as the coldest.
  void InsertAfter(BlockList& list, EntryId colder, EntryId b, Place place) {
    BlockNode& node = nodes_[b];
    node.colder = colder;
    node.hotter = colder == kNoEntry ? list.coldest : nodes_[colder].hotter;
    (node.colder == kNoEntry ? list.coldest : nodes_[node.colder].hotter) = b;
    (node.hotter == kNoEntry ? list.hottest : nodes_[node.hotter].colder) = b;
    node.place = static_cast<uint32_t>(place);
  }
  // REQUIRES: `b` is in `list`.
  void Unlink(BlockList& list, EntryId b, Place place) {
    BlockNode& node = nodes_[b];
    (node.colder == kNoEntry ? list.coldest : nodes_[node.colder].hotter) = node.hotter;
    (node.hotter == kNoEntry ? list.hottest : nodes_[node.hotter].colder) = node.colder;
    node.colder = node.hotter = kNoEntry;
    node.place = static_cast<uint32_t>(place);
  }

 private:
  ChunkedArray<BlockNode> nodes_;
};

}  // namespace ibid
