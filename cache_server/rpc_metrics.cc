#include "cache_server/rpc_metrics.h"

namespace ibid {
namespace {

constexpr const char* kMethodNames[] = {"OpenNamespace", "Session", "Match", "Offer",   "Publish",
                                        "Fetch",         "Drop",    "Watch", "GetStats"};
constexpr const char* kCodeNames[] = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

}  // namespace

RpcMetrics::RpcMetrics(MetricsRegistry* registry) : is_counting_(registry != nullptr) {
  if (!is_counting_) return;
  for (size_t m = 0; m < kMethodsCount; ++m) {
    const std::string method = kMethodNames[m];
    MethodMetrics& metrics = methods_[m];
    for (size_t c = 0; c < kCodesCount; ++c) {
      metrics.calls[c] =
          &MakeCounter(*registry, "ibid_cache_service_calls_total", "Calls that have ended",
                       {{"method", method}, {"code", kCodeNames[c]}});
    }
    metrics.latency_seconds =
        &MakeLatencyHistogram(*registry, "ibid_cache_service_latency_seconds",
                              "From a call's arrival to its end", {{"method", method}});
    metrics.received_bytes = &MakeCounter(*registry, "ibid_cache_service_received_bytes_total",
                                          "Bytes of messages received", {{"method", method}});
    metrics.sent_bytes = &MakeCounter(*registry, "ibid_cache_service_sent_bytes_total",
                                      "Bytes of messages sent", {{"method", method}});
  }
}

void RpcMetrics::OnReceived(RpcMethod method, uint64_t bytes) {
  if (is_counting_) of(method).received_bytes->Increment(static_cast<double>(bytes));
}

void RpcMetrics::OnSent(RpcMethod method, uint64_t bytes) {
  if (is_counting_) of(method).sent_bytes->Increment(static_cast<double>(bytes));
}

void RpcMetrics::OnDone(RpcMethod method, grpc::StatusCode code, absl::Duration took) {
  if (!is_counting_) return;
  const size_t index = static_cast<size_t>(code);
  of(method).calls[index < kCodesCount ? index : size_t{grpc::StatusCode::UNKNOWN}]->Increment();
  of(method).latency_seconds->Observe(absl::ToDoubleSeconds(took));
}

}  // namespace ibid
