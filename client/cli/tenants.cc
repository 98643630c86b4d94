#include "client/cli/tenants.h"

#include <algorithm>
#include <span>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/each_server.h"
#include "client/cli/flags.h"
#include "client/cli/format.h"

namespace ibid::cli {
namespace {

using nlohmann::ordered_json;

std::string RateText(const QuotaValues& quota) {
  if (!quota.publish_bytes_per_second_max.has_value()) return "no limit";
  return absl::StrCat(Bytes(*quota.publish_bytes_per_second_max), "/s");
}

// "host 1.0 GiB of 4.0 GiB, disk 2.0 GiB": tiers that it neither uses nor is limited in are left
// out.
std::string TiersText(const TenantState& tenant) {
  std::vector<std::string> tiers;
  for (const LimitOfQuota& limit : QuotaLimits()) {
    if (limit.tier == nullptr) continue;
    const std::optional<uint64_t>& bytes_max = tenant.quota.*limit.value;
    const uint64_t used = tenant.*limit.used;
    if (used == 0 && !bytes_max.has_value()) continue;
    std::string& text = tiers.emplace_back(absl::StrCat(limit.tier, " ", Bytes(used)));
    if (bytes_max.has_value()) absl::StrAppend(&text, " of ", Bytes(*bytes_max));
  }
  return tiers.empty() ? "nothing stored" : absl::StrJoin(tiers, ", ");
}

// Those that are shown, in their order.
std::vector<TenantState> Shown(std::vector<TenantState> tenants) {
  const auto rank = [](const TenantState& tenant) {
    return std::tuple(!tenant.has_default,
                      tenant.host_used_bytes + tenant.disk_used_bytes + tenant.gpu_used_bytes,
                      tenant.published_bytes);
  };
  std::stable_sort(tenants.begin(), tenants.end(),
                   [&](const TenantState& a, const TenantState& b) { return rank(a) > rank(b); });
  tenants.resize(std::min(tenants.size(), kTenantsShown));
  return tenants;
}

std::string WhyNot(const absl::Status& status) {
  if (absl::IsPermissionDenied(status)) return "the server tells them to administrators only";
  if (absl::IsUnimplemented(status)) return "the server has none";
  return std::string(status.message());
}

}  // namespace

const std::vector<LimitOfQuota>& QuotaLimits() {
  static const auto* const limits = new std::vector<LimitOfQuota>{
      {"publish_bytes_per_second_max", &FLAGS_publish_bytes_per_second_max,
       &QuotaValues::publish_bytes_per_second_max, nullptr},
      {"host_bytes_max", &FLAGS_host_bytes_max, &QuotaValues::host_bytes_max, "host",
       &TenantState::host_used_bytes},
      {"disk_bytes_max", &FLAGS_disk_bytes_max, &QuotaValues::disk_bytes_max, "disk",
       &TenantState::disk_used_bytes},
      {"gpu_bytes_max", &FLAGS_gpu_bytes_max, &QuotaValues::gpu_bytes_max, "gpu",
       &TenantState::gpu_used_bytes}};
  return *limits;
}

std::string QuotaText(const QuotaValues& quota) {
  std::string text = absl::StrCat(RateText(quota), " to publish");
  for (const LimitOfQuota& limit : QuotaLimits()) {
    if (limit.tier == nullptr || !(quota.*limit.value).has_value()) continue;
    absl::StrAppend(&text, ", ", limit.tier, " ", Bytes(*(quota.*limit.value)));
  }
  return text;
}

std::string TenantText(const TenantState& tenant) {
  return absl::StrFormat("%-20s %s; %s%s; published %s, %d blocks refused",
                         tenant.tenant.empty() ? "(unnamed)" : tenant.tenant, TiersText(tenant),
                         RateText(tenant.quota), tenant.has_default ? " (default)" : "",
                         Bytes(tenant.published_bytes), tenant.refused_blocks);
}

ordered_json ToJson(const QuotaValues& quota) {
  ordered_json json = ordered_json::object();
  for (const LimitOfQuota& limit : QuotaLimits()) {
    if ((quota.*limit.value).has_value()) json[limit.name] = *(quota.*limit.value);
  }
  return json;
}

ordered_json ToJson(const TenantState& tenant) {
  return {{"tenant", tenant.tenant},
          {"quota", ToJson(tenant.quota)},
          {"has_default", tenant.has_default},
          {"published_bytes", tenant.published_bytes},
          {"refused_blocks", tenant.refused_blocks},
          {"host_used_bytes", tenant.host_used_bytes},
          {"disk_used_bytes", tenant.disk_used_bytes},
          {"gpu_used_bytes", tenant.gpu_used_bytes}};
}

QuotaReader::Answers QuotaReader::Read(const std::vector<ServerStats>& servers,
                                       absl::Duration timeout) {
  Answers answers;
  servers_.resize(servers.size());
  for (size_t i = 0; i < servers.size(); ++i) {
    Server& server = servers_[i];
    absl::Status status = servers[i].status.ok() ? server.refusal : servers[i].status;
    if (status.ok() && server.channel == nullptr) {
      auto connected = ConnectAdmin(servers[i].address);
      status = connected.status();
      if (connected.ok()) server.channel = *std::move(connected);
    }
    answers.push_back(status.ok() ? server.channel->ListQuotas(timeout)
                                  : absl::StatusOr<QuotaList>(status));
    const absl::Status& said = answers.back().status();
    if (absl::IsPermissionDenied(said) || absl::IsUnimplemented(said)) server.refusal = said;
  }
  return answers;
}

std::string QuotaLines(const absl::StatusOr<QuotaList>& quotas) {
  if (!quotas.ok()) return absl::StrCat("  quotas  not shown: ", WhyNot(quotas.status()), "\n");
  std::string lines = absl::StrCat("  quotas  default ", QuotaText(quotas->default_quota), "\n");
  for (const TenantState& tenant : Shown(quotas->tenants)) {
    absl::StrAppend(&lines, "    ", TenantText(tenant), "\n");
  }
  if (quotas->tenants.size() > kTenantsShown) {
    absl::StrAppend(&lines, "    and ", quotas->tenants.size() - kTenantsShown,
                    " more tenants: ibid quota\n");
  }
  return lines;
}

ordered_json QuotaJson(const absl::StatusOr<QuotaList>& quotas) {
  if (!quotas.ok()) return {{"error", WhyNot(quotas.status())}};
  ordered_json json = {{"default", ToJson(quotas->default_quota)},
                       {"tenants_count", quotas->tenants.size()},
                       {"tenants", ordered_json::array()}};
  for (const TenantState& tenant : Shown(quotas->tenants)) {
    json["tenants"].push_back(ToJson(tenant));
  }
  return json;
}

}  // namespace ibid::cli
