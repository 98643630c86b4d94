// A small model, requests for it, and what came of them: for tests of the engine and of the main
// invariant.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/engine/engine.h"

namespace ibid {

// Folders of tests/golden with random weights; vocabulary 128, context 256 or more.
inline constexpr const char* kSmallModels[] = {"tiny_llama_gqa", "tiny_gpt2",
                                               "tiny_llama_tied_bf16"};
inline constexpr uint32_t kSmallVocab = 128;

inline std::unique_ptr<Model> LoadSmallModel(const std::string& name = "tiny_llama_gqa",
                                             KvDtype kv_dtype = KvDtype::kBf16) {
  ModelOptions options;
  options.kv_dtype = kv_dtype;
  options.threads = 1;
  auto model = Model::Load(absl::StrCat(IBID_SOURCE_DIR, "/tests/golden/", name), options);
  if (!model.ok()) ADD_FAILURE() << model.status();
  return *std::move(model);
}

inline std::unique_ptr<Engine> StartEngine(EngineOptions options, std::unique_ptr<Model> model,
                                           Client* store = nullptr,
                                           const Tokenizer* tokenizer = nullptr) {
  auto engine = Engine::Start(std::move(options), std::move(model), tokenizer, store);
  if (!engine.ok()) ADD_FAILURE() << engine.status();
  return *std::move(engine);
}

inline EngineOptions SmallEngineOptions(size_t pages = 128) {
  EngineOptions options;
  options.pages_count = pages;
  return options;
}

inline std::vector<uint32_t> RandomTokens(size_t count, uint32_t seed,
                                          uint32_t vocab = kSmallVocab) {
  std::mt19937 random(seed);
  std::vector<uint32_t> tokens(count);
  for (uint32_t& token : tokens) token = random() % vocab;
  return tokens;
}

inline GenerateRequest Request(std::vector<uint32_t> prompt, uint32_t max_tokens) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.stop.max_tokens = max_tokens;
  request.stop.ignores_end_token = true;
  return request;
}

struct Outcome {
  std::vector<uint32_t> tokens;
  std::string text;
  Finish finish;
};

inline Outcome ReadToEnd(TokenStream& stream, absl::Duration timeout = absl::Seconds(60)) {
  Outcome outcome;
  const absl::Time until = absl::Now() + timeout;
  while (true) {
    const auto item = stream.Next(until - absl::Now());
    if (!item.has_value()) {
      ADD_FAILURE() << "the stream has not ended after " << timeout;
      return outcome;
    }
    outcome.tokens.insert(outcome.tokens.end(), item->tokens.begin(), item->tokens.end());
    outcome.text += item->text;
    if (item->finish.has_value()) {
      outcome.finish = *item->finish;
      EXPECT_EQ(outcome.finish.output_tokens, outcome.tokens.size());
      const PromptUsage& usage = outcome.finish.usage;
      const uint32_t sum = usage.worker_tokens + usage.fetched_tokens + usage.computed_tokens;
      if (sum > 0) {
        EXPECT_EQ(usage.prompt_tokens, sum);
      }
      return outcome;
    }
  }
}

inline Outcome Generate(Engine& engine, GenerateRequest request) {
  auto stream = engine.Submit(std::move(request));
  if (!stream.ok()) {
    ADD_FAILURE() << stream.status();
    return {};
  }
  return ReadToEnd(**stream);
}

// Waits until the engine's state is as wanted; a test that waits here for ever has found a leak.
template <typename Condition>
void AwaitStats(const Engine& engine, Condition condition,
                absl::Duration timeout = absl::Seconds(15)) {
  const absl::Time until = absl::Now() + timeout;
  while (!condition(engine.stats())) {
    ASSERT_LT(absl::Now(), until) << "the engine does not come to rest";
    absl::SleepFor(absl::Milliseconds(1));
  }
}

// All pages are back, no request is left, nothing was computed twice with different bytes.
inline void ExpectAtRest(const Engine& engine) {
  AwaitStats(engine, [](const EngineStats& stats) {
    return stats.running_requests == 0 && stats.waiting_requests == 0 &&
           stats.publishing_blocks == 0 &&
           stats.pages_free + stats.pages_cached == stats.pages_total;
  });
  EXPECT_EQ(engine.stats().unequal_duplicates, 0u);
}

}  // namespace ibid
