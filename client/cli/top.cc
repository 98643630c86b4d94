// `ibid top`.
#include <unistd.h>

#include <cstdio>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/cli/command.h"
#include "client/cli/flags.h"
#include "client/cli/format.h"
#include "client/cli/json.h"
#include "client/cli/rates.h"
#include "client/cli/tenants.h"

namespace ibid::cli {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(2);
constexpr absl::Duration kInterval = absl::Seconds(1);

std::string Latency(double seconds) {
  if (seconds <= 0) return "-";
  if (seconds < 1e-3) return absl::StrFormat("%.0f us", seconds * 1e6);
  return seconds < 1 ? absl::StrFormat("%.1f ms", seconds * 1e3)
                     : absl::StrFormat("%.2f s", seconds);
}

std::string PerSecond(double bytes) {
  return absl::StrCat(Bytes(static_cast<uint64_t>(bytes)), "/s");
}

void AppendServer(const ServerStats& now, const ServerRates& rates, std::string* out) {
  if (!now.status.ok()) {
    absl::StrAppendFormat(out, "server %s  unreachable: %s\n", now.address, now.status.message());
    return;
  }
  absl::StrAppendFormat(
      out, "server %s  %s, up %s; %d sessions, %d leases hold %s, %d reserved, %d to disk\n",
      now.address,
      now.is_draining     ? "draining"
      : now.is_recovering ? "recovering"
                          : "serving",
      absl::FormatDuration(absl::Seconds(static_cast<int64_t>(now.uptime_seconds))), now.sessions,
      now.leases, Bytes(now.pinned_bytes), now.reservations, now.pending_writes);
  for (const ServerStats::Tier& tier : now.tiers) {
    absl::StrAppendFormat(out, "  %-7s %s %9s of %9s %9d blocks   served %6s  evicted %d  %s\n",
                          tier.tier, Bar(tier.used_bytes, tier.bytes_max), Bytes(tier.used_bytes),
                          Bytes(tier.bytes_max), tier.blocks,
                          Share(rates.tier_hits.at(tier.tier), rates.requested_blocks),
                          rates.tier_evictions.at(tier.tier), tier.state);
  }
  absl::StrAppendFormat(
      out,
      "  blocks  %d asked for, %s missed, %d published;  keys found %s, by an endless cache %s\n",
      rates.requested_blocks, Share(rates.missed_blocks, rates.requested_blocks),
      rates.published_blocks, Share(rates.matched_keys, rates.asked_keys),
      now.asked_keys == 0 ? "-" : absl::StrFormat("%.1f%%", 100 * now.infinite_hit_ratio));
  absl::StrAppendFormat(out, "  traffic %s out, %s in\n", PerSecond(rates.sent_bytes_per_second),
                        PerSecond(rates.received_bytes_per_second));
  for (const auto& [name, method] : rates.methods) {
    if (method.calls_per_second == 0 || name == "GetStats" || name == "ListQuotas") continue;
    absl::StrAppendFormat(out, "  %-13s %8.1f/s  median %9s  99%% %9s\n", name,
                          method.calls_per_second, Latency(method.median_seconds),
                          Latency(method.p99_seconds));
  }
}

nlohmann::ordered_json ToJson(const ServerRates& rates) {
  nlohmann::ordered_json json = {{"requested_blocks", rates.requested_blocks},
                                 {"missed_blocks", rates.missed_blocks},
                                 {"tier_hits", rates.tier_hits},
                                 {"tier_evictions", rates.tier_evictions},
                                 {"asked_keys", rates.asked_keys},
                                 {"matched_keys", rates.matched_keys},
                                 {"published_blocks", rates.published_blocks},
                                 {"received_bytes_per_second", rates.received_bytes_per_second},
                                 {"sent_bytes_per_second", rates.sent_bytes_per_second},
                                 {"methods", nlohmann::ordered_json::object()}};
  for (const auto& [name, method] : rates.methods) {
    json["methods"][name] = {{"calls_per_second", method.calls_per_second},
                             {"median_seconds", method.median_seconds},
                             {"p99_seconds", method.p99_seconds}};
  }
  return json;
}

void Show(const std::vector<ServerStats>& before, const std::vector<ServerStats>& now,
          const QuotaReader::Answers& quotas, absl::Duration apart) {
  std::string text;
  nlohmann::ordered_json json = {{"servers", nlohmann::ordered_json::array()}};
  for (size_t i = 0; i < now.size(); ++i) {
    const ServerRates rates = RatesBetween(before[i], now[i], apart);
    AppendServer(now[i], rates, &text);
    nlohmann::ordered_json server = cli::ToJson(now[i]);
    if (now[i].status.ok()) {
      text += QuotaLines(quotas[i]);
      server["last_interval"] = ToJson(rates);
      server["quotas"] = QuotaJson(quotas[i]);
    }
    json["servers"].push_back(std::move(server));
  }
  if (absl::GetFlag(FLAGS_json)) {
    text = json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  } else if (isatty(STDOUT_FILENO) == 1) {
    // Home, the picture with each line cleared to its end, and nothing below it.
    std::string picture = "\x1b[H";
    for (const char c : text) picture += c == '\n' ? std::string("\x1b[K\n") : std::string(1, c);
    text = picture + "\x1b[J";
  }
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

int RunTop(const Command& command) {
  auto client = ConnectClient(kTimeout);
  if (!client.ok()) return FailUsage(command, client.status().message());
  const uint64_t count = absl::GetFlag(FLAGS_count);
  QuotaReader quotas;
  std::vector<ServerStats> before = (*client)->Stats();
  if (!(*client)->is_any_reachable()) return FailServers(command);
  absl::Time asked_at = absl::Now();
  if (!absl::GetFlag(FLAGS_json) && isatty(STDOUT_FILENO) == 1) std::fputs("\x1b[2J", stdout);
  for (uint64_t i = 0; count == 0 || i < count; ++i) {
    absl::SleepFor(kInterval);
    std::vector<ServerStats> now = (*client)->Stats();
    const absl::Time at = absl::Now();
    Show(before, now, quotas.Read(now, TimeoutOr(kTimeout)), at - asked_at);
    if (std::ferror(stdout) != 0) return kExitOk;  // whoever read it has gone
    before = std::move(now);
    asked_at = at;
  }
  return kExitOk;
}

}  // namespace

const Command kTopCommand = {
    "top",
    "what servers do now, each second",
    "Shows tiers, hits by tier, throughput, latencies, what sessions hold and quotas, of the last "
    "second, "
    "again and again until it is\n"
    "interrupted or --count is reached. Where there is no terminal it prints the same lines; "
    "--json one object a line.\n\n  ibid top --servers=10.0.0.1:7070,10.0.0.2:7070\n  ibid top "
    "--json --count=1\n",
    {"count"},
    RunTop};

}  // namespace ibid::cli
