#include "worker/engine/token_stream.h"

#include <utility>

#include "core/check.h"

namespace ibid {

TokenStream::TokenStream(RequestId id, size_t tokens_max) : id_(id), tokens_max_(tokens_max) {}

std::optional<StreamItem> TokenStream::Next(absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  MutexLock lock(mutex_);
  while (pending_.is_empty()) {
    const absl::Duration left = until - absl::Now();
    if (is_finish_taken_ || left <= absl::ZeroDuration()) return std::nullopt;
    changed_.WaitFor(mutex_, left);
  }
  is_finish_taken_ = pending_.finish.has_value();
  return std::exchange(pending_, {});
}

StreamItem TokenStream::TakeAll() {
  MutexLock lock(mutex_);
  if (pending_.finish.has_value()) is_finish_taken_ = true;
  return std::exchange(pending_, {});
}

void TokenStream::SetListener(std::function<void()> listener) {
  auto shared = std::make_shared<std::function<void()>>(std::move(listener));
  {
    MutexLock lock(mutex_);
    IBID_CHECK(listener_ == nullptr);
    if (!is_closed_) listener_ = shared;
    if (pending_.is_empty()) return;
  }
  (*shared)();
}

void TokenStream::Push(std::optional<uint32_t> token, absl::string_view text) {
  {
    MutexLock lock(mutex_);
    IBID_CHECK(!is_closed_);
    if (token.has_value()) pending_.tokens.push_back(*token);
    IBID_CHECK(pending_.tokens.size() <= tokens_max_);
    pending_.text.append(text.data(), text.size());
    if (pending_.is_empty()) return;
  }
  NotifyReader();
}

void TokenStream::Close(Finish finish) {
  {
    MutexLock lock(mutex_);
    IBID_CHECK(!is_closed_);
    is_closed_ = true;
    pending_.finish = std::move(finish);
  }
  NotifyReader();
  // The listener may own what owns this stream: forgetting it breaks the circle.
  std::shared_ptr<std::function<void()>> forgotten;
  MutexLock lock(mutex_);
  forgotten.swap(listener_);
}

void TokenStream::NotifyReader() {
  std::shared_ptr<std::function<void()>> listener;
  {
    MutexLock lock(mutex_);
    listener = listener_;
  }
  changed_.NotifyAll();
  if (listener != nullptr) (*listener)();
}

}  // namespace ibid
