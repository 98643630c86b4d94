// `ibid quota`.
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/each_server.h"
#include "client/cli/flags.h"
#include "client/cli/format.h"

namespace ibid::cli {
namespace {

using nlohmann::ordered_json;

constexpr absl::Duration kTimeout = absl::Seconds(10);

// A limit of a quota: a flag, and a field of the JSON, of its name.
struct LimitOfQuota {
  const char* name;
  absl::Flag<std::string>* flag;
  std::optional<uint64_t> QuotaValues::*value;
  const char* tier;  // null: it is the rate
  uint64_t TenantState::*used = nullptr;
};

const std::vector<LimitOfQuota>& Limits() {
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

std::string RateText(const QuotaValues& quota) {
  if (!quota.publish_bytes_per_second_max.has_value()) return "no limit";
  return absl::StrCat(Bytes(*quota.publish_bytes_per_second_max), "/s");
}

// "host 1.0 GiB of 4.0 GiB, disk 2.0 GiB": tiers that it neither uses nor is limited in are left
// out.
std::string TiersText(const TenantState& tenant) {
  std::vector<std::string> tiers;
  for (const LimitOfQuota& limit : Limits()) {
    if (limit.tier == nullptr) continue;
    const std::optional<uint64_t>& bytes_max = tenant.quota.*limit.value;
    const uint64_t used = tenant.*limit.used;
    if (used == 0 && !bytes_max.has_value()) continue;
    std::string& text = tiers.emplace_back(absl::StrCat(limit.tier, " ", Bytes(used)));
    if (bytes_max.has_value()) absl::StrAppend(&text, " of ", Bytes(*bytes_max));
  }
  return tiers.empty() ? "nothing stored" : absl::StrJoin(tiers, ", ");
}

std::string DefaultText(const QuotaValues& quota) {
  std::string text = absl::StrCat(RateText(quota), " to publish");
  for (const LimitOfQuota& limit : Limits()) {
    if (limit.tier == nullptr || !(quota.*limit.value).has_value()) continue;
    absl::StrAppend(&text, ", ", limit.tier, " ", Bytes(*(quota.*limit.value)));
  }
  return text;
}

ordered_json ToJson(const QuotaValues& quota) {
  ordered_json json = ordered_json::object();
  for (const LimitOfQuota& limit : Limits()) {
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

int Fail(const Command& command, const std::string& address, const absl::Status& status,
         ordered_json* answer) {
  (*answer)["error"] = std::string(status.message());
  return FailServer(command, address, status);
}

int ListQuotas(const Command& command) {
  return AskEach(
      command, [&](const std::string& address, AdminChannel& channel, ordered_json* answer) -> int {
        const absl::StatusOr<QuotaList> list = channel.ListQuotas(TimeoutOr(kTimeout));
        if (!list.ok()) return Fail(command, address, list.status(), answer);
        (*answer)["default"] = ToJson(list->default_quota);
        (*answer)["tenants"] = ordered_json::array();
        for (const TenantState& tenant : list->tenants) {
          (*answer)["tenants"].push_back(ToJson(tenant));
        }
        if (absl::GetFlag(FLAGS_json)) return kExitOk;
        absl::PrintF("server %s: default %s\n", address, DefaultText(list->default_quota));
        for (const TenantState& tenant : list->tenants) {
          absl::PrintF("  %-20s %s; %s%s; published %s, %d blocks refused\n",
                       tenant.tenant.empty() ? "(unnamed)" : tenant.tenant, TiersText(tenant),
                       RateText(tenant.quota), tenant.has_default ? " (default)" : "",
                       Bytes(tenant.published_bytes), tenant.refused_blocks);
        }
        return kExitOk;
      });
}

// What the flags change of a quota.
struct QuotaChange {
  std::vector<std::pair<std::optional<uint64_t> QuotaValues::*, std::optional<uint64_t>>> limits;
  bool is_default = false;  // the tenant has the default quota again

  QuotaValues AppliedTo(QuotaValues quota) const {
    for (const auto& [field, value] : limits) quota.*field = value;
    return quota;
  }
};

// Nothing after an error, of which the usage was told.
std::optional<QuotaChange> ReadChange(const Command& command) {
  QuotaChange change;
  for (const LimitOfQuota& limit : Limits()) {
    if (!IsGiven(limit.name)) continue;
    const std::string text = absl::GetFlag(*limit.flag);
    uint64_t value = 0;
    if (text == "default" && !absl::GetFlag(FLAGS_default_)) {
      change.is_default = true;
    } else if (text == "none") {
      change.limits.emplace_back(limit.value, std::nullopt);
    } else if (absl::SimpleAtoi(text, &value)) {
      change.limits.emplace_back(limit.value, value);
    } else {
      FailUsage(command,
                absl::StrCat("--", limit.name, ": use a number of bytes, none or default"));
      return std::nullopt;
    }
  }
  if (change.is_default && !change.limits.empty()) {
    FailUsage(command, "default is of the whole quota: give no other limit beside it");
    return std::nullopt;
  }
  return change;
}

// The limits that are not named stay as they are.
absl::Status SetNamedLimits(AdminChannel& channel, const QuotaChange& change) {
  const absl::StatusOr<QuotaList> list = channel.ListQuotas(TimeoutOr(kTimeout));
  if (!list.ok()) return list.status();
  if (absl::GetFlag(FLAGS_default_)) {
    return channel.SetDefaultQuota(change.AppliedTo(list->default_quota), TimeoutOr(kTimeout));
  }
  const std::string name = absl::GetFlag(FLAGS_tenant);
  if (change.is_default) return channel.SetQuota(name, std::nullopt, TimeoutOr(kTimeout));
  QuotaValues now = list->default_quota;
  for (const TenantState& tenant : list->tenants) {
    if (tenant.tenant == name) now = tenant.quota;
  }
  return channel.SetQuota(name, change.AppliedTo(now), TimeoutOr(kTimeout));
}

// Prints `done` for each server of which `ask` succeeds.
template <typename Ask>
int ChangeEach(const Command& command, const char* done, const Ask& ask) {
  return AskEach(
      command, [&](const std::string& address, AdminChannel& channel, ordered_json* answer) -> int {
        const absl::Status status = ask(channel);
        if (!status.ok()) return Fail(command, address, status, answer);
        if (!absl::GetFlag(FLAGS_json)) absl::PrintF("server %s: %s\n", address, done);
        return kExitOk;
      });
}

int RunQuota(const Command& command) {
  const bool is_default = absl::GetFlag(FLAGS_default_);
  const std::optional<QuotaChange> change = ReadChange(command);
  if (!change.has_value()) return kExitUsage;
  const bool is_change = change->is_default || !change->limits.empty();
  if (absl::GetFlag(FLAGS_reload)) {
    if (is_change || is_default || IsGiven("tenant")) {
      return FailUsage(command, "--reload goes without other flags of quotas");
    }
    return ChangeEach(command, "read again", [](AdminChannel& channel) {
      return channel.ReloadQuotas(TimeoutOr(kTimeout));
    });
  }
  if (!is_change) {
    if (is_default || IsGiven("tenant")) {
      return FailUsage(command, "give a limit too, as --host_bytes_max: a number, none or default");
    }
    return ListQuotas(command);
  }
  if (is_default == IsGiven("tenant")) {
    return FailUsage(command, "give either --tenant or --default");
  }
  return ChangeEach(command, "set",
                    [&](AdminChannel& channel) { return SetNamedLimits(channel, *change); });
}

}  // namespace

const Command kQuotaCommand = {
    "quota",
    "what tenants may publish and store",
    "Without flags, shows the tenants of each server: what the blocks of each take in each tier, "
    "how fast it may\n"
    "publish, what it has published, and how many blocks were refused. With --tenant (empty: "
    "clients that name none)\n"
    "or --default sets limits, until the server ends; those that are not named stay as they are. "
    "What is to last\n"
    "stands in a server's --tenants_file, which --reload has it read again.\n\n"
    "  ibid quota\n  ibid quota --tenant=batch --host_bytes_max=8000000000 "
    "--disk_bytes_max=none\n"
    "  ibid quota --tenant=batch --publish_bytes_per_second_max=default\n  ibid quota --reload\n",
    {"tenant", "default", "publish_bytes_per_second_max", "host_bytes_max", "disk_bytes_max",
     "gpu_bytes_max", "reload"},
    RunQuota};

}  // namespace ibid::cli
