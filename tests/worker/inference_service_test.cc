// The service by its wire: a gRPC server and a client on loopback.
#include "worker/inference_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/mutex.h"
#include "ibid/v1/inference.grpc.pb.h"
#include "tests/worker/engine/small_model.h"
#include "transport/server_setup.h"
#include "worker/tokenizer/tokenizer.h"

namespace ibid {
namespace {

using testing::HasSubstr;

v1::GenerateRequest Message(const std::vector<uint32_t>& prompt, uint32_t max_tokens) {
  v1::GenerateRequest message;
  message.mutable_tokens()->mutable_ids()->Add(prompt.begin(), prompt.end());
  message.mutable_stop()->set_max_tokens(max_tokens);
  message.mutable_stop()->set_ignore_end_token(true);
  return message;
}

struct Reply {
  std::vector<uint32_t> tokens;
  std::string text;
  v1::Finish finish;
  grpc::Status status;
};

Reply ReadAll(grpc::ClientReader<v1::GenerateResponse>& reader) {
  Reply reply;
  for (v1::GenerateResponse message; reader.Read(&message);) {
    reply.tokens.insert(reply.tokens.end(), message.token_ids().begin(), message.token_ids().end());
    reply.text += message.text();
    if (message.has_finish()) reply.finish = message.finish();
  }
  reply.status = reader.Finish();
  return reply;
}

// Each byte of 'a' to 'z' is a token, whose bytes are that letter eight times. Texts that begin
// with "wait" are encoded once the test says so.
class SlowTokenizer final : public Tokenizer {
 public:
  absl::StatusOr<std::vector<uint32_t>> Encode(absl::string_view text,
                                               const EncodeOptions&) const override {
    std::vector<uint32_t> ids;
    for (const char letter : text) ids.push_back(static_cast<uint32_t>(letter - 'a'));
    MutexLock lock(mutex_);
    ++encodes_count_;
    changed_.NotifyAll();
    while (text.substr(0, 4) == "wait" && !is_released_) changed_.Wait(mutex_);
    return ids;
  }
  absl::string_view TokenBytes(uint32_t id) const override {
    return id < vocab_size() ? absl::string_view(letters_).substr(id * 8, 8) : absl::string_view();
  }
  bool is_special(uint32_t) const override { return false; }
  size_t vocab_size() const override { return letters_.size() / 8; }
  std::optional<uint32_t> bos_id() const override { return std::nullopt; }
  std::optional<uint32_t> eos_id() const override { return std::nullopt; }
  std::optional<uint32_t> IdOf(absl::string_view) const override { return std::nullopt; }

  void AwaitEncodes(uint32_t count) {
    MutexLock lock(mutex_);
    while (encodes_count_ < count) changed_.Wait(mutex_);
  }
  void Release() {
    MutexLock lock(mutex_);
    is_released_ = true;
    changed_.NotifyAll();
  }
  uint32_t encodes_count() const {
    MutexLock lock(mutex_);
    return encodes_count_;
  }

 private:
  std::string letters_ = [] {
    std::string letters;
    for (char letter = 'a'; letter <= 'z'; ++letter) letters.append(8, letter);
    return letters;
  }();
  mutable Mutex mutex_;
  mutable CondVar changed_;
  mutable uint32_t encodes_count_ IBID_GUARDED_BY(mutex_) = 0;
  bool is_released_ IBID_GUARDED_BY(mutex_) = false;
};

v1::GenerateRequest TextMessage(const std::string& text, uint32_t max_tokens) {
  v1::GenerateRequest message;
  message.set_text(text);
  message.mutable_stop()->set_max_tokens(max_tokens);
  message.mutable_stop()->set_ignore_end_token(true);
  return message;
}

class InferenceServiceTest : public testing::Test {
 protected:
  void Start(EngineOptions options = SmallEngineOptions(),
             const std::string& folder = "tests/golden/tiny_llama_gqa",
             std::unique_ptr<Tokenizer> given_tokenizer = nullptr) {
    ModelOptions model_options;
    model_options.threads = 1;
    const std::string path = std::string(IBID_SOURCE_DIR "/") + folder;
    auto model = Model::Load(path, model_options);
    ASSERT_TRUE(model.ok()) << model.status();
    tokenizer_ = std::move(given_tokenizer);
    if (auto tokenizer = Tokenizer::Load(path); tokenizer_ == nullptr && tokenizer.ok())
      tokenizer_ = *std::move(tokenizer);
    engine_ = StartEngine(options, *std::move(model), nullptr, tokenizer_.get());
    service_ = std::make_unique<InferenceService>(engine_.get(), tokenizer_.get(),
                                                  InferenceServiceOptions{"1.2.3"});
    grpc::Service* const services[] = {&service_->grpc_service()};
    auto server = GrpcServer::Start({}, services);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::InferenceService::NewStub(grpc::CreateChannel(
        "127.0.0.1:" + std::to_string(server_->port()), grpc::InsecureChannelCredentials()));
  }

