// What the gauges of a store say now, and of its tenants.
#pragma once

#include <vector>

#include "cache_server/store_counters.h"
#include "cache_server/store_parts.h"

namespace ibid {

StoreGauges GaugesOf(StoreParts& parts);
// See BlockStore::Tenants.
std::vector<TenantInfo> TenantsOf(StoreParts& parts);

}  // namespace ibid
