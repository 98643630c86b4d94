// The last changes of all blocks, in one numbered order, kept while somebody watches.
//
// A change is numbered under the lock of its entry's shard, so the order of one block's events is
// that of its states, and who reads an entry under that lock and the log's number afterwards knows
// which events its state has in it already.
//
// Numbers are dense while the log records. It records from the first watcher on until nobody has
// watched for as many events as it keeps: who left could not go on after that anyway. Numbers skip
// one when recording begins again.
//
// Thread safety: every method, from any thread. The log's lock is a leaf: it is taken while a
// shard's is held, the one place where two are, because a number given after the shard was unlocked
// could come in another order than the change. It is held for a copy of some hundred bytes, or of a
// batch to a reader.
// Memory: events_max times 80 bytes while recording.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache_server/block_index.h"
#include "cache_server/block_watch.h"
#include "cache_server/namespace_table.h"
#include "cache_server/store_counters.h"
#include "core/metrics.h"
#include "core/mutex.h"

namespace ibid {

// The tiers in which readers find the block.
TierSet TiersOf(const IndexEntry& entry);

class EventLog {
 public:
  // REQUIRES: events_max and watchers_max are positive.
  EventLog(uint32_t events_max, uint32_t watchers_max, MetricsRegistry* metrics);

  // Whoever changes what TiersOf says of an entry that is not doomed tells it here, after the
  // change and before the shard is unlocked. Without watchers each costs one load.
  //
  // The first copy of a block. `parent` null: not known.
  void TellNew(const IndexEntry& entry, TierName tier, const NamespaceInfo& ns,
               const BlockKey* parent) {
    if (!IsTold(entry)) return;
    Append(entry, BlockChange::kStored, tier, TiersOf(entry), &ns, parent);
  }
  // A further copy: kStored or kPromoted.
  void TellCame(const IndexEntry& entry, TierName tier, BlockChange change) {
    if (IsTold(entry)) Append(entry, change, tier, TiersOf(entry), nullptr, nullptr);
  }
  // A copy left, or with the last one the block.
  void TellLeft(const IndexEntry& entry, TierName tier) {
    if (!IsTold(entry)) return;
    const TierSet tiers = TiersOf(entry);
    Append(entry, tiers.is_empty() ? BlockChange::kRemoved : BlockChange::kDemoted, tier, tiers,
           nullptr, nullptr);
  }
  // The block leaves with all its copies, now or when nothing uses it any more. `had`: what TiersOf
  // said before.
  void TellDropped(const IndexEntry& entry, TierSet had);

  // Where a watcher begins.
  struct Start {
    uint64_t sequence = 0;  // it has been told, or does not need, the events up to this one
    bool is_resumed = false;
  };
  // `resume`: after this event if the log still has what follows it, else from now on. `all`: the
  // namespaces of the store. Errors: ResourceExhausted (watchers_max).
  absl::StatusOr<Start> AddWatcher(std::optional<uint64_t> resume, const NamespaceTable& all);
  void RemoveWatcher();
  void CountCutOff() { cut_offs_.Add(); }

  // Appends to `events` what follows `*sequence`, at most `count`, and moves it. False when that is
  // not kept any more.
  bool Read(uint64_t* sequence, size_t count, std::vector<BlockEvent>* events);
  bool IsKept(uint64_t sequence) const;  // Read would succeed
  uint64_t last_sequence() const;
  // Waits until last_sequence() is over `sequence`, or `timeout`; returns it.
  uint64_t WaitFor(uint64_t sequence, absl::Duration timeout);

  // Their names are forgotten once no event that is kept is of them.
  void CloseNamespaces(std::span<const NamespacePtr> namespaces);
  // Ends recording when it is due.
  void RunMaintenance();

 private:
  struct LoggedEvent {
    BlockKey key;
    BlockKey parent;
    uint32_t ns = 0;  // NamespaceInfo::number
    uint32_t position = 0;
    uint32_t token_count = 0;
    BlockChange change = BlockChange::kStored;
    TierName tier = TierName::kHost;
    TierSet tiers;
    bool has_parent = false;
  };
  static_assert(sizeof(LoggedEvent) <= 88);
  struct Name {
    NamespaceId id;
    uint64_t last_sequence = 0;  // of an event of it
  };

  // What happens to a block after it was dropped concerns nobody: it was told as removed.
  bool IsTold(const IndexEntry& entry) const {
    return is_recording_.load(std::memory_order_acquire) && !entry.Has(kDoomed);
  }
  void Append(const IndexEntry& entry, BlockChange change, TierName tier, TierSet tiers,
              const NamespaceInfo* ns, const BlockKey* parent) IBID_EXCLUDES(mutex_);
  // The oldest event that is kept; the next to come when none is.
  uint64_t oldest() const IBID_REQUIRES(mutex_);
  void ForgetNames() IBID_REQUIRES(mutex_);

  const uint32_t events_max_;
  const uint32_t watchers_max_;
  std::atomic<bool> is_recording_{false};
  std::array<Tally, 5> events_count_;  // by BlockChange
  Tally cut_offs_;
  prometheus::Gauge* watchers_gauge_ = nullptr;

  mutable Mutex mutex_;
  CondVar came_;
  std::vector<LoggedEvent> ring_ IBID_GUARDED_BY(mutex_);  // empty unless recording
  uint64_t first_ IBID_GUARDED_BY(mutex_) = 1;             // since recording began
  uint64_t next_ IBID_GUARDED_BY(mutex_) = 1;
  uint32_t watchers_count_ IBID_GUARDED_BY(mutex_) = 0;
  uint64_t left_at_ IBID_GUARDED_BY(mutex_) = 0;  // next_ when the last watcher went
  bool is_awaited_ IBID_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<uint32_t, Name> names_ IBID_GUARDED_BY(mutex_);
  std::deque<uint32_t> closed_ IBID_GUARDED_BY(mutex_);  // namespaces with events that are kept
};

}  // namespace ibid
