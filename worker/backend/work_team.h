// WorkTeam splits one loop over a few threads, and the calling thread is one of them.
//
// Helpers that the system does not schedule in time are not waited for: tasks are claimed one by
// one, and the caller claims what is left. (With an OpenMP barrier on a machine whose cores are
// shared, a 20 us product took 8 ms.)
//
// Thread safety: Run by one thread at a time. Between two runs helpers poll for a moment, then
// sleep.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "core/mutex.h"

namespace ibid {

class WorkTeam {
 public:
  // `threads` counts the caller. `on_start` runs once on every helper thread, before its first
  // task.
  WorkTeam(size_t threads, void (*on_start)());
  ~WorkTeam();
  WorkTeam(const WorkTeam&) = delete;
  WorkTeam& operator=(const WorkTeam&) = delete;

  size_t threads() const { return helpers_.size() + 1; }

  // Calls task(index, thread) for every index in [0, count), in no order, thread in [0, threads());
  // returns when all are done. Tasks must not call Run.
  void Run(size_t count, absl::FunctionRef<void(size_t index, size_t thread)> task);

 private:
  void HelperLoop(size_t thread, void (*on_start)());
  // Returns when a run other than `seen` began, or the team ends.
  void AwaitRun(uint64_t seen);
  // Takes part in the run, if it is still open; `seen` becomes its number.
  enum class Entry { kJoined, kLate, kStop };
  Entry Enter(uint64_t* seen);
  void ClaimTasks(size_t thread);

  std::atomic<uint64_t> run_ = 0;  // number of runs so far; changes when there may be work
  std::atomic<size_t> next_ = 0;   // first task that nobody claimed
  Mutex mutex_;
  CondVar wake_, done_;
  size_t sleeping_ IBID_GUARDED_BY(mutex_) = 0;
  std::atomic<size_t> active_ =
      0;  // helpers that joined the open run; changes under the mutex only
  bool is_open_ IBID_GUARDED_BY(mutex_) = false;
  bool is_stopping_ IBID_GUARDED_BY(mutex_) = false;
  size_t count_ = 0;
  const absl::FunctionRef<void(size_t, size_t)>* task_ = nullptr;
  std::vector<std::thread> helpers_;
};

}  // namespace ibid
