// What is counted of every call of CacheService and AdminService.
#pragma once

#include <grpcpp/support/status.h>

#include <array>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/metrics.h"

namespace ibid {

enum class RpcMethod : uint8_t {
  // CacheService
  kOpenNamespace,
  kSession,
  kMatch,
  kOffer,
  kPublish,
  kFetch,
  kDrop,
  kWatch,
  kGetStats,
  // AdminService
  kDrain,
  kUndrain,
  kFlush,
  kVerify,
  kPin,
  kUnpin,
  kListPins,
  kSetQuota,
  kListQuotas,
  kReloadQuotas,
};

// As in the proto file.
const char* NameOf(RpcMethod method);

// The calls of one method since the start; latency_counts has one entry more than there are bounds.
struct MethodCounts {
  const char* method = "";
  uint64_t calls = 0, errors = 0, calls_in_progress = 0, received_bytes = 0, sent_bytes = 0;
  double latency_seconds_sum = 0;
  std::vector<double> latency_bounds_seconds;
  std::vector<uint64_t> latency_counts;
};

// Families: ibid_cache_service_calls_total{method,code}, _calls_in_progress{method},
// _latency_seconds{method}, _received_bytes_total{method}, _sent_bytes_total{method}, and the same
// with ibid_admin_service. Thread-safe.
class RpcMetrics {
 public:
  // `registry` null: nothing is counted.
  explicit RpcMetrics(MetricsRegistry* registry);

  // Of the methods that were called. Empty when nothing is counted.
  std::vector<MethodCounts> Counts() const;

  void OnBegun(RpcMethod method);
  void OnReceived(RpcMethod method, uint64_t bytes);
  void OnSent(RpcMethod method, uint64_t bytes);
  void OnDone(RpcMethod method, grpc::StatusCode code, absl::Duration took);

 private:
  static constexpr size_t kMethodsCount = 19;
  static constexpr size_t kCodesCount = 17;
  struct MethodMetrics {
    std::array<prometheus::Counter*, kCodesCount> calls{};
    prometheus::Gauge* calls_in_progress = nullptr;
    prometheus::Histogram* latency_seconds = nullptr;
    prometheus::Counter* received_bytes = nullptr;
    prometheus::Counter* sent_bytes = nullptr;
  };
  MethodMetrics& of(RpcMethod method) { return methods_[static_cast<size_t>(method)]; }

  const bool is_counting_;
  std::array<MethodMetrics, kMethodsCount> methods_;
};

// One call, from its arrival. Not thread-safe, but the two counters of bytes are.
class RpcRecord {
 public:
  RpcRecord(RpcMetrics* metrics, RpcMethod method)
      : metrics_(metrics), method_(method), began_(SteadyClock().Now()) {
    metrics_->OnBegun(method_);
  }

  void OnReceived(uint64_t bytes) { metrics_->OnReceived(method_, bytes); }
  void OnSent(uint64_t bytes) { metrics_->OnSent(method_, bytes); }
  void OnDone(grpc::StatusCode code) {
    metrics_->OnDone(method_, code, SteadyClock().Now() - began_);
  }

 private:
  RpcMetrics* metrics_;
  RpcMethod method_;
  absl::Time began_;
};

}  // namespace ibid
