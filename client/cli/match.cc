// `ibid match`.
#include <cstdio>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "client/cli/flags.h"
#include "client/cli/named_prefix.h"
#include "nlohmann/json.hpp"

namespace ibid::cli {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(5);

int RunMatch(const Command& command) {
  int exit_code = kExitOk;
  const std::optional<NamedPrefix> prefix = ReadPrefix(command, &exit_code);
  if (!prefix.has_value()) return exit_code;
  auto client = ConnectClient(kTimeout);
  if (!client.ok()) return FailUsage(command, client.status().message());
  const PrefixCount found = (*client)->Probe(prefix->ns, prefix->chain);
  if (!found.is_complete && !(*client)->is_any_reachable()) return FailServers(command);

  if (absl::GetFlag(FLAGS_json)) {
    const nlohmann::ordered_json json = {{"namespace", DigestToHex(prefix->ns.digest)},
                                         {"chain_blocks", prefix->chain.size()},
                                         {"matched_blocks", found.blocks},
                                         {"matched_tokens", found.blocks * prefix->block_tokens},
                                         {"pending_blocks", found.pending},
                                         {"host_blocks", found.host_blocks},
                                         {"disk_blocks", found.disk_blocks},
                                         {"is_complete", found.is_complete}};
    std::puts(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  } else {
    absl::PrintF("%d of %d blocks are stored", found.blocks, prefix->chain.size());
    if (prefix->block_tokens > 0) absl::PrintF(" (%d tokens)", found.blocks * prefix->block_tokens);
    absl::PrintF(": %d in host memory, %d on disk; %d more are being stored\n", found.host_blocks,
                 found.disk_blocks, found.pending);
    if (prefix->chain.empty())
      absl::PrintF("the prompt is shorter than one block of %d tokens\n", prefix->block_tokens);
    if (!found.is_complete) absl::PrintF("not every server answered: there may be more\n");
  }
  return found.blocks > 0 ? kExitOk : kExitNothing;
}

}  // namespace

const Command kMatchCommand = {
    "match", "how much of a prompt is stored",
    "Says how many leading blocks of a prompt the store has, and changes nothing there. The prompt "
    "is given as token ids, as\n"
    "text, or as block keys in their order; namespace, block size and token ids come from the "
    "worker where the flags do not\n"
    "say them. --adapter and --salt ask in the worker's namespace with these. Only full blocks are "
    "asked for.\n\n"
    "  ibid match --text=\"Once upon a time\"\n  ibid match --namespace=697e... --block_tokens=16 "
    "--tokens=1,2,3,4\n",
    kPrefixFlags, RunMatch};

}  // namespace ibid::cli
