// `ibid drop`.
#include <cstdio>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "client/cli/flags.h"
#include "nlohmann/json.hpp"

namespace ibid::cli {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(30);

int RunDrop(const Command& command) {
  const bool is_everything = absl::GetFlag(FLAGS_everything);
  if (is_everything == IsGiven("namespace"))
    return FailUsage(command, "give either --namespace or --everything");
  if (is_everything && IsGiven("keys")) return FailUsage(command, "--keys goes with --namespace");
  if (is_everything && !absl::GetFlag(FLAGS_yes)) {
    return FailUsage(command,
                     "--everything drops the blocks of all models and tenants; say --yes too");
  }
  NamespaceId ns;
  std::vector<BlockKey> keys;
  if (!is_everything) {
    const absl::StatusOr<Digest> digest = DigestFromHex(absl::GetFlag(FLAGS_namespace_));
    if (!digest.ok()) return FailUsage(command, "--namespace has not 64 hexadecimal digits");
    ns.digest = *digest;
  }
  if (IsGiven("keys")) {
    auto parsed = ParseKeys(absl::GetFlag(FLAGS_keys));
    if (!parsed.ok()) return FailUsage(command, parsed.status().message());
    keys = *std::move(parsed);
  }
  auto client = ConnectClient(kTimeout);
  if (!client.ok()) return FailUsage(command, client.status().message());
  const absl::StatusOr<uint64_t> dropped = (*client)->Drop(is_everything ? nullptr : &ns, keys);
  if (!dropped.ok()) {
    if (!(*client)->is_any_reachable()) return FailServers(command);
    absl::FPrintF(stderr, "ibid drop: %s. Run it again once they are back.\n",
                  dropped.status().message());
    return absl::IsUnavailable(dropped.status()) ? kExitUnreachable : kExitFailed;
  }
  if (absl::GetFlag(FLAGS_json)) {
    std::puts(nlohmann::ordered_json{{"dropped_blocks", *dropped}}.dump(2).c_str());
  } else {
    absl::PrintF("dropped %d blocks\n", *dropped);
  }
  return kExitOk;
}

}  // namespace

const Command kDropCommand = {"drop",
                              "remove blocks from all tiers of all servers",
                              "Removes the blocks with the given keys, or all of a namespace, or "
                              "everything. Blocks in use are invisible at once "
                              "and freed\n"
                              "when they are used no more.\n\n  ibid drop --namespace=697e...\n  "
                              "ibid drop --everything --yes\n",
                              {"namespace", "keys", "everything", "yes"},
                              RunDrop};

}  // namespace ibid::cli
