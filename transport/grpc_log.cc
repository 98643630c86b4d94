#include "transport/grpc_log.h"

#include <grpc/support/log.h>

#include "core/log.h"

namespace ibid {

void TakeOverGrpcLog() {
  gpr_set_log_function([](gpr_log_func_args* line) { IBID_LOG(debug, "gRPC: {}", line->message); });
}

}  // namespace ibid
