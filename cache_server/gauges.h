// What the gauges of a store say now.
#pragma once

#include "cache_server/store_counters.h"
#include "cache_server/store_parts.h"

namespace ibid {

StoreGauges GaugesOf(StoreParts& parts);

}  // namespace ibid
