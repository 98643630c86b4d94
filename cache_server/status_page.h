// What a person sees of a server in a browser: one page, and the JSON that it draws each second.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cache_server/block_store.h"
#include "cache_server/rpc_metrics.h"
#include "cache_server/tenant_table.h"

namespace ibid {

// HTML; complete in itself: it loads nothing but /stats.json.
extern const char kStatusPage[];

struct StatusFacts {
  std::string version;
  std::string state;  // one word
  absl::Duration uptime;
  absl::Time now;  // by the store's clock
  uint64_t incarnation = 0;
  BlockStoreStats store;
  std::vector<MethodCounts> methods;
  std::vector<StatsSample> history;
  std::vector<HotPrefix> prefixes;
  std::vector<SessionInfo> sessions;
  std::vector<TenantInfo> tenants;
};

// One JSON object; docs/operations.md has its fields. Texts of clients that are no UTF-8 are
// mended.
std::string StatusJson(const StatusFacts& facts);

}  // namespace ibid
