#include "client/inference_channel.h"

#include <grpcpp/client_context.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "ibid/v1/inference.grpc.pb.h"
#include "transport/call_deadline.h"
#include "transport/channel.h"
#include "transport/key_bytes.h"
#include "transport/status_conversion.h"

namespace ibid {
namespace {

v1::StoreMode ToProto(InferenceStore store) {
  switch (store) {
    case InferenceStore::kReadWrite:
      return v1::STORE_MODE_READ_WRITE;
    case InferenceStore::kOff:
      return v1::STORE_MODE_OFF;
    case InferenceStore::kReadOnly:
      return v1::STORE_MODE_READ_ONLY;
    case InferenceStore::kWriteOnly:
      return v1::STORE_MODE_WRITE_ONLY;
  }
  return v1::STORE_MODE_READ_WRITE;
}

void ToProto(const InferenceRequest& from, v1::GenerateRequest* to) {
  if (from.tokens.has_value()) {
    to->mutable_tokens()->mutable_ids()->Add(from.tokens->begin(), from.tokens->end());
  } else {
    to->set_text(from.text);
  }
  to->mutable_sampling()->set_temperature(from.temperature);
  to->mutable_sampling()->set_top_k(from.top_k);
  to->mutable_sampling()->set_top_p(from.top_p);
  to->mutable_sampling()->set_seed(from.seed);
  to->mutable_stop()->set_max_tokens(from.max_tokens);
  to->mutable_stop()->mutable_token_ids()->Add(from.stop_token_ids.begin(),
                                               from.stop_token_ids.end());
  for (const std::string& text : from.stop_texts) to->mutable_stop()->add_texts(text);
  to->mutable_stop()->set_ignore_end_token(from.ignores_end_token);
  to->set_store(ToProto(from.store));
  to->set_ignore_worker_cache(from.ignores_worker_cache);
  to->set_salt(from.salt);
}

InferenceUsage FromProto(const v1::PromptUsage& from) {
  return {from.prompt_tokens(), from.worker_tokens(), from.fetched_tokens(),
          from.computed_tokens()};
}

InferenceFinish FromProto(const v1::Finish& from) {
  InferenceFinish finish;
  switch (from.reason()) {
    case v1::Finish::REASON_STOP:
      finish.reason = "stop";
      break;
    case v1::Finish::REASON_LENGTH:
      finish.reason = "length";
      break;
    case v1::Finish::REASON_CANCELLED:
      finish.reason = "cancelled";
      break;
    default:
      finish.reason = "unspecified";
  }
  finish.usage = FromProto(from.usage());
  finish.output_tokens = from.output_tokens();
  finish.ttft_ms = from.ttft_ms();
  finish.tpot_ms = from.tpot_ms();
  finish.fetch_ms = from.fetch_ms();
  return finish;
}

absl::StatusOr<InferenceStats> FromProto(const v1::GetWorkerStatsResponse& from) {
  InferenceStats stats;
  stats.version = from.version();
  stats.model = from.model();
  stats.layout = from.layout();
  stats.engine = from.engine();
  IBID_ASSIGN_OR_RETURN(stats.ns.digest, DigestFromHex(from.namespace_id()));
  stats.running_requests = from.running_requests();
  stats.waiting_requests = from.waiting_requests();
  stats.block_tokens = from.block_tokens();
  stats.vocabulary = from.vocabulary();
  stats.pages_total = from.pages_total();
  stats.pages_free = from.pages_free();
  stats.pages_cached = from.pages_cached();
  stats.prompt_tokens = from.prompt_tokens();
  stats.worker_tokens = from.worker_tokens();
  stats.fetched_tokens = from.fetched_tokens();
  stats.computed_tokens = from.computed_tokens();
  stats.output_tokens = from.output_tokens();
  stats.published_blocks = from.published_blocks();
  stats.fetch_failures = from.fetch_failures();
  stats.is_store_reachable = from.is_store_reachable();
  return stats;
}

class GrpcInferenceChannel final : public InferenceChannel {
 public:
  explicit GrpcInferenceChannel(std::shared_ptr<grpc::Channel> channel)
      : stub_(v1::InferenceService::NewStub(std::move(channel))) {}

