// Tokenizers against what the libraries they come from answer.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "gtest/gtest.h"
#include "worker/tokenizer/tokenizer.h"

namespace ibid {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::unique_ptr<Tokenizer> LoadOrDie(const std::string& directory, TokenizerOptions options = {}) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(directory, options);
  if (!tokenizer.ok()) ADD_FAILURE() << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::string DecodeStreaming(const Tokenizer& tokenizer, const std::vector<uint32_t>& ids) {
  StreamDecoder decoder(&tokenizer, /*skips_special=*/false);
  std::string text;
  for (const uint32_t id : ids) text += decoder.Add(id);
  return text + decoder.Finish();
}

struct Folder {
  const char* name;
  const char* golden;
  PreTokenizerKind kind;
};

class GoldenTokenizer : public ::testing::TestWithParam<Folder> {};

// *.inp: texts, each ended by a line __ggml_vocab_test__; *.out: a line of ids for each.
TEST_P(GoldenTokenizer, AllCasesGiveTheReferencesIdsAndDecodeToTheirText) {
  const std::string folder = std::string(IBID_SHARED_DATA) + "/tokenizers/" + GetParam().name;
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is absent";
  const std::unique_ptr<Tokenizer> tokenizer = LoadOrDie(folder, {GetParam().kind});
  ASSERT_NE(tokenizer, nullptr);
  const std::string inputs = ReadAll(folder + "/" + GetParam().golden + ".inp");
  std::istringstream outputs(ReadAll(folder + "/" + GetParam().golden + ".out"));
  const std::string separator = "\n__ggml_vocab_test__\n";
  size_t cases = 0;
  for (size_t at = 0; at < inputs.size();) {
    const size_t end = std::min(inputs.find(separator, at), inputs.size());
    const std::string text = inputs.substr(at, end - at);
    at = end + separator.size();
    std::string line;
    ASSERT_TRUE(std::getline(outputs, line)) << "case " << cases;
    std::istringstream numbers(line);
    const std::vector<uint32_t> expected{std::istream_iterator<uint32_t>(numbers), {}};
    const auto ids = tokenizer->Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, expected) << "case " << cases << ": '" << text << "'";
    EXPECT_EQ(tokenizer->Decode(*ids), text);
    EXPECT_EQ(DecodeStreaming(*tokenizer, *ids), text);
    ++cases;
  }
  std::string unread;
  EXPECT_FALSE(std::getline(outputs, unread)) << "a line of ids without a text: " << unread;
  EXPECT_EQ(cases, 46u);
}

INSTANTIATE_TEST_SUITE_P(
    Shared, GoldenTokenizer,
    ::testing::Values(
        Folder{"gpt2-tokenizer", "ggml-vocab-gpt-2.gguf", PreTokenizerKind::kInfer},
        Folder{"qwen2.5-tokenizer", "ggml-vocab-qwen2.gguf", PreTokenizerKind::kQwen2},
        Folder{"smollm-tokenizer", "ggml-vocab-smollm.gguf", PreTokenizerKind::kSmolLm},
        Folder{"qwen2.5-tokenizer", "ggml-vocab-qwen2.gguf", PreTokenizerKind::kInfer},
        Folder{"smollm-tokenizer", "ggml-vocab-smollm.gguf", PreTokenizerKind::kInfer}));

TEST(DemoTokenizer, AllCasesGiveTheIdsOfHuggingFaceTokenizers) {
  const std::unique_ptr<Tokenizer> tokenizer =
      LoadOrDie(std::string(IBID_SOURCE_DIR) + "/models/demo");
  ASSERT_NE(tokenizer, nullptr);
  const auto golden = nlohmann::json::parse(
      ReadAll(std::string(IBID_SOURCE_DIR) + "/tests/golden/tokenizer_demo.json"));
  ASSERT_GT(golden["cases"].size(), 0u);
  for (const auto& item : golden["cases"]) {
    const std::string text = item["text"];
    const auto ids = tokenizer->Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, item["ids"].get<std::vector<uint32_t>>()) << "'" << text << "'";
    EXPECT_EQ(tokenizer->Decode(*ids), text);
    EXPECT_EQ(DecodeStreaming(*tokenizer, *ids), text);
  }
  EXPECT_EQ(tokenizer->eos_id(), 0u);
  EXPECT_EQ(tokenizer->vocab_size(), 2048u);
}

TEST(Llama2cTokenizer, PromptsAndAnswersOfStories260KAreTheReferences) {
  const std::string folder = std::string(IBID_SHARED_DATA) + "/models/stories260K";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is absent";
  const std::unique_ptr<Tokenizer> tokenizer = LoadOrDie(folder);
  ASSERT_NE(tokenizer, nullptr);
  const auto reference = nlohmann::json::parse(ReadAll(folder + "/reference.json"));
  for (const auto& item : reference["cases"]) {
    const auto ids = tokenizer->Encode(item["prompt"].get<std::string>(), {.adds_special = true});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, item["prompt_ids"].get<std::vector<uint32_t>>()) << item["prompt"];
    // The first piece of a text has a space in front, which the reference leaves out after the
    // beginning of a sequence.
    std::string text = tokenizer->Decode(item["greedy_ids"].get<std::vector<uint32_t>>());
    if (ids->size() == 1 && text.starts_with(' ')) text.erase(0, 1);
    EXPECT_EQ(text, item["greedy_text"].get<std::string>());
  }
}

// Failure mode of a merge loop that scans the whole piece for each merge: quadratic, minutes for a
// megabyte.
TEST(LongPieces, AMegabyteWithoutASpaceTakesSeconds) {
  const std::unique_ptr<Tokenizer> tokenizer =
      LoadOrDie(std::string(IBID_SOURCE_DIR) + "/models/demo");
  ASSERT_NE(tokenizer, nullptr);
  for (const char c : {'a', ' ', '\n', '7', '!', '\xe4'}) {
    const std::string text(1 << 20, c);
    const auto begin = std::chrono::steady_clock::now();
    const auto ids = tokenizer->Encode(text);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    ASSERT_TRUE(ids.ok()) << ids.status();
    if (c != '\xe4') {
      EXPECT_EQ(tokenizer->Decode(*ids), text);
    }
    EXPECT_LT(took.count(), 20) << "of '" << c << "'";
  }
}

}  // namespace
}  // namespace ibid
