// A tenant's rate is kept as the time at which all that it published is paid for at its quota: a
// block moves that time on by its bytes, and is refused while it lies kBurst or more ahead.
#include "cache_server/tenant_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/limit.h"

namespace ibid {

absl::StatusOr<uint32_t> TenantTable::OpenLocked(absl::string_view name) {
  const auto it = numbers_.find(name);
  if (it != numbers_.end()) return it->second;
  if (tenants_.size() >= tenants_max_) {
    return LimitReached("too many tenants", "tenants_max", tenants_max_);
  }
  const uint32_t number = static_cast<uint32_t>(tenants_.size());
  tenants_.emplace_back().name = std::string(name);
  numbers_.emplace(std::string(name), number);
  return number;
}

absl::StatusOr<uint32_t> TenantTable::Open(absl::string_view name) {
  MutexLock lock(mutex_);
  return OpenLocked(name);
}

std::string TenantTable::NameOf(uint32_t tenant) const {
  MutexLock lock(mutex_);
  IBID_CHECK(tenant < tenants_.size());
  return tenants_[tenant].name;
}

absl::Status TenantTable::SetQuota(absl::string_view name,
                                   const std::optional<TenantQuota>& quota) {
  MutexLock lock(mutex_);
  IBID_ASSIGN_OR_RETURN(const uint32_t number, OpenLocked(name));
  tenants_[number].quota = quota;
  tenants_[number].free_at = absl::InfinitePast();  // what was owed at the old rate is forgiven
  return absl::OkStatus();
}

void TenantTable::SetDefault(const TenantQuota& quota) {
  MutexLock lock(mutex_);
  default_ = quota;
}

TenantQuota TenantTable::default_quota() const {
  MutexLock lock(mutex_);
  return default_;
}

absl::Status TenantTable::TakePublish(uint32_t number, uint64_t bytes, absl::Time now) {
  MutexLock lock(mutex_);
  IBID_CHECK(number < tenants_.size());
  Tenant& tenant = tenants_[number];
  const uint64_t rate = QuotaOf(tenant).publish_bytes_per_second_max;
  if (rate != TenantQuota::kNoLimit) {
    const absl::Time paid_at = std::max(tenant.free_at, now);
    if (rate == 0 || paid_at - now >= kBurst) {
      ++tenant.refused_blocks;
      return LimitReached(
          absl::StrCat("tenant \"", tenant.name, "\" publishes faster than its quota"),
          "publish_bytes_per_second_max", rate);
    }
    tenant.free_at =
        paid_at + absl::Seconds(static_cast<double>(bytes) / static_cast<double>(rate));
  }
  tenant.published_bytes += bytes;
  return absl::OkStatus();
}

std::vector<TenantInfo> TenantTable::List() const {
  std::vector<TenantInfo> all;
  MutexLock lock(mutex_);
  for (const auto& [name, number] : numbers_) {
    const Tenant& tenant = tenants_[number];
    all.push_back({name, QuotaOf(tenant), !tenant.quota.has_value(), tenant.published_bytes,
                   tenant.refused_blocks});
  }
  return all;
}

}  // namespace ibid
