// A first-in first-out queue between threads, with a capacity. What happens when it is full is the
// caller's choice at each push: TryPush refuses. Nothing waits without a limit.
#pragma once

#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/check.h"
#include "core/mutex.h"

namespace ibid {

// Thread-safe.
template <typename T>
class BoundedQueue {
 public:
  // REQUIRES: capacity > 0.
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) { IBID_CHECK(capacity > 0); }
  size_t capacity() const { return capacity_; }

  // False, and `item` is unchanged, when the queue is full or closed.
  bool TryPush(T&& item) {
    {
      MutexLock lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
    }
    not_empty_.NotifyOne();
    return true;
  }

  // The oldest item; nothing after `timeout`, or once the queue is closed and empty.
  std::optional<T> Pop(absl::Duration timeout) {
    MutexLock lock(mutex_);
    while (items_.empty()) {
      if (closed_ || !not_empty_.WaitFor(mutex_, timeout)) break;
    }
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

  // All items there are now, oldest first; never waits.
  std::vector<T> DrainAll() {
    MutexLock lock(mutex_);
    std::vector<T> all(std::make_move_iterator(items_.begin()),
                       std::make_move_iterator(items_.end()));
    items_.clear();
    return all;
  }

  // Refuses further pushes and wakes all who wait. What is inside can still be popped.
  void Close() {
    {
      MutexLock lock(mutex_);
      closed_ = true;
    }
    not_empty_.NotifyAll();
  }

  bool is_closed() const {
    MutexLock lock(mutex_);
    return closed_;
  }
  size_t size() const {
    MutexLock lock(mutex_);
    return items_.size();
  }

 private:
  const size_t capacity_;
  mutable Mutex mutex_;
  CondVar not_empty_;
  std::deque<T> items_ IBID_GUARDED_BY(mutex_);
  bool closed_ IBID_GUARDED_BY(mutex_) = false;
};

}  // namespace ibid
