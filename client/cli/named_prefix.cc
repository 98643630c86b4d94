#include "client/cli/named_prefix.h"

#include "absl/flags/flag.h"
#include "client/cli/flags.h"
#include "core/check.h"

namespace ibid::cli {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(5);

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
int AskWorker(const Command& command, NamedPrefix* prefix, std::vector<uint32_t>* tokens) {
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
    prefix->ns = *ns;
  }
  if (prefix->block_tokens == 0) prefix->block_tokens = stats->block_tokens;
  if (IsGiven("text")) {
    auto parsed = (*worker)->Tokenize(absl::GetFlag(FLAGS_text), TimeoutOr(kTimeout));
    if (!parsed.ok()) return failed("tokenizing", parsed.status());
    *tokens = *std::move(parsed);
  }
  return kExitOk;
}

}  // namespace

std::optional<NamedPrefix> ReadPrefix(const Command& command, int* exit_code) {
  const auto usage = [&](absl::string_view text) {
    *exit_code = FailUsage(command, text);
    return std::nullopt;
  };
  if (IsGiven("tokens") + IsGiven("text") + IsGiven("keys") != 1)
    return usage("give one of --tokens, --text and --keys");
  if (IsGiven("namespace") && (IsGiven("adapter") || IsGiven("salt")))
    return usage("--adapter and --salt are in a namespace's id already: give them or --namespace");
  NamedPrefix prefix;
  prefix.block_tokens = absl::GetFlag(FLAGS_block_tokens);
  std::vector<uint32_t> tokens;
  if (IsGiven("tokens")) {
    auto parsed = ParseTokens(absl::GetFlag(FLAGS_tokens));
    if (!parsed.ok()) return usage(parsed.status().message());
    tokens = *std::move(parsed);
  }
  if (IsGiven("namespace")) {
    const absl::StatusOr<Digest> digest = DigestFromHex(absl::GetFlag(FLAGS_namespace_));
    if (!digest.ok()) return usage("--namespace has not 64 hexadecimal digits");
    prefix.ns.digest = *digest;
  }
  const bool needs_worker =
      !IsGiven("namespace") || IsGiven("text") || (IsGiven("tokens") && prefix.block_tokens == 0);
  if (needs_worker) {
    *exit_code = AskWorker(command, &prefix, &tokens);
    if (*exit_code != kExitOk) return std::nullopt;
  }
  if (IsGiven("keys")) {
    const auto keys = ParseKeys(absl::GetFlag(FLAGS_keys));
    if (!keys.ok()) return usage(keys.status().message());
    prefix.chain = ChainOf(prefix.ns, *keys);
    prefix.block_tokens = 0;
  } else {
    if (prefix.block_tokens == 0)
      return usage("the worker names no block size; give --block_tokens");
    prefix.chain = MakeChain(prefix.ns, tokens, prefix.block_tokens, /*with_tail=*/false);
  }
  return prefix;
}

}  // namespace ibid::cli
