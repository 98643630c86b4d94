// Brings blocks that are stored into the shares where they belong, after a tenant got or lost a
// quota of bytes or a namespace got its tenant: one pass over the index, in pieces.
//
// Thread safety: every method, from any thread; one of them works at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "cache_server/residency.h"

namespace ibid {

class QuotaMoves {
 public:
  QuotaMoves(StoreParts& parts, Residency& residency) : parts_(parts), residency_(residency) {}

  // Looks at some of the entries, in a bounded time. False when there is nothing left to do, or
  // another thread is at it.
  bool RunPiece();

 private:
  struct Block {
    EntryId id;
    uint32_t ns;
  };

  bool MovePiece();
  // The next entries, with a reference on each: so an id keeps its block.
  std::vector<Block> TakePiece();
  void Move(const Block& block);

  StoreParts& parts_;
  Residency& residency_;
  std::atomic<bool> is_at_work_{false};        // a thread has what follows
  uint32_t shard_ = BlockIndex::kShardsCount;  // where the pass is; the number of shards: none runs
  uint32_t place_ = 0;
};

}  // namespace ibid
