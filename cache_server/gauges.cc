#include "cache_server/gauges.h"

namespace ibid {

StoreGauges GaugesOf(StoreParts& parts) {
  const ExtentAllocator::Usage host = parts.arena->usage();
  StoreGauges now{};
  now.is_disk_ok = 1;
  now.host_used_bytes = static_cast<double>(host.used_bytes);
  now.host_bytes_max = static_cast<double>(host.total_bytes);
  now.host_largest_free_bytes = static_cast<double>(host.largest_free_bytes);
  now.host_blocks = static_cast<double>(parts.counters.tier(TierName::kHost).blocks.load());
  if (parts.disk != nullptr) {
    const ExtentAllocator::Usage disk = parts.disk->usage();
    now.disk_used_bytes = static_cast<double>(disk.used_bytes);
    now.disk_bytes_max = static_cast<double>(disk.total_bytes);
    now.disk_largest_free_bytes = static_cast<double>(disk.largest_free_bytes);
    now.disk_read_queue_depth = static_cast<double>(parts.disk_reads_waiting.load());
    now.disk_allocated_bytes = static_cast<double>(parts.disk->allocated_bytes());
    now.disk_directory_bytes = static_cast<double>(parts.disk->directory_bytes());
    now.disk_blocks = static_cast<double>(parts.counters.tier(TierName::kDisk).blocks.load());
    now.disk_queue_depth = static_cast<double>(parts.disk_queue.writes_count());
    now.is_disk_ok = parts.disk->state() == "ok" ? 1 : 0;
  }
  if (parts.gpu != nullptr) {
    const ExtentAllocator::Usage gpu = parts.gpu->usage();
    now.gpu_used_bytes = static_cast<double>(gpu.used_bytes);
    now.gpu_bytes_max = static_cast<double>(gpu.total_bytes);
    now.gpu_largest_free_bytes = static_cast<double>(gpu.largest_free_bytes);
    now.gpu_kept_bytes = static_cast<double>(parts.book.kept_pages(TierName::kGpu) * kPageBytes);
    now.gpu_blocks = static_cast<double>(parts.counters.tier(TierName::kGpu).blocks.load());
  }
  now.pinned_bytes = static_cast<double>(parts.counters.pinned_bytes.load());
  now.pins = static_cast<double>(parts.pins.pins_count());
  now.host_kept_bytes = static_cast<double>(parts.book.kept_pages(TierName::kHost) * kPageBytes);
  now.disk_kept_bytes = static_cast<double>(parts.book.kept_pages(TierName::kDisk) * kPageBytes);
  now.sessions = static_cast<double>(parts.sessions.sessions_count());
  now.leases = static_cast<double>(parts.sessions.leases_count());
  now.reservations = static_cast<double>(parts.sessions.reservations_count());
  now.namespaces = static_cast<double>(parts.namespaces.count());
  now.distinct_keys = parts.demand.distinct_keys();
  now.infinite_hit_ratio = parts.demand.infinite_hit_ratio();
  return now;
}

std::vector<TenantInfo> TenantsOf(StoreParts& parts) {
  std::vector<TenantInfo> tenants = parts.tenants.List();
  const std::vector<TierPages> used = parts.book.UsedPages();
  // The unnamed tenant is one of them if it is known or something counts for it.
  const bool is_listed = !tenants.empty() && tenants.front().number == TenantTable::kUnnamed;
  if (!is_listed && !used.empty() && used[kNobody] != TierPages{}) {
    tenants.insert(tenants.begin(), TenantInfo{});
    tenants.front().quota = parts.tenants.QuotaOf(TenantTable::kUnnamed);
    tenants.front().is_default = true;
  }
  for (TenantInfo& tenant : tenants) {
    if (tenant.number >= used.size()) continue;
    const TierPages& pages = used[tenant.number];
    tenant.host_used_bytes = pages[static_cast<int>(TierName::kHost)] * kPageBytes;
    tenant.disk_used_bytes = pages[static_cast<int>(TierName::kDisk)] * kPageBytes;
    tenant.gpu_used_bytes = pages[static_cast<int>(TierName::kGpu)] * kPageBytes;
  }
  return tenants;
}

}  // namespace ibid
