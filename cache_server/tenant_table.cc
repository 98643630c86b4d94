// A tenant's rate is kept as the time at which all that it published is paid for at its quota: a
// block moves that time on by its bytes, and is refused while it lies kBurst or more ahead.
#include "cache_server/tenant_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/limit.h"

namespace ibid {
namespace {

// Any client may name itself, and names stand in logs and on terminals.
absl::Status CheckName(absl::string_view name) {
  if (std::none_of(name.begin(), name.end(), absl::ascii_iscntrl)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tenant \"", absl::Utf8SafeCHexEscape(name),
                                                 "\": use a name without control characters"));
}

}  // namespace

TenantTable::TenantTable(uint32_t tenants_max, std::function<void()> on_change)
    : tenants_max_(tenants_max), on_change_(std::move(on_change)), tenants_(kUnnamed + 1) {}

void TenantTable::TellChange() const {
  if (on_change_) on_change_();
}

absl::StatusOr<uint32_t> TenantTable::OpenLocked(absl::string_view name) {
  const auto it = numbers_.find(name);
  if (it != numbers_.end()) return it->second;
  IBID_RETURN_IF_ERROR(CheckName(name));
  if (numbers_.size() >= tenants_max_) {
    return LimitReached("too many tenants", "tenants_max", tenants_max_);
  }
  uint32_t number = kUnnamed;
  if (!name.empty()) {
    number = static_cast<uint32_t>(tenants_.size());
    tenants_.emplace_back().name = std::string(name);
  }
  numbers_.emplace(std::string(name), number);
  ++version_;
  return number;
}

absl::StatusOr<uint32_t> TenantTable::Open(absl::string_view name) {
  uint64_t before = 0, after = 0;
  absl::StatusOr<uint32_t> number;
  {
    MutexLock lock(mutex_);
    before = version_;
    number = OpenLocked(name);
    after = version_;
  }
  if (after != before) TellChange();
  return number;
}

std::string TenantTable::NameOf(uint32_t tenant) const {
  MutexLock lock(mutex_);
  IBID_CHECK(tenant < tenants_.size());
  return tenants_[tenant].name;
}

absl::Status TenantTable::SetQuota(absl::string_view name,
                                   const std::optional<TenantQuota>& quota) {
  {
    MutexLock lock(mutex_);
    IBID_ASSIGN_OR_RETURN(const uint32_t number, OpenLocked(name));
    tenants_[number].quota = quota;
    tenants_[number].free_at = absl::InfinitePast();  // what was owed at the old rate is forgiven
    ++version_;
  }
  TellChange();
  return absl::OkStatus();
}

void TenantTable::SetDefault(const TenantQuota& quota) {
  {
    MutexLock lock(mutex_);
    default_ = quota;
    ++version_;
  }
  TellChange();
}

absl::Status TenantTable::SetAll(const TenantQuotas& quotas) {
  for (const auto& [name, quota] : quotas.tenants) IBID_RETURN_IF_ERROR(CheckName(name));
  {
    MutexLock lock(mutex_);
    size_t known_count = numbers_.size();
    for (const auto& [name, quota] : quotas.tenants) known_count += numbers_.contains(name) ? 0 : 1;
    if (known_count > tenants_max_) {
      return LimitReached("too many tenants", "tenants_max", tenants_max_);
    }
    default_ = quotas.default_quota;
    for (Tenant& tenant : tenants_) tenant.quota.reset();
    for (const auto& [name, quota] : quotas.tenants) {
      IBID_ASSIGN_OR_RETURN(const uint32_t number, OpenLocked(name));
      tenants_[number].quota = quota;
    }
    for (Tenant& tenant : tenants_) tenant.free_at = absl::InfinitePast();
    ++version_;
  }
  TellChange();
  return absl::OkStatus();
}

TenantQuota TenantTable::default_quota() const {
  MutexLock lock(mutex_);
  return default_;
}

TenantQuota TenantTable::QuotaOf(uint32_t tenant) const {
  MutexLock lock(mutex_);
  IBID_CHECK(tenant < tenants_.size());
  return QuotaOf(tenants_[tenant]);
}

std::vector<TenantQuota> TenantTable::Quotas(uint64_t* version) const {
  std::vector<TenantQuota> quotas;
  MutexLock lock(mutex_);
  *version = version_;
  for (const Tenant& tenant : tenants_) quotas.push_back(QuotaOf(tenant));
  return quotas;
}

bool TenantTable::IsOverRate(const Tenant& tenant, absl::Time now) const {
  const uint64_t rate = QuotaOf(tenant).publish_bytes_per_second_max;
  if (rate == TenantQuota::kNoLimit) return false;
  return rate == 0 || std::max(tenant.free_at, now) - now >= kBurst;
}

bool TenantTable::CanPublish(uint32_t number, absl::Time now) const {
  MutexLock lock(mutex_);
  IBID_CHECK(number < tenants_.size());
  return !IsOverRate(tenants_[number], now);
}

void TenantTable::CountRefused(uint32_t number, uint64_t blocks) {
  MutexLock lock(mutex_);
  IBID_CHECK(number < tenants_.size());
  tenants_[number].refused_blocks += blocks;
}

absl::Status TenantTable::TakePublish(uint32_t number, uint64_t bytes, absl::Time now) {
  MutexLock lock(mutex_);
  IBID_CHECK(number < tenants_.size());
  Tenant& tenant = tenants_[number];
  const uint64_t rate = QuotaOf(tenant).publish_bytes_per_second_max;
  if (IsOverRate(tenant, now)) {
    ++tenant.refused_blocks;
    return LimitReached(
        absl::StrCat("tenant \"", tenant.name, "\" publishes faster than its quota"),
        "publish_bytes_per_second_max", rate);
  }
  if (rate != TenantQuota::kNoLimit) {
    tenant.free_at = std::max(tenant.free_at, now) +
                     absl::Seconds(static_cast<double>(bytes) / static_cast<double>(rate));
  }
  tenant.published_bytes += bytes;
  return absl::OkStatus();
}

std::vector<TenantInfo> TenantTable::List() const {
  std::vector<TenantInfo> all;
  MutexLock lock(mutex_);
  for (const auto& [name, number] : numbers_) {
    const Tenant& tenant = tenants_[number];
    TenantInfo& info = all.emplace_back();
    info.name = name;
    info.number = number;
    info.quota = QuotaOf(tenant);
    info.is_default = !tenant.quota.has_value();
    info.published_bytes = tenant.published_bytes;
    info.refused_blocks = tenant.refused_blocks;
  }
  return all;
}

}  // namespace ibid
