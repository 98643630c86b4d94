// HTTP/2 settings that both ends of a connection share.
#pragma once

#include <grpc/impl/codegen/grpc_types.h>

#include "transport/limits.h"

namespace ibid {

// Calls `set(name, value)` for each integer argument of a gRPC channel or server.
template <typename Set>
void SetHttp2Arguments(Set set) {
  set(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, static_cast<int>(kMessageBytesMax));
  set(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, static_cast<int>(kMessageBytesMax));
  set(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  set(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // A block of 2 MiB in frames of the default 16 KiB costs 128 frame headers and as many small
  // slices.
  set(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20);
}

}  // namespace ibid
