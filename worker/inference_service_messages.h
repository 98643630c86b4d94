// Between the messages of ibid.v1.InferenceService and the engine's own types: the one place where
// they meet.
#pragma once

#include "absl/status/statusor.h"
#include "ibid/v1/inference.pb.h"
#include "worker/engine/engine.h"
#include "worker/engine/request.h"
#include "worker/tokenizer/tokenizer.h"

namespace ibid {

// Turns prompts that come as text into tokens. Thread safety: thread-safe.
class PromptTokenizer {
 public:
  // `tokenizer` must outlive it; null: there is none.
  PromptTokenizer(const Tokenizer* tokenizer, const PromptLimit& limit);

  // A text too long for any prompt is refused before its tokens are looked for, which takes time
  // and memory of its size. Errors: FailedPrecondition (no tokenizer), ResourceExhausted (names the
  // limit), and those of Encode.
  absl::StatusOr<std::vector<uint32_t>> Encode(const std::string& text) const;

 private:
  const Tokenizer* const tokenizer_;
  const PromptLimit limit_;
  size_t token_bytes_max_ = 0;  // of text that one token can stand for
};

// Errors: InvalidArgument (names the field), those of PromptTokenizer.
absl::StatusOr<GenerateRequest> ToGenerateRequest(const v1::GenerateRequest& message,
                                                  const PromptTokenizer& tokenizer);
absl::StatusOr<GenerateRequest> ToPrefillRequest(const v1::GenerateRequest& message,
                                                 const PromptTokenizer& tokenizer);
// The prompt is the message's prompt_tokens; the one inside of its request is not looked at.
absl::StatusOr<GenerateRequest> ToDecodeRequest(const v1::DecodeRequest& message);

void FillResponse(const StreamItem& item, v1::GenerateResponse* message);
void FillFinish(const Finish& finish, v1::Finish* message);
void FillUsage(const PromptUsage& usage, v1::PromptUsage* message);
void FillStats(const Engine& engine, v1::GetWorkerStatsResponse* message);

}  // namespace ibid
