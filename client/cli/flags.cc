#include "client/cli/flags.h"

#include "absl/flags/flag.h"
#include "absl/strings/str_join.h"

namespace ibid::cli {
namespace {

// Abseil parses each occurrence on its own and keeps the last.
std::vector<std::string>& GivenValues() {
  static std::vector<std::string> values;
  return values;
}

}  // namespace

bool AbslParseFlag(absl::string_view text, RepeatedText* flag, std::string*) {
  GivenValues().emplace_back(text);
  flag->values = GivenValues();
  return true;
}

std::string AbslUnparseFlag(const RepeatedText& flag) { return absl::StrJoin(flag.values, " "); }

}  // namespace ibid::cli

ABSL_FLAG(std::vector<std::string>, servers, {"127.0.0.1:7070"},
          "cache servers, host:port,...; all of the cluster, in any order");
ABSL_FLAG(std::string, worker, "127.0.0.1:7080", "worker, host:port");
ABSL_FLAG(absl::Duration, timeout, absl::ZeroDuration(),
          "how long to wait for an answer, as 500ms or 10s; 0: as long as the command deems right");
ABSL_FLAG(bool, json, false, "one JSON object on standard output");
ABSL_FLAG(std::string, transport, "auto",
          "how block bytes travel: auto, shm (a server on this host) or grpc; status shows which");
ABSL_FLAG(std::string, log_level, "off", "log on standard error: debug, info, warn, error or off");
ABSL_FLAG(std::string, tls_ca, "",
          "PEM file with the authority that signs the servers; turns TLS on");
ABSL_FLAG(std::string, tls_cert, "",
          "PEM file with this client's certificate, if the servers ask for one");
ABSL_FLAG(std::string, tls_key, "", "PEM file with the key of --tls_cert");

// --namespace: see CommandLineSpec.
ABSL_FLAG(std::string, namespace_, "", "namespace id, 64 hexadecimal digits");
ABSL_FLAG(std::string, adapter, "", "digest of the LoRA weights that KV was computed with");
ABSL_FLAG(std::string, salt, "", "KV is shared only between requests of the same salt");
ABSL_FLAG(std::string, keys, "", "block keys of 64 hexadecimal digits each, comma-separated");
ABSL_FLAG(std::string, tokens, "", "token ids, comma-separated");
ABSL_FLAG(std::string, text, "", "text, which the worker turns into token ids");
ABSL_FLAG(uint32_t, block_tokens, 0,
          "tokens in a block; 0: what the worker says, and 512 in a replay");

ABSL_FLAG(bool, everything, false, "every block of every namespace; needs --yes");
ABSL_FLAG(bool, yes, false, "yes, really");

ABSL_FLAG(bool, snapshot, true, "begin with what is stored; --nosnapshot: only what changes");
// --for: see CommandLineSpec.
ABSL_FLAG(absl::Duration, for_, absl::InfiniteDuration(),
          "how long to watch, as 10s, or to keep what is pinned, as 24h; inf: without end");
ABSL_FLAG(uint64_t, count, 0, "end after so many lines (top: pictures); 0: do not");

ABSL_FLAG(std::string, prompt, "", "the prompt's text");
ABSL_FLAG(std::string, prompt_file, "", "file with the prompt's text; - is standard input");
ABSL_FLAG(
    std::string, prefill_worker, "",
    "worker that computes the prompt, host:port; --worker then fetches its blocks and goes on");
ABSL_FLAG(uint32_t, max_tokens, 64, "most tokens to generate");
ABSL_FLAG(double, temperature, 0, "0: always the most likely token");
ABSL_FLAG(uint32_t, top_k, 0, "sample among the k most likely tokens; 0: off");
ABSL_FLAG(double, top_p, 0, "sample among the tokens that together have this probability; 0: off");
ABSL_FLAG(uint64_t, seed, 0, "seed of the sampling");
ABSL_FLAG(ibid::cli::RepeatedText, stop, {},
          "text that ends the output before it; given several times, the first that comes");
ABSL_FLAG(std::string, store, "rw", "use of the store: rw, ro, wo or off");
ABSL_FLAG(bool, no_worker_cache, false, "do not reuse what the worker itself still has");

ABSL_FLAG(bool, undo, false, "drain: serve and take blocks again");
ABSL_FLAG(uint32_t, mib_per_second, 0, "most MiB a second that a server reads; 0: 256");

ABSL_FLAG(std::string, priority, "must_stay",
          "low, high: leaves only when nothing lower can; must_stay: not at all");
ABSL_FLAG(std::string, pin, "", "id of a pin, 16 hexadecimal digits; pin: none makes a new one");
ABSL_FLAG(bool, list, false, "show the pins that there are");

ABSL_FLAG(std::vector<std::string>, policies, {},
          "eviction policies to compare; none: all that a server has");
ABSL_FLAG(std::vector<std::string>, capacities,
          (std::vector<std::string>{"0.01", "0.02", "0.05", "0.1", "0.2", "0.4"}),
          "sizes of the cache: shares of a trace's different blocks, as 0.05, or bytes, as 64GiB");
ABSL_FLAG(bool, sweep, false,
          "24 capacities from 0.005 to 1, evenly on a logarithmic scale, instead of --capacities");
ABSL_FLAG(uint64_t, bytes_per_token, 0,
          "bytes of KV of a token, all layers; 0: what --layout says, or unknown");
ABSL_FLAG(std::string, layout, "",
          "layout of the blocks as `ibid status --worker=...` prints it, for the bytes of a token");
ABSL_FLAG(std::string, plot, "", "SVG file to draw the ratios into");
ABSL_FLAG(uint32_t, split_tokens, 0,
          "cut the trace's blocks into blocks of so many tokens, as a store has them");
ABSL_FLAG(uint32_t, servers_count, 1,
          "servers that share each capacity, with the blocks placed as the client places them");

ABSL_FLAG(std::string, tenant, "", "tenant whose quota is set; empty: clients that name none");
// --default: see CommandLineSpec.
ABSL_FLAG(bool, default_, false, "set the quota of all tenants that have none of their own");
ABSL_FLAG(std::string, publish_bytes_per_second_max, "",
          "bytes that the tenant may publish a second; none: no limit; default: as the others");
ABSL_FLAG(std::string, host_bytes_max, "",
          "bytes of memory that its blocks may take; none, default: as above");
ABSL_FLAG(std::string, disk_bytes_max, "",
          "bytes of the disk tier that its blocks may take; none, default: as above");
ABSL_FLAG(std::string, gpu_bytes_max, "",
          "bytes of the gpu tier that its blocks may take; none, default: as above");
ABSL_FLAG(bool, reload, false, "have the servers read their --tenants_file again");
