// The matches that wait for blocks which other sessions are filling. Each stands with the entry
// that it waits for, without a thread of its own; one thread goes on with those that were woken:
// because the entry settled, the time is over, or nobody wants the answer any more.
//
//      Admit      Park         WakeEntry, Cancel, EndAll, its time          Forget
//   --------> in hand ---> parked ---------------------------> in hand ---------->
//                 ^                                               |
//                 '----------------------- Park ------------------'   (the next pending block)
//
// Thread safety: every method, from any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "cache_server/block_store.h"
#include "cache_server/namespace_table.h"
#include "core/clock.h"
#include "core/eviction/block_lists.h"
#include "core/mutex.h"

namespace ibid {

// One of them. Owned by whoever has it in hand, or by the table.
struct MatchWait {
  SessionId session;
  std::vector<ShardChain> shards;
  std::vector<NamespacePtr> namespaces;  // of the shards
  MatchOptions options;
  MatchDone done;
  size_t position = 0;  // everything before this block of the chains is there
  // Of MatchWaits:
  uint64_t id = 0;
  absl::Time until;  // people wait by real time, whatever clock the store has
  size_t keys_count() const {
    return shards.empty() ? 0 : shards.size() * shards.front().keys.size();
  }
};

class MatchWaits {
 public:
  enum class Wake { kSettled, kOver, kCancelled };
  using Resume = std::function<void(std::unique_ptr<MatchWait>, Wake)>;

  MatchWaits(size_t waits_max, size_t keys_max) : waits_max_(waits_max), keys_max_(keys_max) {}
  ~MatchWaits() { Stop(); }

  // `resume` gets each wait that was woken, in hand, on the thread of this object.
  void Start(Resume resume);
  // Cancels all waits, and returns when all are forgotten. No later one is admitted.
  void Stop();

  // Gives the wait its id and its end. False when waits_max or keys_max are reached, or after
  // EndAll.
  bool Admit(MatchWait* wait);
  // REQUIRES: admitted.
  void Park(EntryId entry, std::unique_ptr<MatchWait> wait);
  void WakeEntry(EntryId entry);
  // Nothing when the wait is forgotten already.
  void Cancel(uint64_t id);
  // Resumes all waits as kOver, those in hand once they park. No later one is admitted.
  void EndAll();
  // The wait, in hand, is answered.
  void Forget(const MatchWait& wait);

  size_t count() const;

 private:
  struct Standing {
    std::unique_ptr<MatchWait> parked;  // null: in hand, or woken
    EntryId entry = kNoEntry;
    absl::Time until;
    bool is_cancelled = false;
  };

  void Run();
  void WakeOne(uint64_t id, Wake wake) IBID_REQUIRES(mutex_);

  const size_t waits_max_;
  const size_t keys_max_;
  const SteadyClock clock_;
  Resume resume_;
  std::thread thread_;

  mutable Mutex mutex_;
  CondVar changed_;
  absl::flat_hash_map<uint64_t, Standing> standing_ IBID_GUARDED_BY(mutex_);  // by id
  absl::flat_hash_map<EntryId, std::vector<uint64_t>> by_entry_ IBID_GUARDED_BY(mutex_);
  std::set<std::pair<absl::Time, uint64_t>> by_end_ IBID_GUARDED_BY(mutex_);  // parked ones
  std::deque<std::pair<std::unique_ptr<MatchWait>, Wake>> woken_ IBID_GUARDED_BY(mutex_);
  size_t keys_count_ IBID_GUARDED_BY(mutex_) = 0;
  uint64_t last_id_ IBID_GUARDED_BY(mutex_) = 0;
  bool is_ended_ IBID_GUARDED_BY(mutex_) = false;
  bool is_stopping_ IBID_GUARDED_BY(mutex_) = false;
};

}  // namespace ibid
