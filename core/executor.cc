#include "core/executor.h"

#include <pthread.h>

#include <utility>

namespace ibid {

Executor::Executor(std::string name, size_t threads_count, size_t queue_capacity)
    : queue_(queue_capacity) {
  IBID_CHECK(threads_count > 0);
  for (size_t i = 0; i < threads_count; ++i) {
    threads_.emplace_back([this] {
      while (true) {
        auto work = queue_.Pop(absl::Hours(1));
        if (work.has_value()) {
          (*work)();
        } else if (queue_.is_closed()) {
          return;
        }
      }
    });
    pthread_setname_np(threads_.back().native_handle(), name.substr(0, 15).c_str());
  }
}

Executor::~Executor() {
  queue_.Close();
  for (std::thread& thread : threads_) thread.join();
}

bool Executor::TrySubmit(std::function<void()> work) { return queue_.TryPush(std::move(work)); }

}  // namespace ibid
