// Inbox is the one way into the engine thread: requests, cancellations and the store's answers.
//
// Thread safety: every method, from any thread; Take from the engine thread only. Bounded: requests
// by max_waiting_requests, cancellations and answers by the requests and jobs there are.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/mutex.h"
#include "worker/engine/connector.h"
#include "worker/engine/sequence.h"

namespace ibid {

struct InboxItems {
  std::vector<std::unique_ptr<Sequence>> submissions;
  std::vector<RequestId> cancellations;
  std::vector<StoreCompletion> completions;
  bool is_stopping = false;

  bool is_empty() const {
    return submissions.empty() && cancellations.empty() && completions.empty() && !is_stopping;
  }
};

class Inbox {
 public:
  explicit Inbox(uint32_t max_waiting_requests) : waiting_max_(max_waiting_requests) {}

  // Errors: ResourceExhausted (max_waiting_requests), Unavailable (closed).
  absl::Status Submit(std::unique_ptr<Sequence> sequence);
  void Cancel(RequestId id);
  void Complete(StoreCompletion completion);
  // Submit is refused from now on. Returns how many requests were accepted in all.
  uint64_t CloseToRequests();
  void Stop();

  // All there is, after waiting at most `wait` for anything.
  InboxItems Take(absl::Duration wait);
  // `count` requests are waiting no more.
  void OnAdmitted(uint32_t count);

 private:
  const uint32_t waiting_max_;
  Mutex mutex_;
  CondVar changed_;
  InboxItems items_ IBID_GUARDED_BY(mutex_);
  uint32_t waiting_count_ IBID_GUARDED_BY(mutex_) = 0;
  uint64_t accepted_count_ IBID_GUARDED_BY(mutex_) = 0;
  bool is_closed_ IBID_GUARDED_BY(mutex_) = false;
};

}  // namespace ibid
