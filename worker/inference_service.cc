#include "worker/inference_service.h"

#include <grpcpp/grpcpp.h>

#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/executor.h"
#include "core/limit.h"
#include "core/mutex.h"
#include "ibid/v1/inference.grpc.pb.h"
#include "transport/status_conversion.h"
#include "worker/inference_service_messages.h"

namespace ibid {
namespace {

absl::Status CallQueueFull(size_t rpc_queue_max) {
  return LimitReached("the worker's call queue is full", "rpc_queue_max", rpc_queue_max);
}

using ParseRequest = std::function<absl::StatusOr<GenerateRequest>()>;

// One request between gRPC and the engine: submits it, and gives what its stream brings to
// `OnItem`, one item at a time, on the service's threads. Kept alive by what may still call it: the
// stream's listener, queued work, and the reactor.
class RunningCall : public std::enable_shared_from_this<RunningCall> {
 public:
  RunningCall(Engine* engine, Executor* executor)
      : engine_(engine), executor_(executor), arrived_(clock_.Now()) {}
  virtual ~RunningCall() = default;

  // Parses on `parser`. Does not block. Ends with OnItem or OnRefused, sooner or later.
  void Start(Executor& parser, ParseRequest parse) {
    const bool is_queued = parser.TrySubmit(
        [self = shared_from_this(), parse = std::move(parse)] { self->Submit(parse); });
    if (!is_queued) OnRefused(CallQueueFull(parser.capacity()));
  }

  void Cancel() {
    std::shared_ptr<TokenStream> stream;
    {
      MutexLock lock(mutex_);
      is_cancelled_ = true;
      stream = stream_;
    }
    if (stream != nullptr) engine_->Cancel(stream->id());
  }

 protected:
  // The item that has the finish is the last call. After each call ContinueReading, when the item
  // is dealt with.
  virtual void OnItem(StreamItem item) = 0;
  virtual void OnRefused(const absl::Status& status) = 0;
  // A request that was accepted: before its first item.
  virtual void OnAccepted(const GenerateRequest& request) {}

  // REQUIRES: this call is reading (an item was given and dealt with).
  void ContinueReading() {
    while (true) {
      {
        MutexLock lock(mutex_);
        has_news_ = false;
      }
      StreamItem item = stream()->TakeAll();
      if (!item.is_empty()) return OnItem(std::move(item));
      MutexLock lock(mutex_);
      if (!has_news_) {
        is_reading_ = false;
        return;
      }
    }
  }

 private:
  void Submit(const ParseRequest& parse) {
    absl::StatusOr<GenerateRequest> request = parse();
    if (!request.ok()) return OnRefused(request.status());
    request->waited_before = clock_.Now() - arrived_;
    OnAccepted(*request);
    absl::StatusOr<std::shared_ptr<TokenStream>> stream = engine_->Submit(*std::move(request));
    if (!stream.ok()) return OnRefused(stream.status());
    bool is_cancelled;
    {
      MutexLock lock(mutex_);
      stream_ = *stream;
      is_cancelled = is_cancelled_;
    }
    if (is_cancelled) engine_->Cancel((*stream)->id());
    (*stream)->SetListener([self = shared_from_this()] { self->OnNews(); });
  }

  void OnNews() {
    {
      MutexLock lock(mutex_);
      has_news_ = true;
      if (is_reading_) return;
      is_reading_ = true;
    }
    // With a full queue the engine's thread does the writing: slower, but nothing is lost.
    if (!executor_->TrySubmit([self = shared_from_this()] { self->ContinueReading(); }))
      ContinueReading();
  }

  std::shared_ptr<TokenStream> stream() {
    MutexLock lock(mutex_);
    return stream_;
  }

  const SteadyClock clock_;
  Engine* const engine_;
  Executor* const executor_;
  const absl::Time arrived_;
  Mutex mutex_;
  std::shared_ptr<TokenStream> stream_ IBID_GUARDED_BY(mutex_);
  bool is_cancelled_ IBID_GUARDED_BY(mutex_) = false;
  bool is_reading_ IBID_GUARDED_BY(mutex_) = false;
  bool has_news_ IBID_GUARDED_BY(mutex_) = false;
};

// Generate and Decode.
class StreamingCall final : public RunningCall,
                            public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  using RunningCall::RunningCall;
  // gRPC holds the reactor until OnDone.
  void HoldUntilDone() { self_ = shared_from_this(); }

  void OnItem(StreamItem item) override {
    const bool is_last = item.finish.has_value();
    if (is_last && !item.finish->status.ok())
      return grpc::ServerWriteReactor<v1::GenerateResponse>::Finish(
          ToGrpcStatus(item.finish->status));
    response_.Clear();
    FillResponse(item, &response_);
    if (is_last) {
      StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
    } else {
      StartWrite(&response_);
    }
  }
  void OnRefused(const absl::Status& status) override {
    grpc::ServerWriteReactor<v1::GenerateResponse>::Finish(ToGrpcStatus(status));
  }
  // A failed write means that the client is gone: OnCancel says so, too, and the finish ends the
  // call.
  void OnWriteDone(bool ok) override { ContinueReading(); }
  void OnCancel() override { Cancel(); }
  void OnDone() override { self_.reset(); }

