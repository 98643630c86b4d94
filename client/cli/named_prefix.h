// A prompt's blocks, as a command line names them: --tokens, --text or --keys, in the namespace of
// --namespace or of the worker, --adapter and --salt. Commands that use it take kPrefixFlags.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/cli/command.h"
#include "core/block_key.h"

namespace ibid::cli {

inline const std::vector<std::string> kPrefixFlags = {
    "namespace", "adapter", "salt", "tokens", "text", "keys", "block_tokens", "worker"};

struct NamedPrefix {
  NamespaceId ns;
  std::vector<ChainLink> chain;  // full blocks only
  uint32_t block_tokens = 0;     // 0: unknown, the keys were given
};

// Nothing when it cannot be made: the exit code goes to `exit_code`, the line is printed. Asks the
// worker for what the command line does not say.
std::optional<NamedPrefix> ReadPrefix(const Command& command, int* exit_code);

}  // namespace ibid::cli
