// The server's side of Session calls.
#pragma once

#include <grpcpp/support/server_callback.h>

#include "cache_server/stream_call.h"
#include "ibid/v1/cache.pb.h"

namespace ibid {

using SessionReactor = grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionResponse>;

// All Session calls that run. Thread-safe.
class SessionStreams {
 public:
  // Serves one call: its first message opens a session of the store, each further one keeps it
  // alive, and the call's end, for whatever reason, ends the session. A session from which nothing
  // was heard is expired by the store (session_ttl), and a connection that is dead by gRPC's
  // keepalive. `state` must outlive the call. The reactor owns itself.
  SessionReactor* Start(ServiceState* state);

  // Refuses new calls with `why`; those that run go on.
  void Refuse(const absl::Status& why) { calls_.Refuse(why); }
  // Undoes Refuse, not EndAll.
  void Take() { calls_.Take(); }
  // Ends all calls with `why` and refuses new ones with it. Final.
  void EndAll(const absl::Status& why) { calls_.EndAll(why); }

 private:
  RunningCalls<SessionReactor> calls_;
};

}  // namespace ibid
