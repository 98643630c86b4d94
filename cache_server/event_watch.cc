// A watch is a place in the event log and, while it has a snapshot to tell, a place in the index.
//
//   kBegin --resumed, or no snapshot--------------------------------> kLive
//      \--snapshot--> kWalking --all places visited--> kSettling --^    |
//                         \____________________________\________________\---> kOver (cut off)
//
// Why the picture is exact at kSnapshotEnd: a block's state is read under its shard's lock, so all
// its events with numbers up to that moment's are in it, and later ones are told after it.
// kSettling lasts until all events up to the walk's end have been told. Events that a page has in
// it already may be told after the page: they are overtaken by the block's last event, which brings
// back the state that the page told.
#include "cache_server/event_watch.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "core/check.h"
#include "core/limit.h"

namespace ibid {
namespace {

// Blocks and events in one piece, about.
constexpr size_t kPieceBlocks = 512;
// Events copied under one lock of the log; looked at for one piece, when the filter takes few.
constexpr size_t kReadBatch = 128;
constexpr size_t kReadsPerPiece = 64;
// Places of the index visited under one lock of a shard; and for one piece.
constexpr uint32_t kWalkPlaces = 256;
constexpr int kWalksPerPiece = 64;
// While a snapshot is told, events go first once this share of the log is waiting to be told.
constexpr uint64_t kUrgentDivisor = 4;

// A block met on the walk, whose entry stays until its parent's key was looked up.
struct Met {
  EntryId id = kNoEntry;
  EntryId parent = kNoEntry;
  uint32_t ns = 0;
  BlockEvent event;
};

class StoreWatch final : public BlockWatch {
 public:
  StoreWatch(StoreParts& parts, Residency& residency, const WatchOptions& options,
             const EventLog::Start& start, bool is_gap)
      : parts_(parts),
        residency_(residency),
        filter_(options.namespaces.begin(), options.namespaces.end()),
        has_snapshot_(options.has_snapshot),
        is_resumed_(start.is_resumed),
        is_gap_(is_gap),
        sequence_(start.sequence) {}
  ~StoreWatch() override {
    if (is_too_late()) parts_.events.CountCutOff();
    parts_.events.RemoveWatcher();
  }

  WatchPiece Next() override {
    WatchPiece piece;
    switch (phase_) {
      case Phase::kBegin:
        Begin(&piece);
        break;
      case Phase::kWalking:
        // By turns, so that neither a busy store nor a large one keeps the other from being told.
        if (!is_event_turn_ && !IsUrgent()) {
          WalkOn(&piece);
        } else {
          TellEvents(&piece);
        }
        is_event_turn_ = !is_event_turn_;
        piece.is_waiting = false;
        break;
      case Phase::kSettling:
        if (sequence_ >= settled_at_) {
          piece.notice = WatchNotice::kSnapshotEnd;
          phase_ = Phase::kLive;
        } else {
          TellEvents(&piece);
          piece.is_waiting = false;  // at least the snapshot's end
        }
        break;
      case Phase::kLive:
        TellEvents(&piece);
        break;
      case Phase::kOver:
        piece.is_waiting = true;
        break;
    }
    piece.sequence = sequence_;
    return piece;
  }

  bool is_too_late() const override {
    return phase_ != Phase::kOver && !parts_.events.IsKept(sequence_);
  }

 private:
  enum class Phase { kBegin, kWalking, kSettling, kLive, kOver };

  void Begin(WatchPiece* piece) {
    piece->is_gap = is_gap_;
    if (is_resumed_) {
      piece->notice = WatchNotice::kResumed;
    } else {
      piece->notice = has_snapshot_ ? WatchNotice::kSnapshotBegin : WatchNotice::kStarted;
    }
    phase_ = has_snapshot_ && !is_resumed_ ? Phase::kWalking : Phase::kLive;
  }

  bool IsUrgent() const {
    return parts_.events.last_sequence() - sequence_ >
           parts_.options.event_log_max / kUrgentDivisor;
  }

  bool IsWanted(const NamespaceId& ns) const { return filter_.empty() || filter_.contains(ns); }

