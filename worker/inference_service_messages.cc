#include "worker/inference_service_messages.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/limit.h"

namespace ibid {
namespace {

// Bytes of text for one of what is left after normalising: NFC makes one character of several.
constexpr size_t kNormalizedShare = 3;

absl::StatusOr<StoreMode> ToStoreMode(v1::StoreMode mode) {
  switch (mode) {
    case v1::STORE_MODE_READ_WRITE:
      return StoreMode::kReadWrite;
    case v1::STORE_MODE_OFF:
      return StoreMode::kOff;
    case v1::STORE_MODE_READ_ONLY:
      return StoreMode::kReadOnly;
    case v1::STORE_MODE_WRITE_ONLY:
      return StoreMode::kWriteOnly;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("store: unknown mode ", static_cast<int>(mode)));
  }
}

v1::Finish::Reason ToReason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return v1::Finish::REASON_STOP;
    case FinishReason::kLength:
      return v1::Finish::REASON_LENGTH;
    case FinishReason::kCancelled:
      return v1::Finish::REASON_CANCELLED;
    case FinishReason::kFailed:
      break;  // becomes the call's status
  }
  return v1::Finish::REASON_UNSPECIFIED;
}

// All but the prompt.
absl::StatusOr<GenerateRequest> ToRequestWithoutPrompt(const v1::GenerateRequest& message) {
  GenerateRequest request;
  request.sampling.temperature = message.sampling().temperature();
  request.sampling.top_k = message.sampling().top_k();
  request.sampling.top_p = message.sampling().top_p();
  request.sampling.seed = message.sampling().seed();
  request.stop.max_tokens = message.stop().max_tokens();
  request.stop.token_ids.assign(message.stop().token_ids().begin(),
                                message.stop().token_ids().end());
  request.stop.texts.assign(message.stop().texts().begin(), message.stop().texts().end());
  request.stop.ignores_end_token = message.stop().ignore_end_token();
  IBID_ASSIGN_OR_RETURN(request.store, ToStoreMode(message.store()));
  request.ignores_worker_cache = message.ignore_worker_cache();
  request.salt = message.salt();
  return request;
}

double Milliseconds(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

}  // namespace

PromptTokenizer::PromptTokenizer(const Tokenizer* tokenizer, const PromptLimit& limit)
    : tokenizer_(tokenizer), limit_(limit) {
  if (tokenizer_ == nullptr) return;
  token_bytes_max_ = 1;
  for (uint32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    token_bytes_max_ = std::max(token_bytes_max_, tokenizer_->TokenBytes(id).size());
  }
  token_bytes_max_ *= kNormalizedShare;
}

absl::StatusOr<std::vector<uint32_t>> PromptTokenizer::Encode(const std::string& text) const {
  if (tokenizer_ == nullptr) {
    return absl::FailedPreconditionError("this worker's model has no tokenizer: send token ids");
  }
  if (text.size() / token_bytes_max_ > limit_.tokens) {
    return LimitReached(
        absl::StrCat("a prompt of ", text.size(), " bytes, at most ", token_bytes_max_, " a token"),
        limit_.name, limit_.value);
  }
  EncodeOptions options;
  options.adds_special = true;
  return tokenizer_->Encode(text, options);
}

absl::StatusOr<GenerateRequest> ToGenerateRequest(const v1::GenerateRequest& message,
                                                  const PromptTokenizer& tokenizer) {
  IBID_ASSIGN_OR_RETURN(GenerateRequest request, ToRequestWithoutPrompt(message));
  switch (message.prompt_case()) {
    case v1::GenerateRequest::kText: {
      IBID_ASSIGN_OR_RETURN(request.prompt, tokenizer.Encode(message.text()));
      break;
    }
    case v1::GenerateRequest::kTokens:
      request.prompt.assign(message.tokens().ids().begin(), message.tokens().ids().end());
      break;
    default:
      return absl::InvalidArgumentError("prompt: neither text nor tokens");
  }
  return request;
}

absl::StatusOr<GenerateRequest> ToPrefillRequest(const v1::GenerateRequest& message,
                                                 const PromptTokenizer& tokenizer) {
  IBID_ASSIGN_OR_RETURN(GenerateRequest request, ToGenerateRequest(message, tokenizer));
  request.kind = RequestKind::kPrefill;
  return request;
}

absl::StatusOr<GenerateRequest> ToDecodeRequest(const v1::DecodeRequest& message) {
  IBID_ASSIGN_OR_RETURN(GenerateRequest request, ToRequestWithoutPrompt(message.request()));
  request.kind = RequestKind::kDecode;
  request.prompt.assign(message.prompt_tokens().begin(), message.prompt_tokens().end());
  request.first_token = message.first_token();
  return request;
}

void FillUsage(const PromptUsage& usage, v1::PromptUsage* message) {
  message->set_prompt_tokens(usage.prompt_tokens);
  message->set_worker_tokens(usage.worker_tokens);
  message->set_fetched_tokens(usage.fetched_tokens);
  message->set_computed_tokens(usage.computed_tokens);
}

void FillFinish(const Finish& finish, v1::Finish* message) {
  message->set_reason(ToReason(finish.reason));
  FillUsage(finish.usage, message->mutable_usage());
  message->set_output_tokens(finish.output_tokens);
  message->set_ttft_ms(Milliseconds(finish.ttft));
  message->set_tpot_ms(Milliseconds(finish.tpot));
  message->set_fetch_ms(Milliseconds(finish.store_wait));
}

void FillResponse(const StreamItem& item, v1::GenerateResponse* message) {
  message->mutable_token_ids()->Add(item.tokens.begin(), item.tokens.end());
  message->set_text(item.text);
  if (item.finish.has_value()) FillFinish(*item.finish, message->mutable_finish());
}

void FillStats(const Engine& engine, v1::GetWorkerStatsResponse* message) {
  const NamespaceSpec spec = engine.SpecFor("");
  const EngineStats stats = engine.stats();
  message->set_model(spec.model);
  message->set_namespace_id(DigestToHex(MakeNamespaceId(spec).digest));
  message->set_layout(spec.layout);
  message->set_engine(spec.engine);
  message->set_running_requests(stats.running_requests);
  message->set_waiting_requests(stats.waiting_requests);
  message->set_pages_total(stats.pages_total);
  message->set_pages_free(stats.pages_free);
  message->set_pages_cached(stats.pages_cached);
  message->set_prompt_tokens(stats.prompt_tokens);
  message->set_worker_tokens(stats.worker_tokens);
  message->set_fetched_tokens(stats.fetched_tokens);
  message->set_computed_tokens(stats.computed_tokens);
  message->set_output_tokens(stats.output_tokens);
  message->set_published_blocks(stats.published_blocks);
  message->set_fetch_failures(stats.fetch_failures);
  message->set_is_store_reachable(stats.is_store_reachable);
  message->set_block_tokens(engine.layout().block_tokens);
  message->set_vocabulary(static_cast<uint32_t>(engine.model_config().vocab));
}

}  // namespace ibid
