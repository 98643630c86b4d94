// The server's side of one Publish call.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "cache_server/service_state.h"

namespace ibid {

// Takes v1.PublishRequests and answers each frame with one v1.PublishResult, in order of
// completion; results that are there together go in one message. A block that is wrong or unwanted
// is an outcome. A message that breaks the protocol ends the stream once the messages before it are
// answered, and nothing of it is stored; an unknown session or namespace, once the other frames
// are. `state` must outlive the call. The reactor owns itself.
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartPublishStream(
    ServiceState* state);

}  // namespace ibid
