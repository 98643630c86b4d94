// Deadlines of gRPC calls by the monotonic clock: a step of the wall clock neither shortens nor
// prolongs a call.
#pragma once

#include <grpc/support/time.h>
#include <grpcpp/client_context.h>

#include "absl/time/time.h"

namespace ibid {

inline gpr_timespec DeadlineAfter(absl::Duration timeout) {
  if (timeout == absl::InfiniteDuration()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(absl::ToInt64Nanoseconds(timeout), GPR_TIMESPAN));
}

inline void SetTimeout(absl::Duration timeout, grpc::ClientContext* context) {
  context->set_deadline(DeadlineAfter(timeout));
}

}  // namespace ibid
