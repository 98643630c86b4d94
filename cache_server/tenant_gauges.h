// What each tenant's blocks take, as metrics: a gauge for each tenant and tier, made when the
// tenant is first seen (`tenants_max` bounds them).
//
// Thread safety: every method, from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cache_server/eviction_book.h"
#include "cache_server/tenant_table.h"
#include "core/metrics.h"
#include "core/mutex.h"

namespace ibid {

class TenantGauges {
 public:
  // `registry` null: nothing is kept.
  explicit TenantGauges(MetricsRegistry* registry) : registry_(registry) {}

  void Set(const std::vector<TenantInfo>& tenants);

 private:
  struct Gauges {
    prometheus::Gauge* used_bytes[kTiersCount];
    prometheus::Counter* refused_blocks;
  };
  const Gauges& Of(const TenantInfo& tenant) IBID_REQUIRES(mutex_);

  MetricsRegistry* const registry_;
  Mutex mutex_;
  // By TenantInfo::number.
  absl::flat_hash_map<uint32_t, Gauges> gauges_ IBID_GUARDED_BY(mutex_);
};

}  // namespace ibid