 private:
  std::shared_ptr<RunningCall> self_;
  v1::GenerateResponse response_;
};

class PrefillCall final : public RunningCall, public grpc::ServerUnaryReactor {
 public:
  PrefillCall(Engine* engine, Executor* executor, v1::PrefillResponse* response)
      : RunningCall(engine, executor), response_(response) {}
  void HoldUntilDone() { self_ = shared_from_this(); }

  void OnAccepted(const GenerateRequest& request) override {
    response_->mutable_prompt_tokens()->Add(request.prompt.begin(), request.prompt.end());
  }
  void OnItem(StreamItem item) override {
    if (!item.tokens.empty()) response_->set_first_token(item.tokens.front());
    if (!item.finish.has_value()) return ContinueReading();
    const struct Finish& finish = *item.finish;
    if (finish.reason == FinishReason::kCancelled)
      return grpc::ServerUnaryReactor::Finish(grpc::Status::CANCELLED);
    for (const BlockKey& key : finish.chain) {
      const absl::string_view bytes = DigestBytes(key.digest);
      response_->mutable_chain_keys()->append(bytes.data(), bytes.size());
    }
    response_->set_is_published(finish.is_published);
    response_->set_is_finished(finish.is_output_complete);
    response_->set_ttft_ms(absl::ToDoubleMilliseconds(finish.ttft));
    FillUsage(finish.usage, response_->mutable_usage());
    grpc::ServerUnaryReactor::Finish(ToGrpcStatus(finish.status));
  }
  void OnRefused(const absl::Status& status) override {
    grpc::ServerUnaryReactor::Finish(ToGrpcStatus(status));
  }
  void OnCancel() override { Cancel(); }
  void OnDone() override { self_.reset(); }

 private:
  std::shared_ptr<RunningCall> self_;
  v1::PrefillResponse* const response_;
};

}  // namespace

class InferenceService::Impl final : public v1::InferenceService::CallbackService {
 public:
  Impl(Engine* engine, const Tokenizer* tokenizer, InferenceServiceOptions options)
      : engine_(engine),
        tokenizer_(tokenizer, engine->prompt_limit()),
        options_(std::move(options)),
        executor_("ibid-rpc", options_.rpc_threads_count, options_.rpc_queue_max),
        tokenizing_("ibid-tokenize", options_.tokenizer_threads_count, options_.rpc_queue_max) {}

  // gRPC keeps `request` and `response` until the reactor is done.
  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext*, const v1::GenerateRequest* request) override {
    return Stream(ParserOf(*request),
                  [this, request] { return ToGenerateRequest(*request, tokenizer_); });
  }
  grpc::ServerWriteReactor<v1::GenerateResponse>* Decode(
      grpc::CallbackServerContext*, const v1::DecodeRequest* request) override {
    return Stream(executor_, [request] { return ToDecodeRequest(*request); });
  }
  grpc::ServerUnaryReactor* Prefill(grpc::CallbackServerContext*,
                                    const v1::GenerateRequest* request,
                                    v1::PrefillResponse* response) override {
    auto call = std::make_shared<PrefillCall>(engine_, &executor_, response);
    call->HoldUntilDone();
    call->Start(ParserOf(*request),
                [this, request] { return ToPrefillRequest(*request, tokenizer_); });
    return call.get();
  }
  grpc::ServerUnaryReactor* GetStats(grpc::CallbackServerContext* context,
                                     const v1::GetWorkerStatsRequest*,
                                     v1::GetWorkerStatsResponse* response) override {
    FillStats(*engine_, response);
    response->set_version(options_.version);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const bool is_queued = tokenizing_.TrySubmit([this, request, response, reactor] {
      const absl::StatusOr<std::vector<uint32_t>> tokens = tokenizer_.Encode(request->text());
      if (tokens.ok()) response->mutable_token_ids()->Add(tokens->begin(), tokens->end());
      reactor->Finish(ToGrpcStatus(tokens.status()));
    });
    if (!is_queued) {
      reactor->Finish(ToGrpcStatus(CallQueueFull(tokenizing_.capacity())));
    }
    return reactor;
  }

 private:
  Executor& ParserOf(const v1::GenerateRequest& request) {
    return request.has_tokens() ? executor_ : tokenizing_;
  }

  grpc::ServerWriteReactor<v1::GenerateResponse>* Stream(Executor& parser, ParseRequest parse) {
    auto call = std::make_shared<StreamingCall>(engine_, &executor_);
    call->HoldUntilDone();
    call->Start(parser, std::move(parse));
    return call.get();
  }

  Engine* const engine_;
  const PromptTokenizer tokenizer_;
  const InferenceServiceOptions options_;
  Executor executor_;
  Executor tokenizing_;  // ends first: it starts what runs on the other
};

InferenceService::InferenceService(Engine* engine, const Tokenizer* tokenizer,
                                   InferenceServiceOptions options)
    : impl_(std::make_unique<Impl>(engine, tokenizer, std::move(options))) {}

InferenceService::~InferenceService() = default;

grpc::Service& InferenceService::grpc_service() { return *impl_; }

}  // namespace ibid
