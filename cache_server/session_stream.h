// The server's side of Session calls.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "cache_server/service_state.h"
#include "core/mutex.h"
#include "ibid/v1/cache.pb.h"

namespace ibid {

using SessionReactor = grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionResponse>;

class SessionStream;

// All Session calls that run. Thread-safe.
class SessionStreams {
 public:
  // Serves one call: its first message opens a session of the store, each further one keeps it
  // alive, and the call's end, for whatever reason, ends the session. A session from which nothing
  // was heard is expired by the store (session_ttl), and a connection that is dead by gRPC's
  // keepalive. `state` must outlive the call. The reactor owns itself.
  SessionReactor* Start(ServiceState* state);

  // Refuses new calls with `why`; those that run go on.
  void Refuse(const absl::Status& why);
  // Undoes Refuse, not EndAll.
  void Take();
  // Ends all calls with `why` and refuses new ones with it: without this a server could not stop
  // before its clients do. Final.
  void EndAll(const absl::Status& why);

 private:
  friend class SessionStream;
  absl::Status Add(const std::shared_ptr<SessionStream>& stream);
  void Remove(const std::shared_ptr<SessionStream>& stream);

  Mutex mutex_;
  absl::Status refusal_ IBID_GUARDED_BY(mutex_);
  bool has_ended_ IBID_GUARDED_BY(mutex_) = false;
  absl::flat_hash_set<std::shared_ptr<SessionStream>> streams_ IBID_GUARDED_BY(mutex_);
};

}  // namespace ibid
