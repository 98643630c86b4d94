// `ibid status` and `ibid stats`.
#include <algorithm>
#include <cstdio>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "client/cli/flags.h"
#include "client/cli/format.h"
#include "client/cli/json.h"
#include "client/cli/tenants.h"

namespace ibid::cli {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(5);

struct Answers {
  std::vector<ServerStats> servers;
  QuotaReader::Answers quotas;                           // one a server
  std::optional<absl::StatusOr<InferenceStats>> worker;  // when it was asked

  bool has_silent() const {
    return (worker.has_value() && !worker->ok()) ||
           std::any_of(servers.begin(), servers.end(),
                       [](const ServerStats& s) { return !s.status.ok(); });
  }
};

// Asks all servers, and the worker if one is named.
absl::StatusOr<Answers> AskAll() {
  auto client = ConnectClient(kTimeout);
  if (!client.ok()) return client.status();
  Answers answers;
  answers.servers = (*client)->Stats();
  answers.quotas = QuotaReader().Read(answers.servers, TimeoutOr(kTimeout));
  if (IsGiven("worker")) {
    auto worker = ConnectWorker(absl::GetFlag(FLAGS_worker));
    if (!worker.ok()) return worker.status();
    answers.worker = (*worker)->GetStats(TimeoutOr(kTimeout));
  }
  return answers;
}

void PrintJson(const Answers& answers) {
  nlohmann::ordered_json json = {{"servers", nlohmann::ordered_json::array()}};
  for (size_t i = 0; i < answers.servers.size(); ++i) {
    nlohmann::ordered_json server = ToJson(answers.servers[i]);
    if (answers.servers[i].status.ok()) server["quotas"] = QuotaJson(answers.quotas[i]);
    json["servers"].push_back(std::move(server));
  }
  if (answers.worker.has_value())
    json["worker"] = ToJson(absl::GetFlag(FLAGS_worker), *answers.worker);
  std::puts(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

void PrintServer(const ServerStats& server) {
  if (!server.status.ok()) {
    absl::PrintF("server %-21s unreachable: %s\n", server.address, server.status.message());
    return;
  }
  absl::PrintF("server %-21s reachable, version %s, up %s, %d sessions, %d namespaces%s\n",
               server.address, server.version,
               absl::FormatDuration(absl::Seconds(static_cast<int64_t>(server.uptime_seconds))),
               server.sessions, server.namespaces,
               server.is_draining     ? ", draining"
               : server.is_recovering ? ", still reading its disk directory"
                                      : "");
  for (const ServerStats::Tier& tier : server.tiers) {
    absl::PrintF("  %-5s %s %9s of %9s  %9d blocks  %9d hits  %s\n", tier.tier,
                 Bar(tier.used_bytes, tier.bytes_max), Bytes(tier.used_bytes),
                 Bytes(tier.bytes_max), tier.blocks, tier.hits, tier.state);
  }
  absl::PrintF("  block bytes of this program go by %s%s\n",
               server.transport.empty() ? "nothing: there is no session" : server.transport,
               server.transport_reason.empty() ? "" : absl::StrCat(": ", server.transport_reason));
  std::string by_tier;
  for (const ServerStats::Tier& tier : server.tiers) {
    absl::StrAppend(&by_tier, ", ", Share(tier.hits, server.requested_blocks), " from ", tier.tier);
  }
  absl::PrintF("  blocks asked for %d, found %s%s; published %d, rejected %d, corrupt %d\n",
               server.requested_blocks,
               Share(server.requested_blocks - server.missed_blocks, server.requested_blocks),
               by_tier, server.published_blocks, server.rejected_blocks, server.corrupt_blocks);
  if (server.asked_keys > 0) {
    absl::PrintF(
        "  matches asked for %d keys and found %s; an endless cache would have had %.1f%%\n",
        server.asked_keys, Share(server.matched_keys, server.asked_keys),
        100 * server.infinite_hit_ratio);
  }
  absl::PrintF("  %d leases hold %s, %d blocks reserved, %d on their way to disk\n", server.leases,
               Bytes(server.pinned_bytes), server.reservations, server.pending_writes);
  if (server.pins > 0) {
    uint64_t kept_bytes = 0;
    for (const ServerStats::Tier& tier : server.tiers) kept_bytes += tier.kept_bytes;
    absl::PrintF("  pins %d, which keep %s\n", server.pins, Bytes(kept_bytes));
  }
}

void PrintWorker(const std::string& address, const absl::StatusOr<InferenceStats>& worker) {
  if (!worker.ok()) {
    absl::PrintF("worker %-21s unreachable: %s\n", address, worker.status().message());
    return;
  }
  absl::PrintF("worker %-21s reachable, version %s, store %s, %d running, %d waiting\n", address,
               worker->version, worker->is_store_reachable ? "reachable" : "unreachable",
               worker->running_requests, worker->waiting_requests);
  const uint64_t used = worker->pages_total - std::min(worker->pages_free, worker->pages_total);
  absl::PrintF("  pages %s %d of %d hold KV, %d of them unused\n", Bar(used, worker->pages_total),
               used, worker->pages_total, worker->pages_cached);
  absl::PrintF(
      "  prompt tokens %d: %s from the store, %s from its own pages, %s computed; output tokens "
      "%d\n",
      worker->prompt_tokens, Share(worker->fetched_tokens, worker->prompt_tokens),
      Share(worker->worker_tokens, worker->prompt_tokens),
      Share(worker->computed_tokens, worker->prompt_tokens), worker->output_tokens);
  absl::PrintF("  namespace %s\n  layout    %s\n", DigestToHex(worker->ns.digest), worker->layout);
}

// All numbers of a JSON object, a line each, nested names joined by dots.
void PrintFields(const std::string& prefix, const nlohmann::ordered_json& json) {
  for (const auto& [name, value] : json.items()) {
    if (name == "tiers") {
      for (const auto& tier : value)
        PrintFields(absl::StrCat(prefix, tier["tier"].get<std::string>(), "."), tier);
    } else if (name != "tier") {
      const std::string text =
          value.is_string()
              ? value.get<std::string>()
              : value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
      absl::PrintF("  %-28s %s\n", prefix + name, text);
    }
  }
}

int Run(const Command& command, void (*print)(const Answers&)) {
  const absl::StatusOr<Answers> answers = AskAll();
  if (!answers.ok()) return FailUsage(command, answers.status().message());
  absl::GetFlag(FLAGS_json) ? PrintJson(*answers) : print(*answers);
  return answers->has_silent() ? kExitUnreachable : kExitOk;
}

int RunStatus(const Command& command) {
  return Run(command, [](const Answers& answers) {
    for (size_t i = 0; i < answers.servers.size(); ++i) {
      PrintServer(answers.servers[i]);
      if (answers.servers[i].status.ok()) std::fputs(QuotaLines(answers.quotas[i]).c_str(), stdout);
    }
    if (answers.worker.has_value()) PrintWorker(absl::GetFlag(FLAGS_worker), *answers.worker);
  });
}

int RunStats(const Command& command) {
  return Run(command, [](const Answers& answers) {
    for (const ServerStats& server : answers.servers) {
      absl::PrintF("server %s\n", server.address);
      PrintFields("", ToJson(server));
    }
    if (!answers.worker.has_value()) return;
    absl::PrintF("worker %s\n", absl::GetFlag(FLAGS_worker));
    PrintFields("", ToJson(absl::GetFlag(FLAGS_worker), *answers.worker));
  });
}

}  // namespace

const Command kStatusCommand = {
    "status",
    "who answers, how full the tiers are, and quotas",
    "Shows each cache server with its tiers and quotas, and the worker if --worker is given. Exit "
    "code 3 when "
    "one of them does "
    "not\n"
    "answer.\n\n  ibid status --servers=10.0.0.1:7070,10.0.0.2:7070 --worker=10.0.0.9:7080\n",
    {"worker"},
    RunStatus};

const Command kStatsCommand = {
    "stats",
    "every counter of the servers",
    "Shows all that each cache server counts, and the worker if --worker is given. Exit "
    "code 3 when one of them does not\n"
    "answer.\n\n  ibid stats --json\n",
    {"worker"},
    RunStats};

}  // namespace ibid::cli
