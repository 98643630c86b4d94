// The gauges of a store, and what is known of its tenants. What gauges there are and what each of
// them says stands in one table, in the source file.
#pragma once

#include <vector>

#include "cache_server/store_parts.h"
#include "core/metrics.h"

namespace ibid {

// Owned by the thread that calls Set.
class StoreGauges {
 public:
  // `registry` null: there are none.
  explicit StoreGauges(MetricsRegistry* registry);

  // Makes all of them say what is now. O(gauges).
  void Set(StoreParts& parts);

 private:
  std::vector<prometheus::Gauge*> gauges_;  // in the order of the table, and of each row's tiers
};

// See BlockStore::Tenants.
std::vector<TenantInfo> TenantsOf(StoreParts& parts);

}  // namespace ibid
