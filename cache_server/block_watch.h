// BlockWatch: blocks of a store as they come and go, for those who keep a picture of what is
// stored.
//
// A watch that begins with a snapshot tells, in this order: kSnapshotBegin; blocks that are held,
// mixed with events, page by page while the index is walked; kSnapshotEnd; events. Every event and
// every held block says in which tiers the block is, so the picture is made by taking the last word
// on each block. From kSnapshotEnd on it is exactly the store's state after event `sequence`;
// before that, single blocks may be ahead of it or behind.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cache_server/eviction_book.h"
#include "core/block_change.h"
#include "core/block_key.h"

namespace ibid {

// Some of the tiers.
class TierSet {
 public:
  TierSet() = default;
  void Add(TierName tier) { bits_ |= static_cast<uint8_t>(1u << static_cast<unsigned>(tier)); }
  bool Has(TierName tier) const { return (bits_ >> static_cast<unsigned>(tier) & 1) != 0; }
  bool is_empty() const { return bits_ == 0; }
  bool operator==(const TierSet&) const = default;

 private:
  uint8_t bits_ = 0;
};

// All tiers, fastest first.
inline constexpr TierName kTiersByScale[] = {TierName::kGpu, TierName::kHost, TierName::kDisk};
absl::string_view NameOf(TierName tier);

struct BlockEvent {
  uint64_t sequence = 0;  // 0 for kHeld
  BlockChange change = BlockChange::kHeld;
  TierName tier = TierName::kHost;  // that a copy came into or left; of a held block the fastest
  TierSet tiers;                    // that have the block after the change
  NamespaceId ns;
  BlockKey key;
  // Told of held and published blocks, and of those found on disk after a start, where it is known.
  std::optional<BlockKey> parent;
  uint32_t position = 0;
  uint32_t token_count = 0;
};

struct WatchOptions {
  std::vector<NamespaceId> namespaces;  // empty: all
  bool has_snapshot = true;
  // An earlier watch of the store's incarnation `resume_epoch` was told all up to
  // `resume_sequence`, its kSnapshotEnd included: go on after it. 0: there was none.
  uint64_t resume_epoch = 0;
  uint64_t resume_sequence = 0;
};

struct WatchPiece {
  WatchNotice notice = WatchNotice::kNone;
  // With kStarted and kSnapshotBegin: events were missed since what was to be resumed.
  bool is_gap = false;
  std::vector<BlockEvent> events;
  uint64_t sequence = 0;  // all events up to this one have been told, or are not of its namespaces
  bool is_waiting = false;  // nothing follows for now
  absl::Status why;         // with kCutOff: the limit
  bool is_empty() const { return notice == WatchNotice::kNone && events.empty(); }
};

// Thread safety: thread-compatible. Must die before its store.
class BlockWatch {
 public:
  virtual ~BlockWatch() = default;

  // What comes next, at most some hundred blocks; never waits. After kCutOff nothing follows.
  virtual WatchPiece Next() = 0;
  // The log has gone past what was told: Next() will say kCutOff. False for a watch that is over.
  virtual bool is_too_late() const = 0;
};

}  // namespace ibid
