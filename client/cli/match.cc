// `ibid match`.
#include <cstdio>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "client/cli/flags.h"
#include "core/check.h"
#include "nlohmann/json.hpp"

namespace ibid::cli {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(5);

struct Question {
  NamespaceId ns;
  std::vector<ChainLink> chain;
  uint32_t block_tokens = 0;  // 0: unknown, the keys were given
};

// Keys come as a chain: each is the parent of the next.
std::vector<ChainLink> ChainOf(const NamespaceId& ns, const std::vector<BlockKey>& keys) {
  std::vector<ChainLink> chain;
  BlockKey parent = RootParent(ns);
  for (const BlockKey& key : keys) {
    chain.push_back({key, parent, 0, static_cast<uint32_t>(chain.size())});
    parent = key;
  }
  return chain;
}

// The namespace of the worker's requests with --adapter and --salt. Errors: FailedPrecondition.
absl::StatusOr<NamespaceId> NamespaceOf(const InferenceStats& worker) {
  if (!IsGiven("adapter") && !IsGiven("salt")) return worker.ns;
  NamespaceSpec spec;
  spec.model = worker.model;
  spec.engine = worker.engine;
  spec.layout = worker.layout;
  // Asking under a namespace that the worker does not use would look like "nothing is stored".
  if (MakeNamespaceId(spec) != worker.ns) {
    return absl::FailedPreconditionError(
        "its namespace has other parts than model, engine and layout; give --namespace instead of "
        "--adapter and --salt");
  }
  spec.adapter = absl::GetFlag(FLAGS_adapter);
  spec.salt = absl::GetFlag(FLAGS_salt);
  return MakeNamespaceId(spec);
}

// Has the worker say what the command line does not: namespace, block size, the tokens of --text.
// Returns kExitOk, or the exit code of a failure whose line is printed.
int AskWorker(const Command& command, Question* question, std::vector<uint32_t>* tokens) {
  const std::string address = absl::GetFlag(FLAGS_worker);
  const auto failed = [&](absl::string_view what, const absl::Status& status) {
    return FailWorker(command, what, address, status);
  };
  auto worker = ConnectWorker(address);
  if (!worker.ok()) return FailUsage(command, worker.status().message());
  const absl::StatusOr<InferenceStats> stats = (*worker)->GetStats(TimeoutOr(kTimeout));
  if (!stats.ok()) return failed("asking for its namespace", stats.status());
  if (!IsGiven("namespace")) {
    const absl::StatusOr<NamespaceId> ns = NamespaceOf(*stats);
    if (!ns.ok()) return failed("making its namespace", ns.status());
    question->ns = *ns;
  }
  if (question->block_tokens == 0) question->block_tokens = stats->block_tokens;
  if (IsGiven("text")) {
    auto parsed = (*worker)->Tokenize(absl::GetFlag(FLAGS_text), TimeoutOr(kTimeout));
    if (!parsed.ok()) return failed("tokenizing", parsed.status());
    *tokens = *std::move(parsed);
  }
  return kExitOk;
}

// Nothing when it cannot be made: the exit code goes to `exit_code`, the line is printed.
std::optional<Question> MakeQuestion(const Command& command, int* exit_code) {
  const auto usage = [&](absl::string_view text) {
    *exit_code = FailUsage(command, text);
    return std::nullopt;
  };
  if (IsGiven("tokens") + IsGiven("text") + IsGiven("keys") != 1)
    return usage("give one of --tokens, --text and --keys");
  if (IsGiven("namespace") && (IsGiven("adapter") || IsGiven("salt")))
    return usage("--adapter and --salt are in a namespace's id already: give them or --namespace");
  Question question;
  question.block_tokens = absl::GetFlag(FLAGS_block_tokens);
  std::vector<uint32_t> tokens;
  if (IsGiven("tokens")) {
    auto parsed = ParseTokens(absl::GetFlag(FLAGS_tokens));
    if (!parsed.ok()) return usage(parsed.status().message());
    tokens = *std::move(parsed);
  }
  if (IsGiven("namespace")) {
    const absl::StatusOr<Digest> digest = DigestFromHex(absl::GetFlag(FLAGS_namespace_));
    if (!digest.ok()) return usage("--namespace has not 64 hexadecimal digits");
    question.ns.digest = *digest;
  }
  const bool needs_worker =
      !IsGiven("namespace") || IsGiven("text") || (IsGiven("tokens") && question.block_tokens == 0);
  if (needs_worker) {
    *exit_code = AskWorker(command, &question, &tokens);
    if (*exit_code != kExitOk) return std::nullopt;
  }
  if (IsGiven("keys")) {
    const auto keys = ParseKeys(absl::GetFlag(FLAGS_keys));
    if (!keys.ok()) return usage(keys.status().message());
    question.chain = ChainOf(question.ns, *keys);
    question.block_tokens = 0;
  } else {
    if (question.block_tokens == 0)
      return usage("the worker names no block size; give --block_tokens");
    question.chain = MakeChain(question.ns, tokens, question.block_tokens, /*with_tail=*/false);
  }
  return question;
}

int RunMatch(const Command& command) {
  int exit_code = kExitOk;
  const std::optional<Question> question = MakeQuestion(command, &exit_code);
  if (!question.has_value()) return exit_code;
  auto client = ConnectClient(kTimeout);
  if (!client.ok()) return FailUsage(command, client.status().message());
  const PrefixCount found = (*client)->Probe(question->ns, question->chain);
  if (!found.is_complete && !(*client)->is_any_reachable()) return FailServers(command);

  if (absl::GetFlag(FLAGS_json)) {
    const nlohmann::ordered_json json = {{"namespace", DigestToHex(question->ns.digest)},
                                         {"chain_blocks", question->chain.size()},
                                         {"matched_blocks", found.blocks},
                                         {"matched_tokens", found.blocks * question->block_tokens},
                                         {"pending_blocks", found.pending},
                                         {"host_blocks", found.host_blocks},
                                         {"disk_blocks", found.disk_blocks},
                                         {"is_complete", found.is_complete}};
    std::puts(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  } else {
    absl::PrintF("%d of %d blocks are stored", found.blocks, question->chain.size());
    if (question->block_tokens > 0)
      absl::PrintF(" (%d tokens)", found.blocks * question->block_tokens);
    absl::PrintF(": %d in host memory, %d on disk; %d more are being stored\n", found.host_blocks,
                 found.disk_blocks, found.pending);
    if (question->chain.empty())
      absl::PrintF("the prompt is shorter than one block of %d tokens\n", question->block_tokens);
    if (!found.is_complete) absl::PrintF("not every server answered: there may be more\n");
  }
  return found.blocks > 0 ? kExitOk : kExitNothing;
}

}  // namespace

const Command kMatchCommand = {
    "match",
    "how much of a prompt is stored",
    "Says how many leading blocks of a prompt the store has, and changes nothing there. The prompt "
    "is given as token ids, as\n"
    "text, or as block keys in their order; namespace, block size and token ids come from the "
    "worker where the flags do not\n"
    "say them. --adapter and --salt ask in the worker's namespace with these. Only full blocks are "
    "asked for.\n\n"
    "  ibid match --text=\"Once upon a time\"\n  ibid match --namespace=697e... --block_tokens=16 "
    "--tokens=1,2,3,4\n",
    {"namespace", "adapter", "salt", "tokens", "text", "keys", "block_tokens", "worker"},
    RunMatch};

}  // namespace ibid::cli
