// FakeWorker: an InferenceService without a model. A token is a byte of text; the output of a
// prompt is the prompt backwards.
#pragma once

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/block_key.h"
#include "ibid/v1/inference.grpc.pb.h"

namespace ibid {

class FakeWorker final : private v1::InferenceService::Service {
 public:
  FakeWorker(const NamespaceSpec& spec, uint32_t block_tokens, uint32_t waiting_requests = 0)
      : spec_(spec), block_tokens_(block_tokens), waiting_requests_(waiting_requests) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeWorker() override { server_->Shutdown(); }

  // Streams end with `status` after `pieces_count` pieces.
  void FailAfter(size_t pieces_count, grpc::Status status) {
    failing_after_ = pieces_count;
    failure_ = std::move(status);
  }

  // Of the last stream. Read when it has ended.
  const std::vector<std::string>& stop_texts() const { return stop_texts_; }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  static std::vector<uint32_t> PromptOf(const v1::GenerateRequest& request) {
    if (request.has_tokens()) return {request.tokens().ids().begin(), request.tokens().ids().end()};
    const std::string& text = request.text();
    return {text.begin(), text.end()};
  }

  grpc::Status Stream(std::vector<uint32_t> prompt, const v1::GenerateRequest& request,
                      uint32_t fetched, grpc::ServerWriter<v1::GenerateResponse>* writer) {
    if (request.stop().max_tokens() == 0)
      return {grpc::StatusCode::INVALID_ARGUMENT, "max_tokens: is 0"};
    stop_texts_.assign(request.stop().texts().begin(), request.stop().texts().end());
    const uint32_t prompt_count = static_cast<uint32_t>(prompt.size());
    std::reverse(prompt.begin(), prompt.end());
    prompt.resize(std::min<size_t>(prompt.size(), request.stop().max_tokens()));
    if (!failure_.ok()) prompt.resize(std::min(prompt.size(), failing_after_));
    for (uint32_t token : prompt) {
      v1::GenerateResponse piece;
      piece.add_token_ids(token);
      piece.set_text(std::string(1, static_cast<char>(token)));
      writer->Write(piece);
    }
    if (!failure_.ok()) return failure_;
    v1::GenerateResponse last;
    v1::Finish* finish = last.mutable_finish();
    finish->set_reason(v1::Finish::REASON_LENGTH);
    finish->set_output_tokens(static_cast<uint32_t>(prompt.size()));
    finish->mutable_usage()->set_prompt_tokens(prompt_count);
    finish->mutable_usage()->set_fetched_tokens(fetched);
    finish->mutable_usage()->set_computed_tokens(prompt_count - fetched);
    finish->set_ttft_ms(1.5);
    finish->set_tpot_ms(0.25);
    writer->Write(last);
    return grpc::Status::OK;
  }

  grpc::Status Generate(grpc::ServerContext*, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    return Stream(PromptOf(*request), *request, 0, writer);
  }
  grpc::Status Prefill(grpc::ServerContext*, const v1::GenerateRequest* request,
                       v1::PrefillResponse* response) override {
    const std::vector<uint32_t> prompt = PromptOf(*request);
    response->mutable_prompt_tokens()->Add(prompt.begin(), prompt.end());
    response->set_first_token(prompt.back());
    response->set_is_published(true);
    response->set_ttft_ms(7);
    return grpc::Status::OK;
  }
  grpc::Status Decode(grpc::ServerContext*, const v1::DecodeRequest* request,
                      grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    const std::vector<uint32_t> prompt(request->prompt_tokens().begin(),
                                       request->prompt_tokens().end());
    return Stream(prompt, request->request(), static_cast<uint32_t>(prompt.size()), writer);
  }
  grpc::Status GetStats(grpc::ServerContext*, const v1::GetWorkerStatsRequest*,
                        v1::GetWorkerStatsResponse* response) override {
    response->set_version("fake");
    response->set_model(spec_.model);
    response->set_engine(spec_.engine);
    response->set_layout(spec_.layout);
    response->set_namespace_id(DigestToHex(MakeNamespaceId(spec_).digest));
    response->set_block_tokens(block_tokens_);
    response->set_waiting_requests(waiting_requests_);
    response->set_is_store_reachable(true);
    response->set_pages_total(10);
    response->set_pages_free(10);
    return grpc::Status::OK;
  }
  grpc::Status Tokenize(grpc::ServerContext*, const v1::TokenizeRequest* request,
                        v1::TokenizeResponse* response) override {
    for (const char byte : request->text())
      response->add_token_ids(static_cast<unsigned char>(byte));
    return grpc::Status::OK;
  }

  const NamespaceSpec spec_;
  const uint32_t block_tokens_;
  const uint32_t waiting_requests_;
  std::vector<std::string> stop_texts_;
  size_t failing_after_ = 0;
  grpc::Status failure_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace ibid