  void TellEvents(WatchPiece* piece) {
    std::vector<BlockEvent> read;
    for (size_t i = 0; i < kReadsPerPiece && piece->events.size() < kPieceBlocks; ++i) {
      read.clear();
      const uint64_t before = sequence_;
      if (!parts_.events.Read(&sequence_, kReadBatch, &read)) {
        // What was read before it is complete, but there is no use in it.
        piece->events.clear();
        piece->notice = WatchNotice::kCutOff;
        piece->why = LimitReached("Watch: the watcher reads too slowly", "event_log_max",
                                  parts_.options.event_log_max);
        phase_ = Phase::kOver;
        parts_.events.CountCutOff();
        return;
      }
      for (BlockEvent& event : read) {
        if (IsWanted(event.ns)) piece->events.push_back(std::move(event));
      }
      piece->is_waiting = sequence_ - before < kReadBatch;
      if (piece->is_waiting) return;
    }
  }

  void WalkOn(WatchPiece* piece) {
    for (int i = 0; i < kWalksPerPiece && piece->events.size() < kPieceBlocks; ++i) {
      if (shard_ == BlockIndex::kShardsCount) {
        phase_ = Phase::kSettling;
        settled_at_ = parts_.events.last_sequence();
        return;
      }
      std::vector<Met> met;
      IndexShard& shard = parts_.index.shard(shard_);
      bool has_more = false;
      {
        MutexLock lock(shard.mutex);
        has_more = shard.VisitPlaces(&place_, kWalkPlaces, [&met](EntryId id, IndexEntry& entry) {
          if (entry.Has(kMapped)) Meet(id, entry, &met);
        });
      }
      if (!has_more) {
        ++shard_;
        place_ = 0;
      }
      for (Met& block : met) TellHeld(std::move(block), piece);
    }
  }

  static void Meet(EntryId id, IndexEntry& entry, std::vector<Met>* met) {
    const TierSet tiers = TiersOf(entry);
    if (tiers.is_empty()) return;
    ++entry.refs;
    Met& block = met->emplace_back();
    block.id = id;
    block.parent = entry.parent;
    block.ns = entry.ns;
    block.event.key = entry.key;
    block.event.tiers = tiers;
    block.event.position = entry.details().position;
    block.event.token_count = entry.details().token_count;
    for (const TierName tier : kTiersByScale) {
      if (!tiers.Has(tier)) continue;
      block.event.tier = tier;
      break;
    }
  }

  void TellHeld(Met block, WatchPiece* piece) {
    // Walks ask for few namespaces, again and again: the table's lock is spared.
    if (ns_ == nullptr || ns_->number != block.ns) ns_ = parts_.namespaces.Find(block.ns);
    if (ns_ != nullptr && IsWanted(ns_->id)) {
      block.event.ns = ns_->id;
      if (block.parent != kNoEntry) {
        IndexShard& shard = parts_.index.ShardOf(block.parent);
        MutexLock lock(shard.mutex);
        block.event.parent = shard.Get(block.parent).key;
      } else if (block.event.position == 0) {
        block.event.parent = RootParent(ns_->id);
      }
      piece->events.push_back(std::move(block.event));
    }
    residency_.DropRef(block.id);
  }

  StoreParts& parts_;
  Residency& residency_;
  const absl::flat_hash_set<NamespaceId> filter_;
  const bool has_snapshot_;
  const bool is_resumed_;
  const bool is_gap_;
  Phase phase_ = Phase::kBegin;
  uint64_t sequence_;  // told
  bool is_event_turn_ = false;
  uint32_t shard_ = 0;  // the walk's place
  uint32_t place_ = 0;
  NamespacePtr ns_;  // that the walk met last
  uint64_t settled_at_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BlockWatch>> StartWatch(StoreParts& parts, Residency& residency,
                                                       uint64_t epoch,
                                                       const WatchOptions& options) {
  std::optional<uint64_t> resume;
  if (options.resume_epoch == epoch) resume = options.resume_sequence;
  IBID_ASSIGN_OR_RETURN(const EventLog::Start start,
                        parts.events.AddWatcher(resume, parts.namespaces));
  const bool is_gap = options.resume_epoch != 0 && !start.is_resumed;
  return std::unique_ptr<BlockWatch>(
      std::make_unique<StoreWatch>(parts, residency, options, start, is_gap));
}

}  // namespace ibid