  Reply Generate(const v1::GenerateRequest& message) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    return ReadAll(*stub_->Generate(&context, message));
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<InferenceService> service_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<v1::InferenceService::Stub> stub_;
};

TEST_F(InferenceServiceTest, StreamsTheTokensOfTheEngine) {
  Start();
  v1::GenerateRequest message = Message(RandomTokens(37, 1), 30);
  message.mutable_sampling()->set_temperature(0.7f);
  message.mutable_sampling()->set_seed(5);
  const Reply reply = Generate(message);
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  GenerateRequest request = Request(RandomTokens(37, 1), 30);
  request.sampling = {0.7f, 0, 0, 5};
  EXPECT_EQ(reply.tokens, ibid::Generate(*engine_, request).tokens);
  EXPECT_EQ(reply.finish.reason(), v1::Finish::REASON_LENGTH);
  EXPECT_EQ(reply.finish.output_tokens(), 30u);
  EXPECT_EQ(reply.finish.usage().computed_tokens(), 37u);
  EXPECT_GT(reply.finish.ttft_ms(), 0);
  EXPECT_GT(reply.finish.tpot_ms(), 0);
}

TEST_F(InferenceServiceTest, TextGoesInAndComesOut) {
  Start(SmallEngineOptions(), "models/demo");
  ASSERT_NE(tokenizer_, nullptr);
  v1::GenerateRequest message;
  message.set_text("Once upon a time");
  message.mutable_stop()->set_max_tokens(20);
  message.mutable_stop()->set_ignore_end_token(true);
  const Reply reply = Generate(message);
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply.text, tokenizer_->Decode(reply.tokens, /*skips_special=*/true));

  grpc::ClientContext context;
  v1::TokenizeRequest tokenize;
  tokenize.set_text("Once upon a time");
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(stub_->Tokenize(&context, tokenize, &tokens).ok());
  message.mutable_tokens()->mutable_ids()->CopyFrom(tokens.token_ids());
  EXPECT_EQ(Generate(message).tokens, reply.tokens);
}

TEST_F(InferenceServiceTest, PrefillAndDecodeMakeAWhole) {
  Start();
  const v1::GenerateRequest message = Message(RandomTokens(20, 1), 25);
  const Reply whole = Generate(message);
  v1::PrefillResponse prefill;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->Prefill(&context, message, &prefill).ok());
  }
  EXPECT_EQ(prefill.prompt_tokens_size(), 20);
  EXPECT_EQ(prefill.first_token(), whole.tokens[0]);
  EXPECT_EQ(prefill.chain_keys().size(), 64u);
  EXPECT_FALSE(prefill.is_published());
  EXPECT_FALSE(prefill.is_finished());
  v1::DecodeRequest decode;
  *decode.mutable_request() = message;
  *decode.mutable_prompt_tokens() = prefill.prompt_tokens();
  decode.set_first_token(prefill.first_token());
  grpc::ClientContext context;
  EXPECT_EQ(ReadAll(*stub_->Decode(&context, decode)).tokens, whole.tokens);
}

