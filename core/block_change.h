// What can happen to a block of a store, in the words that the store, the wire and its clients
// share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/block_key.h"

namespace ibid {

// Each copy in each tier counts.
enum class BlockChange : uint8_t {
  kHeld,      // no change: it is there, says a snapshot
  kStored,    // a copy came into a tier: published, written to disk, found on disk after a start
  kPromoted,  // a copy came into a faster tier from a slower one
  kDemoted,   // a copy left a tier, another is left
  kRemoved,   // no copy is left
};

// "held", "stored", "promoted", "demoted", "removed".
constexpr absl::string_view NameOf(BlockChange change) {
  constexpr absl::string_view kNames[] = {"held", "stored", "promoted", "demoted", "removed"};
  return kNames[static_cast<int>(change)];
}

// One change of a block, or a block that is held, as a watcher is told of it.
struct BlockReport {
  uint64_t sequence = 0;  // 0 for kHeld
  BlockChange change = BlockChange::kHeld;
  NamespaceId ns;
  BlockKey key;
  // Told of held and published blocks, and of those found on disk after a start, where it is known;
  // of block 0 it is the namespace id's bytes.
  std::optional<BlockKey> parent;
  uint32_t position = 0;
  uint32_t token_count = 0;
  std::string tier;                // that a copy came into or left; of a held block the fastest
  std::vector<std::string> tiers;  // that have the block after the change, fastest first
};

// What a piece of a watch says besides its events.
enum class WatchNotice : uint8_t {
  kNone,
  kResumed,        // goes on where the watcher was: nothing was missed
  kStarted,        // tells what happens from now on, and nothing of what is stored
  kSnapshotBegin,  // all that the watcher knew is void; what is stored follows
  kSnapshotEnd,    // everything has been told: what the watcher knows is exact
  kCutOff,         // the watcher fell too far behind; the watch is over
};

}  // namespace ibid
