// Engine runs one model on one device for any number of requests at a time, and uses the store so
// as not to compute what is stored. The store can fail; a request cannot fail because of it:
// whatever does not arrive in time is computed. The tokens of a request depend on the request
// alone: not on the requests beside it, not on the store.
//
// Thread safety: every method, from any thread. One thread of the engine owns scheduler, pages and
// model; callers submit and read streams. Ownership: the client and the tokenizer must outlive the
// engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "core/kv_layout.h"
#include "core/metrics.h"
#include "core/mutex.h"
#include "worker/engine/connector.h"
#include "worker/engine/request.h"
#include "worker/engine/token_stream.h"
#include "worker/model/model.h"
#include "worker/tokenizer/tokenizer.h"

namespace ibid {

struct EngineOptions {
  size_t pages_count = 0;               // REQUIRED: blocks of KV that the worker holds
  uint32_t max_batch_tokens = 512;      // rows of one step; more than max_running_requests
  uint32_t max_running_requests = 64;   // with pages, or on their way to them
  uint32_t max_waiting_requests = 256;  // accepted, not yet running
  uint32_t max_prompt_tokens = 1u << 20;
  uint32_t max_output_tokens = 1u << 16;
  uint32_t stop_token_ids_max = 256;
  uint32_t salt_bytes_max = 256;
  bool publishes = true;  // false: no request of this worker publishes
  uint32_t publish_blocks_max =
      4'096;  // waiting or being published; further ones are not, and are counted
  ConnectorOptions store;
  MetricsRegistry* metrics = nullptr;  // null: none are kept

  // Errors: InvalidArgument that names the option.
  absl::Status Validate() const;
};

struct EngineStats {
  uint32_t running_requests = 0, waiting_requests = 0;
  uint64_t pages_total = 0, pages_free = 0, pages_cached = 0;
  uint64_t prompt_tokens = 0, worker_tokens = 0, fetched_tokens = 0, computed_tokens = 0,
           output_tokens = 0;
  uint64_t steps = 0, preemptions = 0;
  uint64_t published_blocks = 0;  // that the store took from this worker
  // Sealed, but given up: a limit or the store refused them until their request ended.
  uint64_t unpublished_blocks = 0;
  uint64_t publishing_blocks = 0;   // now: pinned until the store has answered
  uint64_t fetch_failures = 0;      // fetches that brought less than was matched, or came too late
  uint64_t unequal_duplicates = 0;  // blocks computed twice with different bytes: never, on the CPU
  uint64_t storeless_requests = 0;  // that did without the store for salts_max
  uint64_t claimed_blocks = 0;      // reserved at the store before they were computed here
  uint64_t awaited_requests = 0;    // that waited for blocks which other workers computed
  uint64_t given_up_awaits = 0;  // of these waits: in vain, so that the blocks were computed here
  bool is_store_reachable = false;
};

// The longest prompt, and what it is that forbids more.
struct PromptLimit {
  uint64_t tokens = 0;
  absl::string_view name;
  uint64_t value = 0;  // of the limit of that name
};

class EngineLoop;
class Inbox;

class Engine {
 public:
  // `tokenizer` null: output has no text, and stop texts are refused. `store` null: none.
  // Errors: InvalidArgument (an option, by name), ResourceExhausted (memory for the pages).
  static absl::StatusOr<std::unique_ptr<Engine>> Start(EngineOptions options,
                                                       std::unique_ptr<Model> model,
                                                       const Tokenizer* tokenizer, Client* store);
  // Ends what still runs, as kFailed with Unavailable. Waits at most for the store calls that are
  // running.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Errors: InvalidArgument (names the field), ResourceExhausted (names the limit and its value),
  // Unavailable (draining).
  absl::StatusOr<std::shared_ptr<TokenStream>> Submit(GenerateRequest request);
  // The request ends as kCancelled, soon, and all that it holds is freed. Nothing happens if it has
  // ended.
  void Cancel(RequestId id);

  // Refuses new requests and waits for those there are. False when some were left after `timeout`.
  bool Drain(absl::Duration timeout);

  // What Submit refuses whatever the rest of the request is.
  PromptLimit prompt_limit() const;

  EngineStats stats() const;
  const ModelConfig& model_config() const { return config_; }
  const KvLayout& layout() const { return layout_; }
  // The namespace of requests with this salt.
  NamespaceSpec SpecFor(absl::string_view salt) const;

 private:
  Engine(EngineOptions options, const Tokenizer* tokenizer, Client* store, const Model& model);
  absl::Status ValidateRequest(const GenerateRequest& request) const;
  absl::Status ValidateLengths(const GenerateRequest& request) const;

  const EngineOptions options_;
  const ModelConfig config_;
  const KvLayout layout_;
  const NamespaceSpec spec_;  // without salt
  const bool has_tokenizer_;
  Client* const store_;
  std::atomic<uint64_t> next_id_ = 1;
  std::unique_ptr<Inbox> inbox_;
  std::unique_ptr<EngineLoop> loop_;
  std::thread thread_;
};

}  // namespace ibid
