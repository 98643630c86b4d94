// The server's side of one Fetch call.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "cache_server/service_state.h"

namespace ibid {

using FetchReactor = grpc::ServerWriteReactor<grpc::ByteBuffer>;

// Answers `request`, a v1.FetchRequest, with one frame a block in the order asked for, misses too.
// A block's bytes are pinned until gRPC has sent them; a client that takes none of them for
// `state->stalled_max` is cut off. `state` must outlive the call. The reactor
// owns itself.
FetchReactor* StartFetchStream(ServiceState* state, grpc::CallbackServerContext* context,
                               const grpc::ByteBuffer* request);

}  // namespace ibid
