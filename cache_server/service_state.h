// What the calls of one server share, of CacheService and AdminService. Private to the services.
#pragma once

#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "cache_server/block_store.h"
#include "cache_server/rpc_metrics.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "transport/shm_listener.h"

namespace ibid {

// Counts everything that still refers to the store: streams, and blocks that gRPC has not finished
// sending. Thread-safe.
class HoldCount {
 public:
  // False when holds are left after `timeout`.
  bool WaitForNone(absl::Duration timeout) {
    const SteadyClock clock;
    const absl::Time until = clock.Now() + timeout;
    MutexLock lock(mutex_);
    while (count_ > 0) {
      const absl::Duration left = until - clock.Now();
      if (left <= absl::ZeroDuration()) return false;
      none_.WaitFor(mutex_, left);
    }
    return true;
  }

 private:
  friend class Hold;
  void Change(int by) {
    MutexLock lock(mutex_);
    count_ += by;
    if (count_ == 0) none_.NotifyAll();
  }

  Mutex mutex_;
  CondVar none_;
  int64_t count_ IBID_GUARDED_BY(mutex_) = 0;
};

// One of them, for as long as it lives.
class Hold {
 public:
  explicit Hold(std::shared_ptr<HoldCount> count) : count_(std::move(count)) { count_->Change(1); }
  ~Hold() { count_->Change(-1); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  const std::shared_ptr<HoldCount> count_;
};

struct ServiceState {
  BlockStore* store = nullptr;
  const ShmListener* shm = nullptr;  // null: no client has the arena mapped
  uint64_t incarnation = 0;
  absl::Duration heartbeat;
  absl::Duration stalled_max;  // a fetch whose client takes nothing for so long is over
  absl::Duration lease_ttl;
  absl::Duration wait_pending_max;  // a match waits no longer, whatever it asks for
  std::shared_ptr<HoldCount> holds = std::make_shared<HoldCount>();
  RpcMetrics metrics;

  explicit ServiceState(MetricsRegistry* registry) : metrics(registry) {}
};

}  // namespace ibid
