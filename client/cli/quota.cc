// `ibid quota`.
#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "client/cli/each_server.h"
#include "client/cli/flags.h"
#include "client/cli/format.h"

namespace ibid::cli {
namespace {

using nlohmann::ordered_json;

constexpr absl::Duration kTimeout = absl::Seconds(10);

std::string RateText(const QuotaValues& quota) {
  if (!quota.publish_bytes_per_second_max.has_value()) return "no limit";
  return absl::StrCat(Bytes(*quota.publish_bytes_per_second_max), "/s");
}

ordered_json ToJson(const QuotaValues& quota) {
  ordered_json json = ordered_json::object();
  if (quota.publish_bytes_per_second_max.has_value()) {
    json["publish_bytes_per_second_max"] = *quota.publish_bytes_per_second_max;
  }
  return json;
}

int ListQuotas(const Command& command) {
  return AskEach(
      command, [&](const std::string& address, AdminChannel& channel, ordered_json* answer) -> int {
        const absl::StatusOr<QuotaList> list = channel.ListQuotas(TimeoutOr(kTimeout));
        if (!list.ok()) {
          (*answer)["error"] = std::string(list.status().message());
          return FailServer(command, address, list.status());
        }
        (*answer)["default"] = ToJson(list->default_quota);
        (*answer)["tenants"] = ordered_json::array();
        for (const TenantState& tenant : list->tenants) {
          (*answer)["tenants"].push_back({{"tenant", tenant.tenant},
                                          {"quota", ToJson(tenant.quota)},
                                          {"has_default", tenant.has_default},
                                          {"published_bytes", tenant.published_bytes},
                                          {"refused_blocks", tenant.refused_blocks}});
        }
        if (absl::GetFlag(FLAGS_json)) return kExitOk;
        absl::PrintF("server %s: default %s to publish\n", address, RateText(list->default_quota));
        for (const TenantState& tenant : list->tenants) {
          absl::PrintF("  %-20s %s%s; published %s, %d blocks refused\n",
                       tenant.tenant.empty() ? "(unnamed)" : tenant.tenant, RateText(tenant.quota),
                       tenant.has_default ? " (default)" : "", Bytes(tenant.published_bytes),
                       tenant.refused_blocks);
        }
        return kExitOk;
      });
}

int RunQuota(const Command& command) {
  const bool is_default = absl::GetFlag(FLAGS_default_);
  if (!IsGiven("publish_bytes_per_second_max")) {
    if (is_default || IsGiven("tenant")) {
      return FailUsage(command,
                       "give --publish_bytes_per_second_max too: a number, none or default");
    }
    return ListQuotas(command);
  }
  if (is_default == IsGiven("tenant")) {
    return FailUsage(command, "give either --tenant or --default");
  }
  const std::string text = absl::GetFlag(FLAGS_publish_bytes_per_second_max);
  std::optional<QuotaValues> quota = QuotaValues{};
  uint64_t rate = 0;
  if (text == "default" && !is_default) {
    quota.reset();
  } else if (absl::SimpleAtoi(text, &rate)) {
    quota->publish_bytes_per_second_max = rate;
  } else if (text != "none") {
    return FailUsage(command,
                     "--publish_bytes_per_second_max: use a number of bytes, none or default");
  }
  return AskEach(
      command, [&](const std::string& address, AdminChannel& channel, ordered_json* answer) -> int {
        const absl::Status status =
            is_default ? channel.SetDefaultQuota(*quota, TimeoutOr(kTimeout))
                       : channel.SetQuota(absl::GetFlag(FLAGS_tenant), quota, TimeoutOr(kTimeout));
        if (!status.ok()) {
          (*answer)["error"] = std::string(status.message());
          return FailServer(command, address, status);
        }
        if (!absl::GetFlag(FLAGS_json)) absl::PrintF("server %s: set\n", address);
        return kExitOk;
      });
}

}  // namespace

const Command kQuotaCommand = {
    "quota",
    "what tenants may publish",
    "Without flags, shows the tenants of each server: how fast each may publish, what it has "
    "published, and how many\n"
    "blocks were refused. With --tenant (empty: clients that name none) or --default sets the "
    "limit, "
    "until the server ends:\n"
    "what is to last stands in its --tenants_file.\n\n"
    "  ibid quota\n  ibid quota --tenant=batch --publish_bytes_per_second_max=50000000\n"
    "  ibid quota --tenant=batch --publish_bytes_per_second_max=default\n",
    {"tenant", "default", "publish_bytes_per_second_max"},
    RunQuota};

}  // namespace ibid::cli
