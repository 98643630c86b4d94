// The client's end of a connection: gRPC channels with the time limits and sizes that all of ibid
// uses.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "transport/tls.h"

namespace ibid {

struct ChannelOptions {
  absl::Duration connect_timeout = absl::Seconds(2);  // of one attempt
  absl::Duration reconnect_backoff_min = absl::Milliseconds(50);
  absl::Duration reconnect_backoff_max = absl::Seconds(1);
  // A connection with no sign of life for keepalive_interval is asked for one, and given up after
  // keepalive_timeout.
  absl::Duration keepalive_interval = absl::Seconds(10);
  absl::Duration keepalive_timeout = absl::Seconds(5);
  TlsOptions tls;
};

// A channel with a connection of its own (never shared with other channels to the same address).
// Connects at the first call, or at once by GetState(true). Errors: InvalidArgument (a TLS file
// that cannot be read, by name).
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(absl::string_view address,
                                                           const ChannelOptions& options);

}  // namespace ibid
