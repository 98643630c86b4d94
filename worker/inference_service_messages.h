// Between the messages of ibid.v1.InferenceService and the engine's own types: the one place where
// they meet.
#pragma once

#include "absl/status/statusor.h"
#include "ibid/v1/inference.pb.h"
#include "worker/engine/engine.h"
#include "worker/engine/request.h"
#include "worker/tokenizer/tokenizer.h"

namespace ibid {

// The tokens of a prompt that came as text. Errors: FailedPrecondition (`tokenizer` is null), and
// those of Encode.
absl::StatusOr<std::vector<uint32_t>> TokenizePrompt(const std::string& text,
                                                     const Tokenizer* tokenizer);

// Errors: InvalidArgument (names the field), those of TokenizePrompt.
absl::StatusOr<GenerateRequest> ToGenerateRequest(const v1::GenerateRequest& message,
                                                  const Tokenizer* tokenizer);
absl::StatusOr<GenerateRequest> ToPrefillRequest(const v1::GenerateRequest& message,
                                                 const Tokenizer* tokenizer);
// The prompt is the message's prompt_tokens; the one inside of its request is not looked at.
absl::StatusOr<GenerateRequest> ToDecodeRequest(const v1::DecodeRequest& message);

void FillResponse(const StreamItem& item, v1::GenerateResponse* message);
void FillFinish(const Finish& finish, v1::Finish* message);
void FillUsage(const PromptUsage& usage, v1::PromptUsage* message);
void FillStats(const Engine& engine, v1::GetWorkerStatsResponse* message);

}  // namespace ibid
