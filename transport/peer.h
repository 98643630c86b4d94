// Who is at the other end of a call, by what gRPC says of it.
#pragma once

#include "absl/strings/string_view.h"

namespace ibid {

// `peer` (of ServerContext::peer) is this machine: a loopback address or a Unix socket. A forwarder
// on this machine makes its clients look so.
bool IsLoopbackPeer(absl::string_view peer);

}  // namespace ibid
