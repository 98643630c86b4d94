// `ibid watch`.
#include <algorithm>
#include <cstdio>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/command.h"
#include "client/cli/flags.h"
#include "client/store_watch.h"
#include "core/check.h"
#include "core/clock.h"
#include "nlohmann/json.hpp"

namespace ibid::cli {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(5);
constexpr size_t kLinesAtOnce = 1'024;

using Addresses = std::vector<std::string>;

absl::StatusOr<std::vector<NamespaceId>> ParseNamespaces(absl::string_view text) {
  std::vector<NamespaceId> namespaces;
  for (absl::string_view piece : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    NamespaceId& ns = namespaces.emplace_back();
    IBID_ASSIGN_OR_RETURN(ns.digest, DigestFromHex(piece));
  }
  return namespaces;
}

void PrintText(const Addresses& servers, const StoreEvent& event) {
  const std::string& server = servers[event.server];
  if (event.news == StoreNews::kBlock) {
    const BlockReport& block = event.block;
    absl::PrintF("%s %d %-8s %-4s %s position=%d tokens=%d tiers=%s namespace=%s\n", server,
                 event.sequence, NameOf(block.change), block.tier, DigestToHex(block.key.digest),
                 block.position, block.token_count,
                 block.tiers.empty() ? "none" : absl::StrJoin(block.tiers, ","),
                 DigestToHex(block.ns.digest));
    return;
  }
  absl::PrintF("%s %d %-8s epoch=%x%s%s%s\n", server, event.sequence, NameOf(event.news),
               event.epoch, event.is_gap ? " gap: events were missed" : "",
               event.status.ok() ? "" : " ", event.status.message());
}

void PrintJson(const Addresses& servers, const StoreEvent& event) {
  nlohmann::ordered_json json = {{"server", servers[event.server]},
                                 {"epoch", absl::StrFormat("%x", event.epoch)},
                                 {"sequence", event.sequence}};
  if (event.news == StoreNews::kBlock) {
    const BlockReport& block = event.block;
    json["event"] = std::string(NameOf(block.change));
    json["tier"] = block.tier;
    json["tiers"] = block.tiers;
    json["namespace"] = DigestToHex(block.ns.digest);
    json["key"] = DigestToHex(block.key.digest);
    if (block.parent.has_value()) json["parent"] = DigestToHex(block.parent->digest);
    json["position"] = block.position;
    json["tokens"] = block.token_count;
  } else {
    json["event"] = std::string(NameOf(event.news));
    if (event.news == StoreNews::kBegin) json["is_gap"] = event.is_gap;
    if (!event.status.ok()) json["error"] = std::string(event.status.message());
  }
  std::puts(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

// Prints until --for or --count is over. A reader that went away ends it too.
int PrintEvents(const Command& command, const Addresses& servers, StoreWatch* watch) {
  const SteadyClock clock;
  const absl::Time began = clock.Now();
  const uint64_t count = absl::GetFlag(FLAGS_count);
  bool is_anybody_there = false;
  for (uint64_t printed = 0; count == 0 || printed < count;) {
    const absl::Time now = clock.Now();
    const absl::Duration left = absl::GetFlag(FLAGS_for_) - (now - began);
    if (left <= absl::ZeroDuration()) break;
    const absl::Duration patience = TimeoutOr(kTimeout) - (now - began);
    if (!is_anybody_there && patience <= absl::ZeroDuration()) return FailServers(command);
    const size_t lines =
        count == 0 ? kLinesAtOnce : std::min<uint64_t>(kLinesAtOnce, count - printed);
    for (const StoreEvent& event :
         watch->Take(lines, is_anybody_there ? left : std::min(left, patience))) {
      is_anybody_there |= event.news != StoreNews::kAway;
      absl::GetFlag(FLAGS_json) ? PrintJson(servers, event) : PrintText(servers, event);
      ++printed;
    }
    if (std::fflush(stdout) != 0) return kExitFailed;
  }
  return is_anybody_there ? kExitOk : FailServers(command);
}

int RunWatch(const Command& command) {
  StoreWatchOptions options;
  auto namespaces = ParseNamespaces(absl::GetFlag(FLAGS_namespace_));
  if (!namespaces.ok()) {
    return FailUsage(command,
                     "--namespace has not 64 hexadecimal digits, or several such with "
                     "commas between them");
  }
  options.namespaces = *std::move(namespaces);
  options.has_snapshot = absl::GetFlag(FLAGS_snapshot);
  if (absl::GetFlag(FLAGS_for_) <= absl::ZeroDuration()) {
    return FailUsage(command, "--for: use a positive duration as 10s");
  }
  auto client = ConnectClient(kTimeout);
  if (!client.ok()) return FailUsage(command, client.status().message());
  auto watch = (*client)->Watch(std::move(options));
  if (!watch.ok()) return FailUsage(command, watch.status().message());
  return PrintEvents(command, absl::GetFlag(FLAGS_servers), watch->get());
}

}  // namespace

const Command kWatchCommand = {
    "watch",
    "print blocks as they come and go",
    "Prints a line for each block that is stored (held), and then for each change: stored,\n"
    "promoted, demoted, removed (no copy is left), with its number on that server, the tier that "
    "a\n"
    "copy came into or left, and the tiers that have the block now. Other lines say what is known "
    "of\n"
    "a server: begin (what was printed of it before is void), exact (all it holds was printed),\n"
    "resumed (it is back, nothing was missed), away. Ends by --for, --count or an interrupt.\n\n"
    "  ibid watch --nosnapshot --for=1m\n  ibid watch --namespace=697e... --json --count=100\n",
    {"namespace", "snapshot", "for", "count"},
    RunWatch};

}  // namespace ibid::cli