  absl::StatusOr<InferenceFinish> Generate(const InferenceRequest& request, absl::Duration timeout,
                                           const OnPiece& on_piece) override {
    v1::GenerateRequest message;
    ToProto(request, &message);
    grpc::ClientContext context;
    SetTimeout(timeout, &context);
    return Read(stub_->Generate(&context, message), &context, on_piece);
  }

  absl::StatusOr<InferencePrefill> Prefill(const InferenceRequest& request,
                                           absl::Duration timeout) override {
    v1::GenerateRequest message;
    ToProto(request, &message);
    grpc::ClientContext context;
    SetTimeout(timeout, &context);
    v1::PrefillResponse response;
    IBID_RETURN_IF_ERROR(FromGrpcStatus(stub_->Prefill(&context, message, &response)));
    InferencePrefill prefill;
    prefill.prompt_tokens.assign(response.prompt_tokens().begin(), response.prompt_tokens().end());
    prefill.first_token = response.first_token();
    IBID_ASSIGN_OR_RETURN(prefill.chain, DecodeKeys(response.chain_keys()));
    prefill.is_published = response.is_published();
    prefill.usage = FromProto(response.usage());
    prefill.ttft_ms = response.ttft_ms();
    prefill.is_finished = response.is_finished();
    return prefill;
  }

  absl::StatusOr<InferenceFinish> Decode(const InferenceRequest& request,
                                         const InferencePrefill& prefill, absl::Duration timeout,
                                         const OnPiece& on_piece) override {
    v1::DecodeRequest message;
    ToProto(request, message.mutable_request());
    message.mutable_prompt_tokens()->Add(prefill.prompt_tokens.begin(),
                                         prefill.prompt_tokens.end());
    message.set_first_token(prefill.first_token);
    grpc::ClientContext context;
    SetTimeout(timeout, &context);
    return Read(stub_->Decode(&context, message), &context, on_piece);
  }

  absl::StatusOr<InferenceStats> GetStats(absl::Duration timeout) override {
    grpc::ClientContext context;
    SetTimeout(timeout, &context);
    v1::GetWorkerStatsResponse response;
    IBID_RETURN_IF_ERROR(
        FromGrpcStatus(stub_->GetStats(&context, v1::GetWorkerStatsRequest(), &response)));
    return FromProto(response);
  }

  absl::StatusOr<std::vector<uint32_t>> Tokenize(absl::string_view text,
                                                 absl::Duration timeout) override {
    grpc::ClientContext context;
    SetTimeout(timeout, &context);
    v1::TokenizeRequest request;
    request.set_text(std::string(text));
    v1::TokenizeResponse response;
    IBID_RETURN_IF_ERROR(FromGrpcStatus(stub_->Tokenize(&context, request, &response)));
    return std::vector<uint32_t>(response.token_ids().begin(), response.token_ids().end());
  }

 private:
  static absl::StatusOr<InferenceFinish> Read(
      std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader,
      grpc::ClientContext* context, const OnPiece& on_piece) {
    std::optional<InferenceFinish> finish;
    bool is_unwanted = false;
    v1::GenerateResponse message;
    while (reader->Read(&message)) {
      InferencePiece piece;
      piece.token_ids.assign(message.token_ids().begin(), message.token_ids().end());
      piece.text = message.text();
      if (message.has_finish()) finish = FromProto(message.finish());
      if (!is_unwanted && !(piece.token_ids.empty() && piece.text.empty()) && !on_piece(piece)) {
        is_unwanted = true;
        context->TryCancel();
      }
    }
    const absl::Status status = FromGrpcStatus(reader->Finish());
    if (is_unwanted) return absl::CancelledError("ended by the caller");
    IBID_RETURN_IF_ERROR(status);
    if (!finish.has_value())
      return absl::InternalError("the worker ended the stream without a finish");
    return *std::move(finish);
  }

  const std::unique_ptr<v1::InferenceService::Stub> stub_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<InferenceChannel>> InferenceChannel::Create(
    absl::string_view address, const InferenceChannelOptions& options) {
  if (address.find(':') == absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("\"", address, "\" is not host:port"));
  }
  ChannelOptions channel;
  channel.connect_timeout = options.connect_timeout;
  channel.tls = {options.tls_certificate_file, options.tls_key_file, options.tls_ca_file};
  IBID_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> connection, MakeChannel(address, channel));
  return std::unique_ptr<InferenceChannel>(
      std::make_unique<GrpcInferenceChannel>(std::move(connection)));
}

}  // namespace ibid
