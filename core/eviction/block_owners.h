// Whose each block is, in every tier that has it: 2 bytes a block.
//
// Thread safety: none (the owner's lock).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/chunked_array.h"
#include "core/eviction/block_lists.h"

namespace ibid {

// Who may have a share of his own in a tier. Small and dense.
using OwnerId = uint16_t;
inline constexpr OwnerId kNobody = 0;

class BlockOwners {
 public:
  OwnerId Of(EntryId b) const { return b < owners_.size() ? owners_[b] : kNobody; }
  // Takes no memory while all blocks are nobody's.
  void Set(EntryId b, OwnerId owner) {
    if (owner == kNobody && b >= owners_.size()) return;
    owners_.EnsureSize(size_t{b} + 1);
    owners_[b] = owner;
  }

 private:
  ChunkedArray<OwnerId> owners_;
};

}  // namespace ibid
