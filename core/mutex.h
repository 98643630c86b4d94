// std::mutex and std::condition_variable under clang's capability attributes. absl::Mutex is not
// used: ThreadSanitizer reports false races for it where the distribution's Abseil is not
// instrumented.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"

#if defined(__clang__)
#define IBID_ATTRIBUTE(x) __attribute__((x))
#else
#define IBID_ATTRIBUTE(x)
#endif
#define IBID_GUARDED_BY(x) IBID_ATTRIBUTE(guarded_by(x))
#define IBID_PT_GUARDED_BY(x) IBID_ATTRIBUTE(pt_guarded_by(x))
#define IBID_REQUIRES(...) IBID_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define IBID_EXCLUDES(...) IBID_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define IBID_NO_THREAD_SAFETY_ANALYSIS IBID_ATTRIBUTE(no_thread_safety_analysis)

namespace ibid {

class IBID_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void Lock() IBID_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void Unlock() IBID_ATTRIBUTE(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class IBID_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) IBID_ATTRIBUTE(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() IBID_ATTRIBUTE(release_capability()) { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Wakes are spurious: wait in a loop over the condition.
class CondVar {
 public:
  void Wait(Mutex& mutex) IBID_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // False when `timeout` passed without a wake.
  bool WaitFor(Mutex& mutex, absl::Duration timeout) IBID_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    // ThreadSanitizer of g++ 12 does not see waits by the steady clock; without it, nobody may set
    // the clock back.
#if defined(__SANITIZE_THREAD__)
    using WaitClock = std::chrono::system_clock;
#else
    using WaitClock = std::chrono::steady_clock;
#endif
    const auto until =
        WaitClock::now() +
        std::chrono::nanoseconds(absl::ToInt64Nanoseconds(std::min(timeout, absl::Hours(24))));
    const bool woken = condition_.wait_until(lock, until) == std::cv_status::no_timeout;
    lock.release();
    return woken;
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace ibid
