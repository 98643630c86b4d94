// The server's side of one Match call.
#pragma once

#include <grpcpp/support/server_callback.h>

#include "cache_server/service_state.h"
#include "ibid/v1/cache.pb.h"

namespace ibid {

// Answers one Match, at once or after it has waited without a thread; a client that leaves ends the
// wait. `state` must outlive the call. The reactor owns itself.
grpc::ServerUnaryReactor* StartMatchCall(ServiceState* state, grpc::CallbackServerContext* context,
                                         const v1::MatchRequest* request,
                                         v1::MatchResponse* response);

}  // namespace ibid
