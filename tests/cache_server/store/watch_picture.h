// What a watcher makes of what it is told, and what must hold of that.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cache_server/block_watch.h"
#include "tests/cache_server/store/store_harness.h"

namespace ibid {

// What a watcher knows: the last word on each block.
class Picture {
 public:
  // Takes all there is to be told now. False once the watch was cut off.
  bool Follow(BlockWatch& watch) {
    while (true) {
      const WatchPiece piece = watch.Next();
      if (piece.notice == WatchNotice::kCutOff) return false;
      Take(piece);
      if (piece.is_waiting) return true;
    }
  }

  void Take(const WatchPiece& piece) {
    if (piece.notice != WatchNotice::kNone) notices.push_back(piece.notice);
    is_gap |= piece.is_gap;
    if (piece.notice == WatchNotice::kSnapshotBegin) blocks.clear();
    for (const BlockEvent& event : piece.events) {
      events.push_back(event);
      if (event.tiers.is_empty()) {
        blocks.erase({event.ns, event.key});
      } else {
        blocks[{event.ns, event.key}] = event.tiers;
      }
    }
    EXPECT_GE(piece.sequence, sequence);
    sequence = piece.sequence;
  }

  size_t CountIn(TierName tier) const {
    size_t count = 0;
    for (const auto& [block, tiers] : blocks) count += tiers.Has(tier) ? 1 : 0;
    return count;
  }

  std::vector<WatchNotice> notices;
  bool is_gap = false;
  uint64_t sequence = 0;
  std::vector<BlockEvent> events;
  std::map<std::pair<NamespaceId, BlockKey>, TierSet> blocks;
};

inline std::unique_ptr<BlockWatch> WatchOf(BlockStore& store, const WatchOptions& options = {}) {
  auto watch = store.Watch(options);
  EXPECT_TRUE(watch.ok()) << watch.status();
  return *std::move(watch);
}

inline std::vector<BlockChange> ChangesOf(const Picture& picture, const BlockKey& key) {
  std::vector<BlockChange> changes;
  for (const BlockEvent& event : picture.events) {
    if (event.key == key) changes.push_back(event.change);
  }
  return changes;
}

// The numbers of what one watcher was told follow each other without a hole.
inline void ExpectDense(const Picture& picture) {
  uint64_t last = 0;
  for (const BlockEvent& event : picture.events) {
    if (event.change == BlockChange::kHeld) continue;
    if (last != 0) {
      EXPECT_EQ(event.sequence, last + 1);
    }
    last = event.sequence;
  }
  EXPECT_EQ(last, picture.sequence);
}

// Each event of a watcher that saw everything from an empty store on follows from the state that
// the block's event before left: so the order of one block's events is that of its states.
inline void ExpectEachFollowsFromTheLast(const Picture& picture) {
  std::map<std::pair<NamespaceId, BlockKey>, TierSet> blocks;
  for (const BlockEvent& event : picture.events) {
    TierSet& tiers = blocks[{event.ns, event.key}];
    TierSet after = tiers;
    switch (event.change) {
      case BlockChange::kStored:
      case BlockChange::kPromoted:
        EXPECT_FALSE(tiers.Has(event.tier)) << event.sequence;
        after.Add(event.tier);
        EXPECT_EQ(event.tiers, after) << event.sequence;
        break;
      case BlockChange::kDemoted:
        EXPECT_TRUE(tiers.Has(event.tier)) << event.sequence;
        EXPECT_FALSE(event.tiers.is_empty() || event.tiers.Has(event.tier)) << event.sequence;
        after = event.tiers;
        after.Add(event.tier);
        EXPECT_EQ(tiers, after) << event.sequence;
        break;
      case BlockChange::kRemoved:
        EXPECT_TRUE(tiers.Has(event.tier)) << event.sequence;
        EXPECT_TRUE(event.tiers.is_empty()) << event.sequence;
        break;
      case BlockChange::kHeld:
        ADD_FAILURE() << "the store was empty";
    }
    tiers = event.tiers;
  }
}

}  // namespace ibid
