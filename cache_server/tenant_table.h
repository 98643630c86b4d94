// The tenants of a store: who they are, what each may have, and how fast each publishes.
//
// A tenant is known once one of its namespaces is opened or a quota is set for it. One without a
// quota of its own has the default quota, for itself alone. The unnamed tenant is one of them; what
// no tenant has claimed yet counts for it.
//
// Thread safety: every method, from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/mutex.h"

namespace ibid {

struct TenantQuota {
  static constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();
  uint64_t publish_bytes_per_second_max = kNoLimit;
  // Of the slots that blocks of the tenant take.
  uint64_t host_bytes_max = kNoLimit;
  uint64_t disk_bytes_max = kNoLimit;
  uint64_t gpu_bytes_max = kNoLimit;
  bool operator==(const TenantQuota&) const = default;
};

struct TenantInfo {
  std::string name;  // empty: of clients that name none
  uint32_t number = 0;
  TenantQuota quota;
  bool is_default = false;  // it has no quota of its own
  uint64_t published_bytes = 0;
  uint64_t refused_blocks = 0;  // for any of the limits
  // What its blocks take; filled in by BlockStore::Tenants.
  uint64_t host_used_bytes = 0, disk_used_bytes = 0, gpu_used_bytes = 0;
};

// What a file of quotas says.
struct TenantQuotas {
  TenantQuota default_quota;
  std::map<std::string, TenantQuota, std::less<>> tenants;
};

class TenantTable {
 public:
  static constexpr uint32_t kUnnamed = 0;  // the number of the tenant without a name

  // `on_change`, if there is one, is called after each change of quotas and for each new tenant, on
  // the thread that made it, without a lock.
  explicit TenantTable(uint32_t tenants_max, std::function<void()> on_change = nullptr);

  // The number of the tenant, made if need be. Errors: InvalidArgument (the name has control
  // characters), ResourceExhausted (tenants_max). So for the others that make tenants.
  absl::StatusOr<uint32_t> Open(absl::string_view name);
  std::string NameOf(uint32_t tenant) const;

  // `quota` null: the tenant has the default again. Errors: ResourceExhausted (tenants_max).
  absl::Status SetQuota(absl::string_view name, const std::optional<TenantQuota>& quota);
  void SetDefault(const TenantQuota& quota);
  // These are the quotas, and there are no others. Errors: ResourceExhausted (tenants_max); nothing
  // is changed then.
  absl::Status SetAll(const TenantQuotas& quotas);
  TenantQuota default_quota() const;
  TenantQuota QuotaOf(uint32_t tenant) const;
  // Of each tenant, by number; `version` grows with each change.
  std::vector<TenantQuota> Quotas(uint64_t* version) const;

  // The tenant publishes a block of `bytes`. Over any time longer than kBurst it publishes its
  // quota and one block at most. Errors: ResourceExhausted, with the tenant and when to try again.
  absl::Status TakePublish(uint32_t tenant, uint64_t bytes, absl::Time now);
  // Whether TakePublish would take a block now. Takes nothing.
  bool CanPublish(uint32_t tenant, absl::Time now) const;
  // Blocks of the tenant were refused for another of its limits, or were not asked for.
  void CountRefused(uint32_t tenant, uint64_t blocks);

  // In order of their names.
  std::vector<TenantInfo> List() const;

  // What a tenant that was silent may publish at once.
  static constexpr absl::Duration kBurst = absl::Seconds(1);

 private:
  struct Tenant {
    std::string name;
    std::optional<TenantQuota> quota;
    absl::Time free_at = absl::InfinitePast();  // when all that was published has been paid for
    uint64_t published_bytes = 0;
    uint64_t refused_blocks = 0;
  };
  absl::StatusOr<uint32_t> OpenLocked(absl::string_view name) IBID_REQUIRES(mutex_);
  const TenantQuota& QuotaOf(const Tenant& tenant) const IBID_REQUIRES(mutex_) {
    return tenant.quota.has_value() ? *tenant.quota : default_;
  }
  // Whether its rate forbids the next block.
  bool IsOverRate(const Tenant& tenant, absl::Time now) const IBID_REQUIRES(mutex_);
  void TellChange() const;

  const uint32_t tenants_max_;
  const std::function<void()> on_change_;
  mutable Mutex mutex_;
  std::vector<Tenant> tenants_ IBID_GUARDED_BY(mutex_);                           // by number
  std::map<std::string, uint32_t, std::less<>> numbers_ IBID_GUARDED_BY(mutex_);  // if known
  TenantQuota default_ IBID_GUARDED_BY(mutex_);
  uint64_t version_ IBID_GUARDED_BY(mutex_) = 1;
};

}  // namespace ibid
