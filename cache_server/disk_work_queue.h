// What the disk writer has to do: removals first, then writes, oldest first.
//
// Thread safety: every method, from any thread; Take and Done belong to the writer.
// Limits: writes are bounded (disk_write_queue_max, and as many again that somebody waits for; a
// push is refused); removals are at most one a block.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "cache_server/namespace_table.h"
#include "core/eviction/block_lists.h"
#include "core/mutex.h"

namespace ibid {

// A block to be written. The queue keeps the entry (one of its refs), not the bytes: what is
// evicted before its turn is not written.
struct DiskWrite {
  EntryId id = kNoEntry;
  NamespacePtr ns;
  bool evict_after = false;  // a demotion
  std::function<void(absl::Status)>
      durable_done;  // not null: someone waits; the bytes are held too
};

// A record to be deleted, unless by now it is that of the same block somewhere else on disk; with
// `frees_slot` the slot at `page` is free afterwards.
struct DiskRemoval {
  uint32_t ns = 0;
  BlockKey key;
  uint32_t page = 0;
  bool frees_slot = false;
};

struct DiskWork {
  std::vector<DiskRemoval> removals;
  std::vector<DiskWrite> writes;
};

class DiskWorkQueue {
 public:
  explicit DiskWorkQueue(size_t writes_max) : writes_max_(writes_max) {}

  // False, and `write` is unchanged, when the queue is full or closed. Durable writes have as much
  // room again.
  bool PushWrite(DiskWrite&& write);
  void PushRemoval(const DiskRemoval& removal);

  // Some of the work, at most `writes_max` writes, no removals unless asked for. Waits for work
  // until `timeout`, or Close. Nothing comes while paused.
  DiskWork Take(size_t writes_max, bool with_removals, absl::Duration timeout);
  // The work taken last is done.
  void Done();

  void Pause(bool is_paused);
  bool is_paused() const;
  // Wakes Take. Pushes of writes are refused from now on.
  void Close();
  bool is_closed() const;
  // Waits until there is no work, queued or taken, nor any to come out of a pause. False after
  // `timeout`.
  bool WaitUntilIdle(absl::Duration timeout);
  // Waits until no removal is queued or taken, nor to come from writes that are taken now. False
  // after `timeout`.
  bool WaitForRemovals(absl::Duration timeout);
  // What is left after Close.
  DiskWork TakeRest();
  // The queued writes that somebody waits for, paused or not.
  std::vector<DiskWrite> TakeDurableWrites();

  size_t writes_count() const;  // queued or taken
  // A write would be taken now. Without a lock: for who has many to push, or none.
  bool has_room() const { return has_room_.load(std::memory_order_relaxed); }

 private:
  bool HasWork(bool with_removals) const IBID_REQUIRES(mutex_);
  void UpdateRoom() IBID_REQUIRES(mutex_) {
    has_room_.store(!is_closed_ && writes_.size() < writes_max_, std::memory_order_relaxed);
  }
  template <typename Condition>
  bool WaitUntil(const Condition& condition, absl::Duration timeout) IBID_REQUIRES(mutex_);
  bool is_idle() const IBID_REQUIRES(mutex_) {
    return !is_paused_ && writes_.empty() && removals_.empty() && taken_writes_ == 0 && !is_taken_;
  }

  const size_t writes_max_;
  mutable Mutex mutex_;
  CondVar has_work_;
  CondVar idle_;
  std::deque<DiskWrite> writes_ IBID_GUARDED_BY(mutex_);
  std::atomic<bool> has_room_{true};
  std::vector<DiskRemoval> removals_ IBID_GUARDED_BY(mutex_);
  size_t taken_writes_ IBID_GUARDED_BY(mutex_) = 0;
  size_t taken_removals_ IBID_GUARDED_BY(mutex_) = 0;
  bool is_taken_ IBID_GUARDED_BY(mutex_) = false;
  uint64_t taken_count_ IBID_GUARDED_BY(mutex_) = 0;  // pieces of work taken so far
  bool is_paused_ IBID_GUARDED_BY(mutex_) = false;
  bool is_closed_ IBID_GUARDED_BY(mutex_) = false;
};

}  // namespace ibid
