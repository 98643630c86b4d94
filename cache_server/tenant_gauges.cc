#include "cache_server/tenant_gauges.h"

#include <algorithm>

namespace ibid {

const TenantGauges::Gauges& TenantGauges::Of(const TenantInfo& tenant) {
  static constexpr const char* kTiers[] = {"host", "disk", "gpu"};
  const auto [it, is_new] = gauges_.try_emplace(tenant.number);
  if (!is_new) return it->second;
  for (int tier = 0; tier < kTiersCount; ++tier) {
    it->second.used_bytes[tier] = &MakeGauge(*registry_, "ibid_store_tenant_used_bytes",
                                             "Bytes of the slots that blocks of the tenant take",
                                             {{"tenant", tenant.name}, {"tier", kTiers[tier]}});
  }
  it->second.refused_blocks =
      &MakeCounter(*registry_, "ibid_store_tenant_refused_blocks_total",
                   "Blocks refused for the tenant's quota", {{"tenant", tenant.name}});
  return it->second;
}

void TenantGauges::Set(const std::vector<TenantInfo>& tenants) {
  if (registry_ == nullptr) return;
  MutexLock lock(mutex_);
  for (const TenantInfo& tenant : tenants) {
    const Gauges& gauges = Of(tenant);
    gauges.used_bytes[static_cast<int>(TierName::kHost)]->Set(
        static_cast<double>(tenant.host_used_bytes));
    gauges.used_bytes[static_cast<int>(TierName::kDisk)]->Set(
        static_cast<double>(tenant.disk_used_bytes));
    gauges.used_bytes[static_cast<int>(TierName::kGpu)]->Set(
        static_cast<double>(tenant.gpu_used_bytes));
    gauges.refused_blocks->Increment(
        std::max(0.0, static_cast<double>(tenant.refused_blocks) - gauges.refused_blocks->Value()));
  }
}

}  // namespace ibid
