// Invariants: task_, count_ change only while no helper is active and the run is closed. A helper
// touches them only between joining an open run and leaving it, both under the mutex. The caller
// closes the run once all tasks are claimed, so a helper that wakes late finds it closed and goes
// back to waiting.
#include "worker/backend/work_team.h"

#include <chrono>

namespace ibid {
namespace {

// A step is a row of short runs: polling this long spares most of them the 50 us that a sleeping
// thread takes to wake.
constexpr std::chrono::microseconds kPoll(50);

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns as soon as `condition` is false, or after kPoll.
template <typename Condition>
void PollWhile(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + kPoll;
  do {
    for (int i = 0; i < 64; ++i) {
      if (!condition()) return;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < until);
}

}  // namespace

WorkTeam::WorkTeam(size_t threads, void (*on_start)()) {
  for (size_t i = 1; i < threads; ++i) {
    helpers_.emplace_back([this, i, on_start] { HelperLoop(i, on_start); });
  }
}

WorkTeam::~WorkTeam() {
  {
    MutexLock lock(mutex_);
    is_stopping_ = true;
    run_.fetch_add(1, std::memory_order_release);
    wake_.NotifyAll();
  }
  for (std::thread& helper : helpers_) helper.join();
}

void WorkTeam::Run(size_t count, absl::FunctionRef<void(size_t, size_t)> task) {
  if (helpers_.empty() || count <= 1) {
    for (size_t i = 0; i < count; ++i) task(i, 0);
    return;
  }
  {
    MutexLock lock(mutex_);
    count_ = count;
    task_ = &task;
    next_.store(0, std::memory_order_relaxed);
    is_open_ = true;
    run_.fetch_add(1, std::memory_order_release);
    if (sleeping_ > 0) wake_.NotifyAll();
  }
  ClaimTasks(0);
  {
    MutexLock lock(mutex_);
    is_open_ = false;
  }
  PollWhile([this] { return active_.load(std::memory_order_acquire) > 0; });
  MutexLock lock(mutex_);
  while (active_.load(std::memory_order_relaxed) > 0) done_.Wait(mutex_);
  task_ = nullptr;
}

void WorkTeam::ClaimTasks(size_t thread) {
  for (size_t i = next_.fetch_add(1, std::memory_order_relaxed); i < count_;
       i = next_.fetch_add(1, std::memory_order_relaxed)) {
    (*task_)(i, thread);
  }
}

void WorkTeam::AwaitRun(uint64_t seen) {
  PollWhile([this, seen] { return run_.load(std::memory_order_acquire) == seen; });
  MutexLock lock(mutex_);
  ++sleeping_;
  while (run_.load(std::memory_order_relaxed) == seen) wake_.Wait(mutex_);
  --sleeping_;
}

WorkTeam::Entry WorkTeam::Enter(uint64_t* seen) {
  MutexLock lock(mutex_);
  if (is_stopping_) return Entry::kStop;
  *seen = run_.load(std::memory_order_relaxed);
  if (!is_open_) return Entry::kLate;
  active_.fetch_add(1, std::memory_order_relaxed);
  return Entry::kJoined;
}

void WorkTeam::HelperLoop(size_t thread, void (*on_start)()) {
  on_start();
  uint64_t seen = 0;
  while (true) {
    AwaitRun(seen);
    const Entry entry = Enter(&seen);
    if (entry == Entry::kStop) return;
    if (entry == Entry::kLate) continue;
    ClaimTasks(thread);
    MutexLock lock(mutex_);
    if (active_.fetch_sub(1, std::memory_order_release) == 1 && !is_open_) done_.NotifyOne();
  }
}

}  // namespace ibid
