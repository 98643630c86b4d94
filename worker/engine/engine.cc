#include "worker/engine/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/limit.h"
#include "worker/engine/engine_loop.h"
#include "worker/engine/inbox.h"
#include "worker/engine/sampler.h"
#include "worker/engine/stop_text.h"

namespace ibid {
namespace {

absl::Status CheckLimit(uint64_t value, absl::string_view what, uint64_t limit,
                        absl::string_view limit_name) {
  if (value <= limit) return absl::OkStatus();
  return LimitReached(absl::StrCat(value, " ", what), limit_name, limit);
}

NamespaceSpec MakeSpec(const Model& model) {
  NamespaceSpec spec;
  spec.model = model.digest();
  spec.engine = model.numerics_id();
  spec.layout = model.layout().ToString();
  return spec;
}

}  // namespace

absl::Status EngineOptions::Validate() const {
  if (pages_count == 0) return absl::InvalidArgumentError("pages_count is 0");
  if (max_running_requests == 0) return absl::InvalidArgumentError("max_running_requests is 0");
  if (max_waiting_requests == 0) return absl::InvalidArgumentError("max_waiting_requests is 0");
  if (max_batch_tokens <= max_running_requests) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "max_batch_tokens=%d must exceed max_running_requests=%d, or prompts would wait for ever",
        max_batch_tokens, max_running_requests));
  }
  return CheckLimit(max_batch_tokens, "rows of a step", kStepTokensMax, "kStepTokensMax");
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Start(EngineOptions options,
                                                      std::unique_ptr<Model> model,
                                                      const Tokenizer* tokenizer, Client* store) {
  IBID_CHECK(model != nullptr);
  IBID_RETURN_IF_ERROR(options.Validate());
  IBID_ASSIGN_OR_RETURN(std::unique_ptr<PagePool> pool,
                        PagePool::Create(model->layout(), options.pages_count));
  // Pages that wait for a slow store are pinned: half of them stay free to compute with.
  options.publish_blocks_max = static_cast<uint32_t>(
      std::min<size_t>(options.publish_blocks_max, std::max<size_t>(1, options.pages_count / 2)));
  std::unique_ptr<Engine> engine(new Engine(options, tokenizer, store, *model));
  engine->loop_ =
      std::make_unique<EngineLoop>(engine->options_, std::move(model), std::move(pool), tokenizer,
                                   store, engine->spec_, engine->inbox_.get());
  engine->thread_ = std::thread([loop = engine->loop_.get()] { loop->Run(); });
  return engine;
}

Engine::Engine(EngineOptions options, const Tokenizer* tokenizer, Client* store, const Model& model)
    : options_(std::move(options)),
      config_(model.config()),
      layout_(model.layout()),
      spec_(MakeSpec(model)),
      has_tokenizer_(tokenizer != nullptr),
      store_(store),
      inbox_(std::make_unique<Inbox>(options_.max_waiting_requests)) {}

Engine::~Engine() {
  inbox_->Stop();
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<std::shared_ptr<TokenStream>> Engine::Submit(GenerateRequest request) {
  IBID_RETURN_IF_ERROR(ValidateRequest(request));
  const RequestId id{next_id_++};
  auto stream = std::make_shared<TokenStream>(id, request.stop.max_tokens);
  IBID_RETURN_IF_ERROR(inbox_->Submit(std::make_unique<Sequence>(id, std::move(request), stream)));
  return stream;
}

void Engine::Cancel(RequestId id) { inbox_->Cancel(id); }

bool Engine::Drain(absl::Duration timeout) {
  return loop_->WaitUntilFinished(inbox_->CloseToRequests(), timeout);
}

EngineStats Engine::stats() const {
  EngineStats stats = loop_->stats();
  stats.is_store_reachable = store_ != nullptr && store_->is_any_reachable();
  return stats;
}

PromptLimit Engine::prompt_limit() const {
  // One token of output at least has to fit in, too.
  const PromptLimit limits[] = {
      {options_.max_prompt_tokens, "max_prompt_tokens", options_.max_prompt_tokens},
      {config_.context_tokens - 1, "the model's context_tokens", config_.context_tokens},
      {uint64_t{options_.pages_count} * layout_.block_tokens - 1, "pages_count",
       options_.pages_count}};
  return *std::min_element(
      std::begin(limits), std::end(limits),
      [](const PromptLimit& a, const PromptLimit& b) { return a.tokens < b.tokens; });
}

NamespaceSpec Engine::SpecFor(absl::string_view salt) const {
  NamespaceSpec spec = spec_;
  spec.salt = std::string(salt);
  return spec;
}

absl::Status Engine::ValidateRequest(const GenerateRequest& request) const {
  IBID_RETURN_IF_ERROR(ValidateLengths(request));
  IBID_RETURN_IF_ERROR(ValidateSampling(request.sampling));
  IBID_RETURN_IF_ERROR(ValidateStopTexts(request.stop.texts));
  if (!request.stop.texts.empty() && !has_tokenizer_) {
    return absl::InvalidArgumentError("stop.texts: this worker has no tokenizer");
  }
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] >= config_.vocab) {
      return absl::InvalidArgumentError(
          absl::StrFormat("prompt token %d at %d is outside the vocabulary of %d",
                          request.prompt[i], i, config_.vocab));
    }
  }
  if (request.kind == RequestKind::kDecode && request.first_token >= config_.vocab) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "first_token %d is outside the vocabulary of %d", request.first_token, config_.vocab));
  }
  return absl::OkStatus();
}

absl::Status Engine::ValidateLengths(const GenerateRequest& request) const {
  const uint64_t prompt = request.prompt.size(), output = request.stop.max_tokens;
  if (prompt == 0) return absl::InvalidArgumentError("the prompt is empty");
  if (output == 0) return absl::InvalidArgumentError("stop.max_tokens is 0; it must be at least 1");
  IBID_RETURN_IF_ERROR(
      CheckLimit(prompt, "prompt tokens", options_.max_prompt_tokens, "max_prompt_tokens"));
  IBID_RETURN_IF_ERROR(CheckLimit(output, "output tokens (stop.max_tokens)",
                                  options_.max_output_tokens, "max_output_tokens"));
  IBID_RETURN_IF_ERROR(CheckLimit(prompt + 1, "tokens of prompt and output", config_.context_tokens,
                                  "the model's context_tokens"));
  IBID_RETURN_IF_ERROR(CheckLimit(request.stop.token_ids.size(), "stop token ids",
                                  options_.stop_token_ids_max, "stop_token_ids_max"));
  IBID_RETURN_IF_ERROR(
      CheckLimit(request.salt.size(), "bytes of salt", options_.salt_bytes_max, "salt_bytes_max"));
  const uint64_t tokens = std::min<uint64_t>(prompt + output, config_.context_tokens);
  const uint64_t pages = (tokens + layout_.block_tokens - 1) / layout_.block_tokens;
  return CheckLimit(pages, "pages for prompt and output", options_.pages_count, "pages_count");
}

}  // namespace ibid
