// A fixed number of threads that run closures from one bounded queue.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/bounded_queue.h"

namespace ibid {

// Thread-safe. Closures may submit further closures.
class Executor {
 public:
  // `name` names the threads (at most 15 characters are seen). REQUIRES: threads_count > 0,
  // queue_capacity > 0.
  Executor(std::string name, size_t threads_count, size_t queue_capacity);
  // Runs what is queued, then joins.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // False, and nothing is run, when the queue is full or the executor is stopping.
  [[nodiscard]] bool TrySubmit(std::function<void()> work);

  size_t queued_count() const { return queue_.size(); }
  size_t capacity() const { return queue_.capacity(); }

 private:
  BoundedQueue<std::function<void()>> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace ibid
