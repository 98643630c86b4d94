// InferenceService answers ibid.v1.InferenceService from an Engine.
//
// Thread safety: thread-safe. Tokenizing and writing run on threads of its own; gRPC's and the
// engine's are never blocked, by a slow client least of all. A client that goes away cancels its
// request. Ownership: engine and tokenizer must outlive the service, the service the server that it
// is registered with.
#pragma once

#include <grpcpp/impl/codegen/service_type.h>

#include <cstdint>
#include <memory>
#include <string>

#include "worker/engine/engine.h"
#include "worker/tokenizer/tokenizer.h"

namespace ibid {

struct InferenceServiceOptions {
  std::string version;
  uint32_t rpc_threads_count = 4;
  // Apart: a long text must not delay what other calls stream.
  uint32_t tokenizer_threads_count = 2;
  uint32_t rpc_queue_max = 8'192;  // pieces of work of all calls; further calls are refused
};

class InferenceService {
 public:
  // `tokenizer` null: prompts come as token ids, and output has no text.
  InferenceService(Engine* engine, const Tokenizer* tokenizer, InferenceServiceOptions options);
  ~InferenceService();
  InferenceService(const InferenceService&) = delete;
  InferenceService& operator=(const InferenceService&) = delete;

  grpc::Service& grpc_service();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ibid
