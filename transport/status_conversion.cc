#include "transport/status_conversion.h"

#include <optional>
#include <string>

#include "core/limit.h"
#include "ibid/v1/error.pb.h"

namespace ibid {
namespace {

struct CodePair {
  absl::StatusCode inside;
  grpc::StatusCode wire;
};

constexpr CodePair kCodes[] = {
    {absl::StatusCode::kOk, grpc::StatusCode::OK},
    {absl::StatusCode::kCancelled, grpc::StatusCode::CANCELLED},
    {absl::StatusCode::kUnknown, grpc::StatusCode::UNKNOWN},
    {absl::StatusCode::kInvalidArgument, grpc::StatusCode::INVALID_ARGUMENT},
    {absl::StatusCode::kDeadlineExceeded, grpc::StatusCode::DEADLINE_EXCEEDED},
    {absl::StatusCode::kNotFound, grpc::StatusCode::NOT_FOUND},
    {absl::StatusCode::kAlreadyExists, grpc::StatusCode::ALREADY_EXISTS},
    {absl::StatusCode::kPermissionDenied, grpc::StatusCode::PERMISSION_DENIED},
    {absl::StatusCode::kResourceExhausted, grpc::StatusCode::RESOURCE_EXHAUSTED},
    {absl::StatusCode::kFailedPrecondition, grpc::StatusCode::FAILED_PRECONDITION},
    {absl::StatusCode::kAborted, grpc::StatusCode::ABORTED},
    {absl::StatusCode::kOutOfRange, grpc::StatusCode::OUT_OF_RANGE},
    {absl::StatusCode::kUnimplemented, grpc::StatusCode::UNIMPLEMENTED},
    {absl::StatusCode::kInternal, grpc::StatusCode::INTERNAL},
    {absl::StatusCode::kUnavailable, grpc::StatusCode::UNAVAILABLE},
    {absl::StatusCode::kDataLoss, grpc::StatusCode::DATA_LOSS},
    {absl::StatusCode::kUnauthenticated, grpc::StatusCode::UNAUTHENTICATED},
};

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status, uint64_t incarnation) {
  if (status.ok()) return grpc::Status::OK;
  grpc::StatusCode wire = grpc::StatusCode::UNKNOWN;
  for (const CodePair& pair : kCodes) {
    if (pair.inside == status.code()) wire = pair.wire;
  }
  v1::ErrorDetail detail;
  detail.set_incarnation(incarnation);
  if (const std::optional<Limit> limit = LimitOf(status)) {
    detail.set_limit(limit->name);
    detail.set_limit_value(limit->value);
  }
  v1::ErrorStatus typed;
  typed.set_code(wire);
  typed.add_details()->PackFrom(detail);
  return grpc::Status(wire, std::string(status.message().substr(0, kStatusMessageBytesMax)),
                      typed.SerializeAsString());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::StatusCode inside = absl::StatusCode::kUnknown;
  for (const CodePair& pair : kCodes) {
    if (pair.wire == status.error_code()) inside = pair.inside;
  }
  absl::Status result(inside, status.error_message());
  v1::ErrorStatus typed;
  v1::ErrorDetail detail;
  // gRPC's own errors have none.
  if (typed.ParseFromString(status.error_details()) && typed.details_size() > 0 &&
      typed.details(0).UnpackTo(&detail) && !detail.limit().empty()) {
    SetLimit({detail.limit(), detail.limit_value()}, &result);
  }
  return result;
}

}  // namespace ibid
