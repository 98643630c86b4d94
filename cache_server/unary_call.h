// What the unary calls of the services have in common. Private to the services.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "absl/status/status.h"
#include "cache_server/service_state.h"
#include "core/log.h"
#include "google/protobuf/message.h"
#include "transport/status_conversion.h"

namespace ibid {

// A unary call: its reactor and its record, together until the answer.
class UnaryCall {
 public:
  UnaryCall(ServiceState* state, grpc::CallbackServerContext* context, RpcMethod method,
            const google::protobuf::Message& request)
      : incarnation_(state->incarnation),
        hold_(state->holds),
        reactor_(context->DefaultReactor()),
        record_(&state->metrics, method) {
    record_.OnReceived(request.ByteSizeLong());
  }

  grpc::ServerUnaryReactor* reactor() const { return reactor_; }

  // REQUIRES: called once.
  grpc::ServerUnaryReactor* Answer(const absl::Status& status,
                                   const google::protobuf::Message& response) {
    if (absl::IsResourceExhausted(status)) {
      IBID_LOG_EVERY(kLogPeriodSeconds, warn, "limit: {}", status.message());
    }
    const grpc::Status final_status = ToGrpcStatus(status, incarnation_);
    if (status.ok()) record_.OnSent(response.ByteSizeLong());
    record_.OnDone(final_status.error_code());
    grpc::ServerUnaryReactor* const reactor = reactor_;
    reactor->Finish(final_status);
    return reactor;
  }

 private:
  static constexpr int64_t kLogPeriodSeconds = 10;

  const uint64_t incarnation_;
  const Hold hold_;
  grpc::ServerUnaryReactor* const reactor_;
  RpcRecord record_;
};

}  // namespace ibid
