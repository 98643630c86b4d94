// Whole models against what Hugging Face transformers and llama2.c answer.
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "gtest/gtest.h"
#include "tests/worker/model/tiny_model.h"

namespace ibid {
namespace {

using testing::Greedy;
using testing::Pages;
using testing::Prefill;
using testing::ReadAll;

// f32 throughout, other order of sums than PyTorch: relative to logits of a few units.
constexpr float kLogitTolerance = 2e-3f;

std::unique_ptr<Model> LoadOrDie(const std::string& directory, ModelOptions options) {
  absl::StatusOr<std::unique_ptr<Model>> model = Model::Load(directory, options);
  if (!model.ok()) ADD_FAILURE() << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

ModelOptions ExactOptions(bool is_reference) {
  ModelOptions options;
  options.kv_dtype = KvDtype::kF32;
  options.compute = ComputeDtype::kF32;
  options.threads = 2;
  options.is_reference = is_reference;
  return options;
}

class GoldenLogits : public ::testing::TestWithParam<std::tuple<std::string, bool>> {};

TEST_P(GoldenLogits, LogitsAndGreedyTokensAreThoseOfTransformers) {
  const auto& [name, is_reference] = GetParam();
  const std::string directory = std::string(IBID_SOURCE_DIR) + "/tests/golden/" + name;
  const auto golden = nlohmann::json::parse(ReadAll(directory + "/logits.json"));
  const std::unique_ptr<Model> model = LoadOrDie(directory, ExactOptions(is_reference));
  ASSERT_NE(model, nullptr);
  for (const auto& item : golden["cases"]) {
    const auto prompt = item["prompt"].get<std::vector<uint32_t>>();
    for (size_t i = 0; i < item["positions"].size(); ++i) {
      const size_t position = item["positions"][i].get<size_t>();
      const std::vector<uint32_t> start(prompt.begin(), prompt.begin() + position + 1);
      const Pages pages(model->layout(), start.size());
      const std::vector<float> logits = Prefill(*model, start, pages, start.size());
      const auto expected = item["logits"][i].get<std::vector<float>>();
      ASSERT_EQ(logits.size(), expected.size());
      for (size_t v = 0; v < logits.size(); ++v) {
        ASSERT_NEAR(logits[v], expected[v], kLogitTolerance)
            << "position " << position << " id " << v;
      }
    }
    const auto greedy = item["greedy"].get<std::vector<uint32_t>>();
    EXPECT_EQ(Greedy(*model, prompt, greedy.size()), greedy);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, GoldenLogits,
                         ::testing::Combine(::testing::Values("tiny_gpt2", "tiny_llama_gqa",
                                                              "tiny_llama_tied_bf16"),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return std::get<0>(info.param) +
                                  (std::get<1>(info.param) ? "_reference" : "_cpu");
                         });

TEST(GoldenDemo, GreedyTokensAreThoseOfTransformers) {
  const std::string golden = std::string(IBID_SOURCE_DIR) + "/tests/golden/demo_greedy.json";
  const std::string directory = std::string(IBID_SOURCE_DIR) + "/models/demo";
  if (!std::filesystem::exists(golden)) GTEST_SKIP() << golden << " is absent";
  const std::unique_ptr<Model> model = LoadOrDie(directory, ExactOptions(false));
  ASSERT_NE(model, nullptr);
  const auto json = nlohmann::json::parse(ReadAll(golden));
  for (const auto& item : json["cases"]) {
    const auto prompt = item["prompt"].get<std::vector<uint32_t>>();
    const Pages pages(model->layout(), prompt.size());
    const std::vector<float> logits = Prefill(*model, prompt, pages, prompt.size());
    for (size_t i = 0; i < item["top_ids"].size(); ++i) {
      EXPECT_NEAR(logits[item["top_ids"][i].get<size_t>()], item["top_logits"][i].get<float>(),
                  kLogitTolerance);
    }
    const auto greedy = item["greedy"].get<std::vector<uint32_t>>();
    EXPECT_EQ(Greedy(*model, prompt, greedy.size()), greedy);
  }
}

TEST(GoldenStories, GreedyTokensAndFirstLogitsAreTheReferences) {
  const std::string directory = std::string(IBID_SHARED_DATA) + "/models/stories260K";
  if (!std::filesystem::exists(directory)) GTEST_SKIP() << directory << " is absent";
  const std::unique_ptr<Model> model = LoadOrDie(directory + "/derived-hf", ExactOptions(false));
  ASSERT_NE(model, nullptr);
  const auto json = nlohmann::json::parse(ReadAll(directory + "/reference.json"));
  for (const auto& item : json["cases"]) {
    const auto prompt = item["prompt_ids"].get<std::vector<uint32_t>>();
    const Pages pages(model->layout(), prompt.size());
    const std::vector<float> logits = Prefill(*model, prompt, pages, prompt.size());
    const auto expected = item["first_logits"].get<std::vector<float>>();
    for (size_t v = 0; v < expected.size(); ++v) ASSERT_NEAR(logits[v], expected[v], 1e-3f) << v;
    const auto greedy = item["greedy_ids"].get<std::vector<uint32_t>>();
    EXPECT_EQ(Greedy(*model, prompt, greedy.size()), greedy);
  }
}

// The tiny models of other projects have no reference answers: the two backends must agree on them.
TEST(TinyRandom, Llama3AndMistralLoadAndBothBackendsAgree) {
  const std::string root = std::string(IBID_SHARED_DATA) + "/models/tiny-random/";
  if (!std::filesystem::exists(root)) GTEST_SKIP() << root << " is absent";
  for (const char* name : {"tiny_llama3", "tiny_mistral"}) {
    const std::unique_ptr<Model> cpu = LoadOrDie(root + name, ExactOptions(false));
    const std::unique_ptr<Model> plain = LoadOrDie(root + name, ExactOptions(true));
    ASSERT_TRUE(cpu != nullptr && plain != nullptr);
    const std::vector<uint32_t> tokens = testing::RandomTokens(75, cpu->config().vocab, 3);
    const std::vector<float> a = Prefill(*cpu, tokens, Pages(cpu->layout(), 75), 75);
    const std::vector<float> b = Prefill(*plain, tokens, Pages(plain->layout(), 75), 75);
    for (size_t v = 0; v < a.size(); ++v) ASSERT_NEAR(a[v], b[v], 1e-4f) << name;
  }
}

TEST(TinyRandom, UnsupportedModelsAreRefusedByName) {
  const std::string root = std::string(IBID_SHARED_DATA) + "/models/tiny-random/";
  if (!std::filesystem::exists(root)) GTEST_SKIP() << root << " is absent";
  for (const char* name :
       {"tiny_gemma3", "tiny_qwen3", "tiny_qwen3_5", "tiny_llama3_tied", "tiny_mistral_tied"}) {
    const absl::Status status = Model::Load(root + name, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name << ": " << status;
  }
}

}  // namespace
}  // namespace ibid
