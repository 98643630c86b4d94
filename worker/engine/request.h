// What a worker is asked, and what it answers: plain values, no behaviour.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/block_key.h"

namespace ibid {

// Names one request within an engine; never used again.
struct RequestId {
  uint64_t value = 0;
  auto operator<=>(const RequestId&) const = default;
};

enum class StoreMode { kReadWrite, kOff, kReadOnly, kWriteOnly };

// kPrefill: computes the prompt, samples one token, publishes the whole chain and waits for that,
// within a limit. kDecode: goes on after a prefill that ran elsewhere.
enum class RequestKind { kGenerate, kPrefill, kDecode };

struct SamplingParams {
  float temperature = 0;  // 0: the most likely token
  uint32_t top_k = 0;     // 0: off
  float top_p = 1;        // 0 or 1: off
  uint64_t seed = 0;
};

struct StopConditions {
  uint32_t max_tokens = 0;          // output tokens, at least 1
  std::vector<uint32_t> token_ids;  // besides the model's end tokens
  std::vector<std::string> texts;   // UTF-8; the output's text ends before the first of these
  bool ignores_end_token = false;
};

struct GenerateRequest {
  RequestKind kind = RequestKind::kGenerate;
  std::vector<uint32_t> prompt;
  uint32_t first_token = 0;  // kDecode: what the prefill sampled
  SamplingParams sampling;
  StopConditions stop;
  StoreMode store = StoreMode::kReadWrite;
  bool ignores_worker_cache = false;  // reuse no page of this worker
  std::string salt;
  absl::Duration waited_before =
      absl::ZeroDuration();  // from arrival at the worker to Submit; counts into ttft
};

// How the prompt's tokens came to have KV: prompt_tokens = worker_tokens + fetched_tokens +
// computed_tokens.
// prompt_tokens is the sum of the others, but for a decode that its first token ends: that needs
// no KV, and they are 0.
struct PromptUsage {
  uint32_t prompt_tokens = 0;
  uint32_t worker_tokens = 0;   // from pages of this worker
  uint32_t fetched_tokens = 0;  // from the store
  uint32_t computed_tokens = 0;
};

enum class FinishReason { kStop, kLength, kCancelled, kFailed };

struct Finish {
  FinishReason reason = FinishReason::kStop;
  absl::Status status;  // not OK for kFailed
  PromptUsage usage;
  uint32_t output_tokens = 0;
  absl::Duration ttft = absl::ZeroDuration();        // from arrival to the first output token
  absl::Duration tpot = absl::ZeroDuration();        // mean over the tokens after the first
  absl::Duration store_wait = absl::ZeroDuration();  // that the request spent waiting for the store
  // kPrefill only:
  std::vector<BlockKey> chain;      // keys of all blocks, the tail block last
  bool is_published = false;        // all of the chain is in the store
  bool is_output_complete = false;  // the first token already ended the output
};

// Output that became certain together. The finish comes once, last.
struct StreamItem {
  std::vector<uint32_t> tokens;
  std::string text;  // complete UTF-8 sequences; may lag behind the tokens
  std::optional<Finish> finish;

  bool is_empty() const { return tokens.empty() && text.empty() && !finish.has_value(); }
};

}  // namespace ibid
