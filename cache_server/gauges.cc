#include "cache_server/gauges.h"

#include <cstddef>
#include <span>
#include <string>

namespace ibid {
namespace {

constexpr TierName kAllTiers[] = {TierName::kHost, TierName::kDisk, TierName::kGpu};

ExtentAllocator::Usage UsageOf(const StoreParts& parts, TierName tier) {
  switch (tier) {
    case TierName::kHost:
      return parts.arena->usage();
    case TierName::kDisk:
      return parts.disk == nullptr ? ExtentAllocator::Usage{} : parts.disk->usage();
    case TierName::kGpu:
      return parts.gpu == nullptr ? ExtentAllocator::Usage{} : parts.gpu->usage();
  }
  return {};
}

// `read` gets a tier that means nothing where there are no `tiers`.
struct GaugeRow {
  const char* name;
  const char* help;
  std::span<const TierName> tiers;
  double (*read)(StoreParts& parts, TierName tier);
};

double Number(auto value) { return static_cast<double>(value); }

constexpr GaugeRow kGauges[] = {
    {"ibid_store_used_bytes", "Bytes of slots in use", kAllTiers,
     [](StoreParts& parts, TierName tier) { return Number(UsageOf(parts, tier).used_bytes); }},
    {"ibid_store_bytes_max", "Budget", kAllTiers,
     [](StoreParts& parts, TierName tier) { return Number(UsageOf(parts, tier).total_bytes); }},
    {"ibid_store_largest_free_bytes", "Largest free extent", kAllTiers,
     [](StoreParts& parts, TierName tier) {
       return Number(UsageOf(parts, tier).largest_free_bytes);
     }},
    {"ibid_store_blocks", "Blocks resident", kAllTiers,
     [](StoreParts& parts, TierName tier) {
       return Number(parts.counters.tier(tier).blocks.load());
     }},
    {"ibid_store_kept_bytes", "Bytes of slots of pinned blocks", kAllTiers,
     [](StoreParts& parts, TierName tier) {
       return Number(parts.book.kept_pages(tier) * kPageBytes);
     }},
    {"ibid_store_pinned_bytes",
     "Bytes of blocks that leases or readers hold",
     {},
     [](StoreParts& parts, TierName) { return Number(parts.counters.pinned_bytes.load()); }},
    {"ibid_store_pins",
     "Pins of operators",
     {},
     [](StoreParts& parts, TierName) { return Number(parts.pins.pins_count()); }},
    {"ibid_store_sessions",
     "Sessions",
     {},
     [](StoreParts& parts, TierName) { return Number(parts.sessions.sessions_count()); }},
    {"ibid_store_leases",
     "Leases",
     {},
     [](StoreParts& parts, TierName) { return Number(parts.sessions.leases_count()); }},
    {"ibid_store_reservations",
     "Blocks offered or reserved, not yet committed",
     {},
     [](StoreParts& parts, TierName) { return Number(parts.sessions.reservations_count()); }},
    {"ibid_store_waiting_matches",
     "Matches that wait for blocks which others are filling",
     {},
     [](StoreParts& parts, TierName) { return Number(parts.waits.count()); }},
    {"ibid_store_namespaces",
     "Namespaces known",
     {},
     [](StoreParts& parts, TierName) { return Number(parts.namespaces.count()); }},
    {"ibid_store_distinct_keys",
     "Distinct keys asked for since the start, estimated",
     {},
     [](StoreParts& parts, TierName) { return parts.demand.distinct_keys(); }},
    {"ibid_store_infinite_hit_ratio",
     "Share of the keys asked for that a cache without end would have had, estimated",
     {},
     [](StoreParts& parts, TierName) { return parts.demand.infinite_hit_ratio(); }},
    {"ibid_store_disk_allocated_bytes",
     "Bytes that the extent files take",
     {},
     [](StoreParts& parts, TierName) {
       return parts.disk == nullptr ? 0 : Number(parts.disk->allocated_bytes());
     }},
    {"ibid_store_disk_directory_bytes",
     "Space that the disk tier's directory takes",
     {},
     [](StoreParts& parts, TierName) {
       return parts.disk == nullptr ? 0 : Number(parts.disk->directory_bytes());
     }},
    {"ibid_store_disk_queue_depth",
     "Blocks that wait for the disk writer",
     {},
     [](StoreParts& parts, TierName) { return Number(parts.disk_queue.writes_count()); }},
    {"ibid_store_disk_read_queue_depth",
     "Disk reads queued or running",
     {},
     [](StoreParts& parts, TierName) { return Number(parts.disk_reads_waiting.load()); }},
    {"ibid_store_gpu_queue_depth",
     "Blocks that wait to be copied to the gpu tier, or are on their way",
     {},
     [](StoreParts& parts, TierName) { return Number(parts.gpu_moves_waiting.load()); }},
    {"ibid_store_disk_is_ok",
     "1 while the disk tier reads and writes, or there is none",
     {},
     [](StoreParts& parts, TierName) {
       return parts.disk == nullptr || parts.disk->state() == "ok" ? 1.0 : 0.0;
     }},
};

}  // namespace

StoreGauges::StoreGauges(MetricsRegistry* registry) {
  if (registry == nullptr) return;
  for (const GaugeRow& row : kGauges) {
    if (row.tiers.empty()) gauges_.push_back(&MakeGauge(*registry, row.name, row.help));
    for (const TierName tier : row.tiers) {
      gauges_.push_back(
          &MakeGauge(*registry, row.name, row.help, {{"tier", std::string(NameOf(tier))}}));
    }
  }
}

void StoreGauges::Set(StoreParts& parts) {
  if (gauges_.empty()) return;
  size_t next = 0;
  for (const GaugeRow& row : kGauges) {
    if (row.tiers.empty()) gauges_[next++]->Set(row.read(parts, TierName::kHost));
    for (const TierName tier : row.tiers) gauges_[next++]->Set(row.read(parts, tier));
  }
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
