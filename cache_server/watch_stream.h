// The server's side of Watch calls.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "cache_server/service_state.h"
#include "core/mutex.h"
#include "ibid/v1/cache.pb.h"

namespace ibid {

using WatchReactor = grpc::ServerWriteReactor<v1::WatchResponse>;

class WatchStream;

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
  void EndAll(const absl::Status& why);

 private:
  friend class WatchStream;
  absl::Status Add(const std::shared_ptr<WatchStream>& stream);
  void Remove(const std::shared_ptr<WatchStream>& stream);
  void Run();

  ServiceState* const state_;
  Mutex mutex_;
  CondVar changed_;
  absl::Status refusal_ IBID_GUARDED_BY(mutex_);
  bool is_stopping_ IBID_GUARDED_BY(mutex_) = false;
  absl::flat_hash_set<std::shared_ptr<WatchStream>> streams_ IBID_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace ibid
