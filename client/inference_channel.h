// InferenceChannel: the client's end of InferenceService on one worker, in core types: protobuf
// stops here.
//
// Thread safety: every method, from any thread. Calls block their thread until they are done; no
// call outlives its timeout. Errors: Unavailable and DeadlineExceeded for the network and the
// worker's absence; else what the worker said.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/block_key.h"

namespace ibid {

enum class InferenceStore { kReadWrite, kOff, kReadOnly, kWriteOnly };

struct InferenceRequest {
  std::string text;  // the prompt, unless `tokens` is there
  std::optional<std::vector<uint32_t>> tokens;
  float temperature = 0;  // 0: greedy
  uint32_t top_k = 0;     // 0: off
  float top_p = 0;        // 0 or 1: off
  uint64_t seed = 0;
  uint32_t max_tokens = 64;              // output tokens
  std::vector<uint32_t> stop_token_ids;  // besides the model's end token
  std::vector<std::string> stop_texts;   // output ends before the first of these
  bool ignores_end_token = false;
  InferenceStore store = InferenceStore::kReadWrite;
  bool ignores_worker_cache = false;  // do not reuse pages that the worker itself still has
  std::string salt;
};

// prompt_tokens = worker_tokens + fetched_tokens + computed_tokens; these are 0 for a decode that
// its first token ended.
struct InferenceUsage {
  uint32_t prompt_tokens = 0, worker_tokens = 0, fetched_tokens = 0, computed_tokens = 0;
};

struct InferenceFinish {
  std::string reason;  // "stop", "length" or "cancelled"
  InferenceUsage usage;
  uint32_t output_tokens = 0;
  double ttft_ms = 0, tpot_ms = 0, fetch_ms = 0;
};

// A piece of output as it comes.
struct InferencePiece {
  std::vector<uint32_t> token_ids;
  std::string text;
};

struct InferencePrefill {
  std::vector<uint32_t> prompt_tokens;
  uint32_t first_token = 0;
  std::vector<BlockKey> chain;  // the tail block last
  bool is_published = false;    // all of the chain is in the store
  InferenceUsage usage;
  double ttft_ms = 0;
  bool is_finished = false;  // the first token already ends the output
};

// What a worker says of itself; field by field as in GetWorkerStatsResponse.
struct InferenceStats {
  std::string version, model, layout, engine;
  NamespaceId ns;  // of requests without salt
  uint32_t running_requests = 0, waiting_requests = 0, block_tokens = 0, vocabulary = 0;
  uint64_t pages_total = 0, pages_free = 0, pages_cached = 0, prompt_tokens = 0, worker_tokens = 0,
           fetched_tokens = 0, computed_tokens = 0, output_tokens = 0, published_blocks = 0,
           fetch_failures = 0;
  bool is_store_reachable = false;
};

struct InferenceChannelOptions {
  absl::Duration connect_timeout = absl::Seconds(2);
  // PEM files, as in ClientOptions.
  std::string tls_ca_file, tls_certificate_file, tls_key_file;
};

class InferenceChannel {
 public:
  // Called with each piece on the calling thread; false ends the request.
  using OnPiece = std::function<bool(const InferencePiece&)>;

  // Errors: InvalidArgument (not host:port, a TLS file, by name). Connects at the first call.
  static absl::StatusOr<std::unique_ptr<InferenceChannel>> Create(
      absl::string_view address, const InferenceChannelOptions& options = {});
  virtual ~InferenceChannel() = default;

  // Errors: Cancelled when `on_piece` ended it; Internal when the worker ended the stream without a
  // finish.
  virtual absl::StatusOr<InferenceFinish> Generate(const InferenceRequest& request,
                                                   absl::Duration timeout,
                                                   const OnPiece& on_piece) = 0;
  virtual absl::StatusOr<InferencePrefill> Prefill(const InferenceRequest& request,
                                                   absl::Duration timeout) = 0;
  // Goes on after `prefill` that another worker made of the same `request`; its first token is
  // among the pieces.
  virtual absl::StatusOr<InferenceFinish> Decode(const InferenceRequest& request,
                                                 const InferencePrefill& prefill,
                                                 absl::Duration timeout,
                                                 const OnPiece& on_piece) = 0;
  virtual absl::StatusOr<InferenceStats> GetStats(absl::Duration timeout) = 0;
  virtual absl::StatusOr<std::vector<uint32_t>> Tokenize(absl::string_view text,
                                                         absl::Duration timeout) = 0;
};

}  // namespace ibid