TEST_F(InferenceServiceTest, MistakesAndLimitsAreStatuses) {
  EngineOptions options = SmallEngineOptions();
  options.max_output_tokens = 10;
  Start(options);
  Reply reply = Generate(v1::GenerateRequest());
  EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(reply.status.error_message(), HasSubstr("prompt"));
  reply = Generate(Message({1, 2}, 11));
  EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(reply.status.error_message(), HasSubstr("max_output_tokens=10"));
  v1::GenerateRequest text = Message({}, 1);
  text.set_text("hello");
  reply = Generate(text);
  EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(reply.status.error_message(), HasSubstr("no tokenizer"));
  grpc::ClientContext context;
  v1::PrefillResponse prefill;
  EXPECT_EQ(stub_->Prefill(&context, Message({1, 500}, 1), &prefill).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

// 255 tokens at most, of 8 bytes each, or of three times as many before they are normalised.
TEST_F(InferenceServiceTest, ATextTooLongForAnyPromptIsRefusedBeforeItIsEncoded) {
  auto owned = std::make_unique<SlowTokenizer>();
  SlowTokenizer* const tokenizer = owned.get();
  Start(SmallEngineOptions(), "tests/golden/tiny_llama_gqa", std::move(owned));
  const std::string fits(255 * 24, 'x'), too_long(256 * 24, 'x');
  for (const std::string name : {"Generate", "Prefill", "Tokenize"}) {
    const auto call = [&](const std::string& text) {
      grpc::ClientContext context;
      v1::PrefillResponse prefill;
      v1::TokenizeRequest tokenize;
      v1::TokenizeResponse tokens;
      tokenize.set_text(text);
      if (name == "Generate") return Generate(TextMessage(text, 1)).status;
      if (name == "Prefill") return stub_->Prefill(&context, TextMessage(text, 1), &prefill);
      return stub_->Tokenize(&context, tokenize, &tokens);
    };
    const uint32_t before = tokenizer->encodes_count();
    const grpc::Status refused = call(too_long);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << name;
    EXPECT_THAT(refused.error_message(), HasSubstr("the model's context_tokens=256")) << name;
    EXPECT_EQ(tokenizer->encodes_count(), before) << name;
    call(fits);  // too many tokens or not: that is known when it is encoded
    EXPECT_EQ(tokenizer->encodes_count(), before + 1) << name;
  }
  EXPECT_TRUE(Generate(TextMessage("xyz", 1)).status.ok());
}

TEST_F(InferenceServiceTest, TextsThatAreBeingEncodedDelayNoStream) {
  auto owned = std::make_unique<SlowTokenizer>();
  SlowTokenizer* const tokenizer = owned.get();
  Start(SmallEngineOptions(), "tests/golden/tiny_llama_gqa", std::move(owned));
  const std::vector<uint32_t> expected = Generate(Message(RandomTokens(10, 1), 50)).tokens;
  std::vector<std::thread> clients;
  for (uint32_t i = 0; i < 12; ++i) {
    clients.emplace_back([&] { EXPECT_EQ(Generate(TextMessage("wait", 3)).tokens.size(), 3u); });
  }
  tokenizer->AwaitEncodes(2);
  EXPECT_EQ(Generate(Message(RandomTokens(10, 1), 50)).tokens, expected);
  tokenizer->Release();
  for (std::thread& client : clients) client.join();
}

TEST_F(InferenceServiceTest, AClientThatGoesAwayCancelsItsRequest) {
  Start();
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Message(RandomTokens(10, 1), 240));
  v1::GenerateResponse first;
  ASSERT_TRUE(reader->Read(&first));
  context.TryCancel();
  EXPECT_EQ(ReadAll(*reader).status.error_code(), grpc::StatusCode::CANCELLED);
  ExpectAtRest(*engine_);
}

TEST_F(InferenceServiceTest, ManyClientsAtATimeGetTheirOwnTokens) {
  EngineOptions options = SmallEngineOptions(40);
  options.max_running_requests = 6;
  Start(options);
  std::vector<std::vector<uint32_t>> expected;
  for (uint32_t i = 0; i < 8; ++i)
    expected.push_back(Generate(Message(RandomTokens(20 + i, i), 40)).tokens);
  std::vector<std::thread> clients;
  for (uint32_t client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      for (uint32_t round = 0; round < 8; ++round) {
        const uint32_t i = (client * 3 + round) % 8;
        EXPECT_EQ(Generate(Message(RandomTokens(20 + i, i), 40)).tokens, expected[i]);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  ExpectAtRest(*engine_);
}

TEST_F(InferenceServiceTest, AClientThatDoesNotReadHoldsUpNobody) {
  Start();
  grpc::ClientContext context;
  const auto unread = stub_->Generate(&context, Message(RandomTokens(10, 1), 240));
  EXPECT_EQ(Generate(Message(RandomTokens(10, 2), 240)).tokens.size(), 240u);
  EXPECT_EQ(ReadAll(*unread).tokens.size(), 240u);
}

TEST_F(InferenceServiceTest, StatsSayWhatTheWorkerIs) {
  Start();
  Generate(Message(RandomTokens(20, 1), 3));
  grpc::ClientContext context;
  v1::GetWorkerStatsResponse stats;
  ASSERT_TRUE(stub_->GetStats(&context, {}, &stats).ok());
  EXPECT_EQ(stats.version(), "1.2.3");
  EXPECT_EQ(stats.namespace_id(), DigestToHex(MakeNamespaceId(engine_->SpecFor("")).digest));
  EXPECT_EQ(stats.model().size(), 64u);
  EXPECT_EQ(stats.pages_total(), 128u);
  EXPECT_EQ(stats.prompt_tokens(), 20u);
  EXPECT_EQ(stats.output_tokens(), 3u);
  EXPECT_EQ(stats.block_tokens(), 16u);
  EXPECT_EQ(stats.vocabulary(), kSmallVocab);
  EXPECT_FALSE(stats.is_store_reachable());
}

TEST_F(InferenceServiceTest, ShutdownEndsCallsWithinItsGrace) {
  Start();
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Message(RandomTokens(10, 1), 240));
  std::thread client([&] { ReadAll(*reader); });
  EXPECT_TRUE(engine_->Drain(absl::Seconds(30)));
  server_->Shutdown(absl::Seconds(5));
  client.join();
}

}  // namespace
}  // namespace ibid
