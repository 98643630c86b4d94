#include "cache_server/rpc_metrics.h"

#include <cmath>
#include <iterator>
#include <string>
#include <utility>

namespace ibid {
namespace {

// In the order of RpcMethod.
constexpr const char* kMethodNames[] = {
    "OpenNamespace", "Session",  "Match",    "Offer",      "Publish",     "Fetch",  "Drop",
    "Watch",         "GetStats", "Drain",    "Undrain",    "Flush",       "Verify", "Pin",
    "Unpin",         "ListPins", "SetQuota", "ListQuotas", "ReloadQuotas"};

std::string PrefixOf(RpcMethod method) {
  return method < RpcMethod::kDrain ? "ibid_cache_service_" : "ibid_admin_service_";
}

constexpr const char* kCodeNames[] = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

}  // namespace

const char* NameOf(RpcMethod method) { return kMethodNames[static_cast<size_t>(method)]; }

RpcMetrics::RpcMetrics(MetricsRegistry* registry) : is_counting_(registry != nullptr) {
  static_assert(std::size(kMethodNames) == kMethodsCount);
  if (!is_counting_) return;
  MetricsRegistry& r = *registry;
  for (size_t m = 0; m < kMethodsCount; ++m) {
    const MetricLabels labels = {{"method", kMethodNames[m]}};
    const std::string prefix = PrefixOf(static_cast<RpcMethod>(m));
    MethodMetrics& metrics = methods_[m];
    for (size_t c = 0; c < kCodesCount; ++c) {
      metrics.calls[c] = &MakeCounter(r, prefix + "calls_total", "Calls that have ended",
                                      {{"method", kMethodNames[m]}, {"code", kCodeNames[c]}});
    }
    metrics.calls_in_progress =
        &MakeGauge(r, prefix + "calls_in_progress", "Calls that have begun and not ended", labels);
    metrics.latency_seconds = &MakeLatencyHistogram(r, prefix + "latency_seconds",
                                                    "From a call's arrival to its end", labels);
    metrics.received_bytes =
        &MakeCounter(r, prefix + "received_bytes_total", "Bytes of messages received", labels);
    metrics.sent_bytes =
        &MakeCounter(r, prefix + "sent_bytes_total", "Bytes of messages sent", labels);
  }
}

std::vector<MethodCounts> RpcMetrics::Counts() const {
  std::vector<MethodCounts> all;
  for (size_t m = 0; m < kMethodsCount && is_counting_; ++m) {
    const MethodMetrics& metrics = methods_[m];
    MethodCounts counts;
    counts.method = kMethodNames[m];
    const auto value = [](const auto* metric) { return static_cast<uint64_t>(metric->Value()); };
    for (size_t c = 0; c < kCodesCount; ++c) {
      counts.calls += value(metrics.calls[c]);
      if (c != size_t{grpc::StatusCode::OK}) counts.errors += value(metrics.calls[c]);
    }
    counts.calls_in_progress = value(metrics.calls_in_progress);
    if (counts.calls + counts.calls_in_progress == 0) continue;
    counts.received_bytes = value(metrics.received_bytes);
    counts.sent_bytes = value(metrics.sent_bytes);
    const prometheus::ClientMetric latency = metrics.latency_seconds->Collect();
    counts.latency_seconds_sum = latency.histogram.sample_sum;
    uint64_t below = 0;
    for (const auto& bucket : latency.histogram.bucket) {
      if (std::isfinite(bucket.upper_bound)) {
        counts.latency_bounds_seconds.push_back(bucket.upper_bound);
      }
      counts.latency_counts.push_back(bucket.cumulative_count - below);
      below = bucket.cumulative_count;
    }
    all.push_back(std::move(counts));
  }
  return all;
}

void RpcMetrics::OnBegun(RpcMethod method) {
  if (is_counting_) of(method).calls_in_progress->Increment();
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
  of(method).calls_in_progress->Decrement();
  of(method).latency_seconds->Observe(absl::ToDoubleSeconds(took));
}

}  // namespace ibid
