// absl::Status inside, gRPC status on the wire: this is the one place where they meet.
#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>

#include "absl/status/status.h"

namespace ibid {

// With an ErrorDetail: `incarnation` of the cache server (0: none), and the limit that `status` is
// about (core/limit.h). Messages longer than kStatusMessageBytesMax are cut: they travel in HTTP/2
// trailers, which are limited to 8 KiB.
grpc::Status ToGrpcStatus(const absl::Status& status, uint64_t incarnation = 0);
// LimitOf gives the limit again.
absl::Status FromGrpcStatus(const grpc::Status& status);

inline constexpr size_t kStatusMessageBytesMax = 2'048;

}  // namespace ibid
