// `ibid quota`.
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "client/cli/each_server.h"
#include "client/cli/flags.h"
#include "client/cli/tenants.h"

namespace ibid::cli {
namespace {

using nlohmann::ordered_json;

constexpr absl::Duration kTimeout = absl::Seconds(10);

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
        absl::PrintF("server %s: default %s\n", address, QuotaText(list->default_quota));
        for (const TenantState& tenant : list->tenants) {
          absl::PrintF("  %s\n", TenantText(tenant));
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
  for (const LimitOfQuota& limit : QuotaLimits()) {
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
