#include "worker/engine/inbox.h"

#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/limit.h"

namespace ibid {

absl::Status Inbox::Submit(std::unique_ptr<Sequence> sequence) {
  {
    MutexLock lock(mutex_);
    if (is_closed_) return absl::UnavailableError("the worker is shutting down");
    if (waiting_count_ >= waiting_max_) {
      return LimitReached("the worker's queue is full", "max_waiting_requests", waiting_max_);
    }
    ++waiting_count_;
    ++accepted_count_;
    items_.submissions.push_back(std::move(sequence));
  }
  changed_.NotifyOne();
  return absl::OkStatus();
}

void Inbox::Cancel(RequestId id) {
  {
    MutexLock lock(mutex_);
    items_.cancellations.push_back(id);
  }
  changed_.NotifyOne();
}

void Inbox::Complete(StoreCompletion completion) {
  {
    MutexLock lock(mutex_);
    items_.completions.push_back(std::move(completion));
  }
  changed_.NotifyOne();
}

uint64_t Inbox::CloseToRequests() {
  MutexLock lock(mutex_);
  is_closed_ = true;
  return accepted_count_;
}

void Inbox::Stop() {
  {
    MutexLock lock(mutex_);
    is_closed_ = true;
    items_.is_stopping = true;
  }
  changed_.NotifyOne();
}

InboxItems Inbox::Take(absl::Duration wait) {
  MutexLock lock(mutex_);
  if (items_.is_empty() && wait > absl::ZeroDuration()) changed_.WaitFor(mutex_, wait);
  return std::exchange(items_, {});
}

void Inbox::OnAdmitted(uint32_t count) {
  MutexLock lock(mutex_);
  IBID_CHECK(waiting_count_ >= count);
  waiting_count_ -= count;
}

}  // namespace ibid
