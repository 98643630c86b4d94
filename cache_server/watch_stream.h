// The server's side of Watch calls.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <thread>

#include "cache_server/stream_call.h"
#include "core/mutex.h"
#include "ibid/v1/cache.pb.h"

namespace ibid {

using WatchReactor = grpc::ServerWriteReactor<v1::WatchResponse>;

// All Watch calls that run, and the thread that wakes them when there are events: who changes the
// store sends nothing itself. Thread-safe.
class WatchStreams {
 public:
  // `state` must outlive it, and all calls.
  explicit WatchStreams(ServiceState* state);
  ~WatchStreams();  // REQUIRES: no call runs

  // Serves one call. The reactor owns itself.
  WatchReactor* Start(grpc::CallbackServerContext* context, const v1::WatchRequest& request);

  // Ends all calls with `why` and refuses new ones with it.
  void EndAll(const absl::Status& why) { calls_.EndAll(why); }

 private:
  void Run();
  size_t AdvanceAll();

  ServiceState* const state_;
  RunningCalls<WatchReactor> calls_;
  Mutex mutex_;
  CondVar changed_;
  bool has_calls_ IBID_GUARDED_BY(mutex_) = false;  // there may be some
  bool is_stopping_ IBID_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ibid
