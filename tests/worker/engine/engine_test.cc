#include "worker/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/worker/engine/small_model.h"

namespace ibid {
namespace {

using testing::HasSubstr;

// Each token is one letter or digit; token 3 is half of a character.
class LetterTokenizer final : public Tokenizer {
 public:
  LetterTokenizer() {
    for (uint32_t id = 0; id < kSmallVocab; ++id)
      bytes_.push_back(std::string(1, static_cast<char>('a' + id % 26)));
    bytes_[3] = "\xC3";
  }
  absl::StatusOr<std::vector<uint32_t>> Encode(absl::string_view,
                                               const EncodeOptions&) const override {
    return absl::UnimplementedError("not needed");
  }
  absl::string_view TokenBytes(uint32_t id) const override {
    return id < bytes_.size() ? absl::string_view(bytes_[id]) : absl::string_view();
  }
  bool is_special(uint32_t id) const override { return false; }
  size_t vocab_size() const override { return bytes_.size(); }
  std::optional<uint32_t> bos_id() const override { return std::nullopt; }
  std::optional<uint32_t> eos_id() const override { return std::nullopt; }
  std::optional<uint32_t> IdOf(absl::string_view) const override { return std::nullopt; }

 private:
  std::vector<std::string> bytes_;
};

std::vector<GenerateRequest> MixedRequests(size_t count) {
  std::mt19937 random(5);
  std::vector<GenerateRequest> requests;
  for (size_t i = 0; i < count; ++i) {
    GenerateRequest request =
        Request(RandomTokens(1 + random() % 120, static_cast<uint32_t>(i % 7)), 1 + random() % 60);
    if (i % 3 == 1) request.sampling = {0.8f, static_cast<uint32_t>(random() % 20), 0.9f, random()};
    if (i % 5 == 2) request.ignores_worker_cache = true;
    if (i % 4 == 3) request.stop.ignores_end_token = false;
    requests.push_back(std::move(request));
  }
  return requests;
}

class EngineModelTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, EngineModelTest, testing::ValuesIn(kSmallModels));

TEST_P(EngineModelTest, RequestsTogetherChunkedAndPreemptedGiveTheTokensOfEachAlone) {
  const std::vector<GenerateRequest> requests = MixedRequests(40);
  std::vector<std::vector<uint32_t>> alone;
  {
    const auto engine = StartEngine(SmallEngineOptions(), LoadSmallModel(GetParam()));
    for (GenerateRequest request : requests) {
      request.ignores_worker_cache = true;
      alone.push_back(Generate(*engine, request).tokens);
    }
  }
  EngineOptions options = SmallEngineOptions(24);
  options.max_batch_tokens = 21;
  options.max_running_requests = 9;
  const auto engine = StartEngine(options, LoadSmallModel(GetParam()));
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (const GenerateRequest& request : requests) streams.push_back(*engine->Submit(request));
  for (size_t i = 0; i < streams.size(); ++i)
    EXPECT_EQ(ReadToEnd(*streams[i]).tokens, alone[i]) << "request " << i;
  EXPECT_GT(engine->stats().preemptions, 0u);
  EXPECT_GT(engine->stats().worker_tokens, 0u);
  ExpectAtRest(*engine);
}

TEST(Engine, ReusesItsOwnBlocksAndComputesAtLeastTheLastToken) {
  for (const size_t length : {15, 16, 17, 31, 32, 33, 48}) {
    const auto engine = StartEngine(SmallEngineOptions(), LoadSmallModel());
    const auto prompt = RandomTokens(length, 1);
    const Outcome cold = Generate(*engine, Request(prompt, 20));
    EXPECT_EQ(cold.finish.usage.computed_tokens, length);
    const Outcome warm = Generate(*engine, Request(prompt, 20));
    EXPECT_EQ(warm.tokens, cold.tokens);
    const size_t expected = length % 16 == 0 ? length - 1 : length / 16 * 16;
    EXPECT_EQ(warm.finish.usage.worker_tokens, expected) << length;
    ExpectAtRest(*engine);
  }
}

// Who continues exactly where a request ended finds its last, partly filled block, too.
TEST(Engine, ASequenceThatEndedIsFoundToItsLastToken) {
  const auto engine = StartEngine(SmallEngineOptions(), LoadSmallModel());
  std::vector<uint32_t> prompt = RandomTokens(20, 1);
  const Outcome first = Generate(*engine, Request(prompt, 30));
  prompt.insert(prompt.end(), first.tokens.begin(),
                first.tokens.end() - 1);  // the last one has no KV yet
  const Outcome warm = Generate(*engine, Request(prompt, 10));
  EXPECT_EQ(warm.tokens[0], first.tokens.back());
  EXPECT_EQ(warm.finish.usage.worker_tokens, prompt.size() - 1);
  GenerateRequest cold = Request(prompt, 10);
  cold.ignores_worker_cache = true;
  EXPECT_EQ(Generate(*engine, cold).tokens, warm.tokens);
  ExpectAtRest(*engine);
}

TEST(Engine, SaltsShareNothing) {
  const auto engine = StartEngine(SmallEngineOptions(), LoadSmallModel());
  GenerateRequest request = Request(RandomTokens(40, 1), 4);
  request.salt = "tenant-a";
  const Outcome first = Generate(*engine, request);
  EXPECT_EQ(Generate(*engine, request).finish.usage.worker_tokens, 32u);
  request.salt = "tenant-b";
  const Outcome other = Generate(*engine, request);
  EXPECT_EQ(other.finish.usage.worker_tokens, 0u);
  EXPECT_EQ(other.tokens, first.tokens);
}

TEST(Engine, ASplitRequestGivesTheTokensOfAWholeOne) {
  const auto whole = StartEngine(SmallEngineOptions(), LoadSmallModel());
  const auto prefill = StartEngine(SmallEngineOptions(), LoadSmallModel());
  const auto decode = StartEngine(SmallEngineOptions(), LoadSmallModel());
  for (const size_t length : {1, 15, 16, 17, 40}) {
    GenerateRequest request = Request(RandomTokens(length, 2), 24);
    request.sampling = {0.9f, 0, 0.95f, 77};
    const std::vector<uint32_t> expected = Generate(*whole, request).tokens;

    request.kind = RequestKind::kPrefill;
    const Outcome first = Generate(*prefill, request);
    ASSERT_EQ(first.tokens.size(), 1u);
    EXPECT_EQ(first.finish.chain.size(), (length + 15) / 16);
    EXPECT_FALSE(first.finish.is_published);  // there is no store
    EXPECT_FALSE(first.finish.is_output_complete);

    request.kind = RequestKind::kDecode;
    request.first_token = first.tokens[0];
    EXPECT_EQ(Generate(*decode, request).tokens, expected) << length;
    const Outcome same_worker = Generate(*prefill, request);
    EXPECT_EQ(same_worker.tokens, expected) << length;
    EXPECT_EQ(same_worker.finish.usage.computed_tokens, 0u);
  }
  ExpectAtRest(*prefill);
  ExpectAtRest(*decode);
}

TEST(Engine, APrefillWhoseFirstTokenEndsTheOutputSaysSo) {
  const auto engine = StartEngine(SmallEngineOptions(), LoadSmallModel());
  GenerateRequest request = Request(RandomTokens(20, 2), 1);
  request.kind = RequestKind::kPrefill;
  EXPECT_TRUE(Generate(*engine, request).finish.is_output_complete);
  request.stop.max_tokens = 9;
  const Outcome goes_on = Generate(*engine, request);
  EXPECT_FALSE(goes_on.finish.is_output_complete);
  request.stop.token_ids = {goes_on.tokens[0]};
  EXPECT_TRUE(Generate(*engine, request).finish.is_output_complete);
  // A decode that is asked nevertheless ends at once.
  request.kind = RequestKind::kDecode;
  request.first_token = goes_on.tokens[0];
  const Outcome decoded = Generate(*engine, request);
  EXPECT_EQ(decoded.tokens, goes_on.tokens);
  EXPECT_EQ(decoded.finish.reason, FinishReason::kStop);
  EXPECT_EQ(decoded.finish.usage.prompt_tokens, 20u);
  EXPECT_EQ(decoded.finish.usage.computed_tokens, 0u);
  ExpectAtRest(*engine);
}

TEST(Engine, StopsAtEndTokensStopTokensAndLengths) {
  const auto engine = StartEngine(SmallEngineOptions(), LoadSmallModel());
  GenerateRequest request = Request(RandomTokens(30, 3), 40);
  request.sampling = {1.5f, 0, 1, 4};
  const Outcome all = Generate(*engine, request);
  ASSERT_EQ(all.tokens.size(), 40u);
  EXPECT_EQ(all.finish.reason, FinishReason::kLength);

  request.stop.token_ids = {all.tokens[25]};
  const Outcome stopped = Generate(*engine, request);
  EXPECT_EQ(stopped.finish.reason, FinishReason::kStop);
  const size_t at =
      std::find(all.tokens.begin(), all.tokens.end(), all.tokens[25]) - all.tokens.begin();
  EXPECT_EQ(stopped.tokens, std::vector<uint32_t>(all.tokens.begin(), all.tokens.begin() + at + 1));

  // The context of the model: 256 tokens, prompt and output.
  const Outcome full = Generate(*engine, Request(RandomTokens(250, 3), 40));
  EXPECT_EQ(full.tokens.size(), 6u);
  EXPECT_EQ(full.finish.reason, FinishReason::kLength);
}

TEST(Engine, EndsAtTheModelsEndTokenUnlessAskedNotTo) {
  const auto engine = StartEngine(SmallEngineOptions(), LoadSmallModel());
  const uint32_t end = engine->model_config().eos_ids.at(0);
  // Hot enough to come by the end token among 128 within 200 tokens.
  for (uint64_t seed = 0; seed < 20; ++seed) {
    GenerateRequest request = Request(RandomTokens(10, 3), 200);
    request.sampling = {3, 0, 1, seed};
    const Outcome all = Generate(*engine, request);
    const auto found = std::find(all.tokens.begin(), all.tokens.end() - 1, end);
    if (found == all.tokens.end() - 1) continue;
    request.stop.ignores_end_token = false;
    const Outcome ended = Generate(*engine, request);
    EXPECT_EQ(ended.finish.reason, FinishReason::kStop);
    EXPECT_EQ(ended.tokens, std::vector<uint32_t>(all.tokens.begin(), found + 1));
    return;
  }
  FAIL() << "no seed of 20 samples the end token";
}

TEST(Engine, EndsTheTextBeforeAStopText) {
  const LetterTokenizer tokenizer;
  const auto engine = StartEngine(SmallEngineOptions(), LoadSmallModel(), nullptr, &tokenizer);
  GenerateRequest request = Request(RandomTokens(30, 3), 60);
  request.sampling = {1.5f, 0, 1, 4};
  const Outcome all = Generate(*engine, request);
  EXPECT_EQ(all.text, tokenizer.Decode(all.tokens));
  const std::string stop = all.text.substr(20, 3);
  request.stop.texts = {stop};
  const Outcome stopped = Generate(*engine, request);
  EXPECT_EQ(stopped.text, all.text.substr(0, all.text.find(stop)));
  EXPECT_EQ(stopped.finish.reason, FinishReason::kStop);
  EXPECT_LT(stopped.tokens.size(), all.tokens.size());
  // An end token's text is no output.
  request.stop.texts.clear();
  request.stop.token_ids = {all.tokens[0]};
  EXPECT_EQ(Generate(*engine, request).text, "");
}

TEST(Engine, LimitsAndMistakesAreNamed) {
  EngineOptions options = SmallEngineOptions(8);
  options.max_prompt_tokens = 100;
  options.max_output_tokens = 50;
  options.max_batch_tokens = 100;
  const auto engine = StartEngine(options, LoadSmallModel());
  const auto error = [&](GenerateRequest request) {
    return engine->Submit(std::move(request)).status().ToString();
  };
  EXPECT_THAT(error(Request({}, 1)), HasSubstr("INVALID_ARGUMENT: the prompt is empty"));
  EXPECT_THAT(error(Request({1}, 0)), HasSubstr("INVALID_ARGUMENT: stop.max_tokens"));
  EXPECT_THAT(error(Request(RandomTokens(101, 1), 1)),
              HasSubstr("RESOURCE_EXHAUSTED: 101 prompt tokens: max_prompt_tokens=100"));
  EXPECT_THAT(error(Request({1}, 51)), HasSubstr("max_output_tokens=50"));
  EXPECT_THAT(error(Request(RandomTokens(100, 1), 29)), HasSubstr("pages_count=8"));
  EXPECT_THAT(error(Request({1, 128, 2}, 1)),
              HasSubstr("prompt token 128 at 1 is outside the vocabulary of 128"));
  GenerateRequest request = Request({1}, 1);
  request.stop.texts = {"x"};
  EXPECT_THAT(error(request), HasSubstr("no tokenizer"));
  request = Request({1}, 1);
  request.sampling.temperature = -1;
  EXPECT_THAT(error(request), HasSubstr("temperature"));
  request = Request({1}, 1);
  request.kind = RequestKind::kDecode;
  request.first_token = 500;
  EXPECT_THAT(error(request), HasSubstr("first_token 500"));
  request = Request({1}, 1);
  request.salt = std::string(300, 's');
  EXPECT_THAT(error(request), HasSubstr("salt_bytes_max=256"));
  request = Request({1}, 1);
  request.stop.token_ids.resize(300);
  EXPECT_THAT(error(request), HasSubstr("stop_token_ids_max=256"));

  const auto large = StartEngine(SmallEngineOptions(), LoadSmallModel());
  EXPECT_THAT(large->Submit(Request(RandomTokens(256, 1), 1)).status().ToString(),
              HasSubstr("context_tokens=256"));
  options.max_batch_tokens = options.max_running_requests;
  EXPECT_THAT(Engine::Start(options, LoadSmallModel(), nullptr, nullptr).status().ToString(),
              HasSubstr("must exceed max_running_requests"));
}

TEST(Engine, AFullQueueRefusesByName) {
  EngineOptions options = SmallEngineOptions();
  options.max_running_requests = 1;
  options.max_waiting_requests = 2;
  const auto engine = StartEngine(options, LoadSmallModel());
  const auto running = *engine->Submit(Request(RandomTokens(8, 1), 240));
  ASSERT_TRUE(running->Next(absl::Seconds(30)).has_value());
  std::vector<std::shared_ptr<TokenStream>> waiting;
  absl::Status refused;
  while (refused.ok() && waiting.size() < 10) {
    auto stream = engine->Submit(Request(RandomTokens(8, 2), 240));
    if (stream.ok()) waiting.push_back(*stream);
    refused = stream.status();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("max_waiting_requests=2"));
  engine->Cancel(running->id());
  for (const auto& stream : waiting) EXPECT_EQ(ReadToEnd(*stream).tokens.size(), 240u);
  ExpectAtRest(*engine);
}

TEST(Engine, CancellingFreesEverythingInEveryPhase) {
  EngineOptions options = SmallEngineOptions();
  options.max_running_requests = 2;
  const auto engine = StartEngine(options, LoadSmallModel());
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (uint32_t i = 0; i < 6; ++i)
    streams.push_back(*engine->Submit(Request(RandomTokens(100, i), 150)));
  ASSERT_TRUE(streams[0]->Next(absl::Seconds(30)).has_value());
  for (const auto& stream : streams) engine->Cancel(stream->id());
  size_t cancelled = 0;
  for (const auto& stream : streams) {
    std::optional<StreamItem> item;
    do {
      item = stream->Next(absl::Seconds(30));
      ASSERT_TRUE(item.has_value());
    } while (!item->finish.has_value());
    cancelled += item->finish->reason == FinishReason::kCancelled;
  }
  EXPECT_GE(cancelled, 5u);
  engine->Cancel(RequestId{12'345});  // unknown: nothing happens
  ExpectAtRest(*engine);
}

TEST(Engine, AReaderThatNeverReadsHoldsUpNobody) {
  const auto engine = StartEngine(SmallEngineOptions(), LoadSmallModel());
  const auto unread = *engine->Submit(Request(RandomTokens(8, 1), 200));
  EXPECT_EQ(Generate(*engine, Request(RandomTokens(8, 2), 200)).tokens.size(), 200u);
  EXPECT_EQ(ReadToEnd(*unread).tokens.size(), 200u);
}

TEST(Engine, DrainsThenRefuses) {
  const auto engine = StartEngine(SmallEngineOptions(), LoadSmallModel());
  const auto stream = *engine->Submit(Request(RandomTokens(8, 1), 100));
  EXPECT_TRUE(engine->Drain(absl::Seconds(60)));
  EXPECT_TRUE(absl::IsUnavailable(engine->Submit(Request({1}, 1)).status()));
  EXPECT_EQ(ReadToEnd(*stream).tokens.size(), 100u);
}

TEST(Engine, EndingTheEngineEndsItsRequests) {
  auto engine = StartEngine(SmallEngineOptions(), LoadSmallModel());
  const auto stream = *engine->Submit(Request(RandomTokens(8, 1), 240));
  EXPECT_FALSE(engine->Drain(absl::ZeroDuration()));
  engine.reset();
  const Outcome outcome = ReadToEnd(*stream);
  EXPECT_EQ(outcome.finish.reason, FinishReason::kFailed);
  EXPECT_TRUE(absl::IsUnavailable(outcome.finish.status));
}

TEST(Engine, CountsWhatItDid) {
  MetricsRegistry metrics;
  EngineOptions options = SmallEngineOptions();
  options.metrics = &metrics;
  const auto engine = StartEngine(options, LoadSmallModel());
  Generate(*engine, Request(RandomTokens(40, 1), 5));
  Generate(*engine, Request(RandomTokens(40, 1), 5));
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.prompt_tokens, 80u);
  EXPECT_EQ(stats.worker_tokens, 32u);
  EXPECT_EQ(stats.computed_tokens, 48u);
  EXPECT_EQ(stats.output_tokens, 10u);
  const std::string text = SerializeMetrics(metrics);
  EXPECT_THAT(text, HasSubstr("ibid_engine_prompt_tokens_total{source=\"worker\"} 32"));
  EXPECT_THAT(text, HasSubstr("ibid_engine_prompt_tokens_total{source=\"computed\"} 48"));
  EXPECT_THAT(text, HasSubstr("ibid_engine_requests_total{reason=\"length\"} 2"));
}

}  // namespace
}  // namespace ibid
