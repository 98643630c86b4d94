// TokenStream carries one request's output from the engine to its reader. The engine never waits
// for the reader: a stream holds at most max_tokens tokens, because that is all a request can make.
//
// Thread safety: one engine thread (Push, Close) and one reader, at the same time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/mutex.h"
#include "worker/engine/request.h"

namespace ibid {

class TokenStream {
 public:
  TokenStream(RequestId id, size_t tokens_max);

  RequestId id() const { return id_; }

  // All that is there, as one item; nothing after `timeout`, or when the finish was taken already.
  std::optional<StreamItem> Next(absl::Duration timeout);
  // The same without waiting; may be empty.
  StreamItem TakeAll();

  // `listener` is called, with no lock held, on the engine thread whenever something was added, and
  // at once if something is there. It must be quick. It is forgotten after the finish. At most one
  // call of this function.
  void SetListener(std::function<void()> listener);

  // The engine's side. REQUIRES: not closed; at most tokens_max tokens in all.
  void Push(std::optional<uint32_t> token, absl::string_view text);
  void Close(Finish finish);

 private:
  void NotifyReader();

  const RequestId id_;
  const size_t tokens_max_;
  Mutex mutex_;
  CondVar changed_;
  StreamItem pending_ IBID_GUARDED_BY(mutex_);
  bool is_closed_ IBID_GUARDED_BY(mutex_) = false;
  bool is_finish_taken_ IBID_GUARDED_BY(mutex_) = false;
  std::shared_ptr<std::function<void()>> listener_ IBID_GUARDED_BY(mutex_);
};

}  // namespace ibid
