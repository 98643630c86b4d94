// Malformed and unsupported tokenizer files: an error that names file and reason, never a crash.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/tokenizer/tokenizer.h"
#include "worker/tokenizer/tokenizer_files.h"
#include "worker/tokenizer/utf8.h"

namespace ibid {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

class FilesTest : public ::testing::Test {
 protected:
  FilesTest() {
    std::string path = ::testing::TempDir() + "/ibid_tokenizer_XXXXXX";
    if (mkdtemp(path.data()) == nullptr) std::abort();
    folder_ = path;
  }
  ~FilesTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << text;
  }
  std::string ErrorOf(const json& tokenizer) {
    Write("tokenizer.json", tokenizer.dump());
    return LoadError();
  }
  std::string LoadError() {
    const auto loaded = Tokenizer::Load(folder_);
    return loaded.ok() ? "loaded" : std::string(loaded.status().message());
  }

  std::string folder_;
};

json Minimal() {
  return json::parse(R"({
    "added_tokens": [{"id": 4, "content": "<e>", "special": true}],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3}, "merges": ["a b"]}})");
}

TEST_F(FilesTest, TheMinimalFileLoadsWithMergesOfBothForms) {
  json tokenizer = Minimal();
  EXPECT_EQ(ErrorOf(tokenizer), "loaded");
  tokenizer["model"]["merges"] = json::parse(R"([["a", "b"]])");
  EXPECT_EQ(ErrorOf(tokenizer), "loaded");
  const auto loaded = Tokenizer::Load(folder_);
  EXPECT_EQ(*(*loaded)->Encode("ab a<e>"), (std::vector<uint32_t>{2, 3, 0, 4}));
}

TEST_F(FilesTest, WhatIsNotSupportedIsNamed) {
  const std::pair<const char*, const char*> changes[] = {
      {R"({"model": {"type": "WordPiece"}})", "WordPiece"},
      {R"({"model": {"byte_fallback": true}})", "byte_fallback"},
      {R"({"model": {"dropout": 0.1}})", "dropout"},
      {R"({"model": {"end_of_word_suffix": "</w>"}})", "end_of_word_suffix"},
      {R"({"normalizer": {"type": "Lowercase"}})", "Lowercase"},
      {R"({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}]}})", "NFKC"},
      {R"({"pre_tokenizer": {"type": "Metaspace"}})", "Metaspace"},
      {R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Sequence"}]}})",
       "Sequence"},
      {R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a("}, "behavior": "Isolated"}})",
       "a("},
      {R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "MergedWithNext"}})",
       "MergedWithNext"},
      {R"({"decoder": {"type": "WordPiece"}})", "decoder"},
      {R"({"post_processor": {"type": "BertProcessing"}})", "BertProcessing"},
      {R"({"added_tokens": [{"id": 4, "content": "<e>", "single_word": true}]})", "single_word"},
  };
  for (const auto& [change, name] : changes) {
    json tokenizer = Minimal();
    tokenizer.merge_patch(json::parse(change));
    EXPECT_THAT(ErrorOf(tokenizer), HasSubstr(name)) << change;
    EXPECT_THAT(LoadError(), HasSubstr("tokenizer.json")) << change;
  }
}

TEST_F(FilesTest, MalformedPartsAreNamed) {
  const std::pair<const char*, const char*> changes[] = {
      {R"({"model": 3})", "model"},
      {R"({"model": {"vocab": []}})", "model.vocab"},
      {R"({"model": {"vocab": {"a": -1}}})", "'a'"},
      {R"({"model": {"vocab": {"a": 1.5}}})", "'a'"},
      {R"({"model": {"vocab": {"a": 4294967296}}})", "'a'"},
      {R"({"model": {"vocab": {"x": 0}}})", "two tokens"},
      {R"({"model": {"merges": 1}})", "model.merges"},
      {R"({"model": {"merges": ["ab"]}})", "entry 0"},
      {R"({"model": {"merges": ["a b c"]}})", "entry 0"},
      {R"({"model": {"merges": [["a"]]}})", "entry 0"},
      {R"({"model": {"merges": ["a q"]}})", "no token"},
      {R"({"model": {"merges": ["b a"]}})", "no token"},
      {R"({"model": {"merges": ["a 你"]}})", "alphabet"},
      {R"({"model": {"unk_token": "?"}})", "'?'"},
      {R"({"added_tokens": {}})", "added_tokens"},
      {R"({"added_tokens": [{"id": 4}]})", "entry 0"},
      {R"({"added_tokens": [{"id": 4, "content": ""}]})", "empty"},
      {R"({"added_tokens": [{"id": 9999999, "content": "x"}]})", "entry 0"},
      {R"({"added_tokens": [{"id": 4, "content": "x"}, {"id": 5, "content": "x"}]})", "twice"},
      {R"({"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "z"}}]}})",
       "'z'"},
      {R"({"pre_tokenizer": null})", "ByteLevel"},
  };
  for (const auto& [change, name] : changes) {
    json tokenizer = Minimal();
    tokenizer.merge_patch(json::parse(change));
    EXPECT_THAT(ErrorOf(tokenizer), HasSubstr(name)) << change;
  }
}

TEST_F(FilesTest, EveryTruncationOfAFileIsAnErrorOrLoads) {
  const std::string text = Minimal().dump();
  for (size_t length = 0; length < text.size(); length += 3) {
    Write("tokenizer.json", text.substr(0, length));
    EXPECT_THAT(LoadError(), HasSubstr("tokenizer.json")) << length;
  }
}

TEST_F(FilesTest, ChangedBytesNeverCrash) {
  const std::string text = Minimal().dump();
  for (size_t at = 0; at < text.size(); at += 3) {
    for (const char byte : {'\0', '"', '{', '9', '\xff', ']'}) {
      std::string changed = text;
      changed[at] = byte;
      Write("tokenizer.json", changed);
      const auto loaded = Tokenizer::Load(folder_);
      if (loaded.ok()) (void)(*loaded)->Encode("ab <e> x");
    }
  }
}

TEST_F(FilesTest, DeeplyNestedJsonIsAnError) {
  Write("tokenizer.json",
        "{\"model\": " + std::string(200000, '[') + std::string(200000, ']') + "}");
  EXPECT_THAT(LoadError(), HasSubstr("model"));
}

TEST_F(FilesTest, TheTemplateOfThePostProcessorPutsIdsAroundTheText) {
  json tokenizer = Minimal();
  tokenizer["post_processor"] =
      json::parse(R"({"type": "Sequence", "processors": [{"type": "ByteLevel"},
      {"type": "TemplateProcessing",
       "single": [{"SpecialToken": {"id": "<e>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
       "special_tokens": {"<e>": {"id": "<e>", "ids": [4], "tokens": ["<e>"]}}}]})");
  ASSERT_EQ(ErrorOf(tokenizer), "loaded");
  const auto loaded = Tokenizer::Load(folder_);
  EXPECT_EQ(*(*loaded)->Encode("a", {.adds_special = true}), (std::vector<uint32_t>{4, 0}));
  EXPECT_EQ(*(*loaded)->Encode("a"), (std::vector<uint32_t>{0}));
}

TEST_F(FilesTest, SequenceEndsComeFromTheTokenizersConfig) {
  Write("tokenizer.json", Minimal().dump());
  Write("tokenizer_config.json", R"({"bos_token": {"content": "a"}, "eos_token": "<e>"})");
  const auto loaded = Tokenizer::Load(folder_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->bos_id(), 0u);
  EXPECT_EQ((*loaded)->eos_id(), 4u);
}

TEST_F(FilesTest, VocabAndMergesTakeUnreachableTokensAsSpecial) {
  Write("vocab.json", R"({"a": 0, "b": 1, "ab": 2, "<|x|>": 3})");
  Write("merges.txt", "#version: 0.2\na b\n");
  const auto loaded = Tokenizer::Load(folder_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(*(*loaded)->Encode("ab<|x|>a"), (std::vector<uint32_t>{2, 3, 0}));
  EXPECT_TRUE((*loaded)->is_special(3));
  EXPECT_EQ((*loaded)->Encode("c").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(FilesTest, HalfATokenizerIsNoneAndSaysWhatIsMissing) {
  Write("vocab.json", R"({"a": 0, "b": 1, "ab": 2})");
  EXPECT_THAT(LoadError(), AllOf(HasSubstr("vocab.json"), HasSubstr("merges.txt is missing")));
  EXPECT_TRUE(absl::IsInvalidArgument(Tokenizer::Load(folder_).status()));
  std::filesystem::rename(folder_ + "/vocab.json", folder_ + "/merges.txt");
  EXPECT_THAT(LoadError(), HasSubstr("vocab.json is missing"));
}

TEST_F(FilesTest, MalformedVocabAndMergesAreNamed) {
  Write("vocab.json", R"({"a": 0, "b": 1, "ab": 2})");
  Write("merges.txt", "a b\nq\n");
  EXPECT_THAT(LoadError(), HasSubstr("merges.txt: line 2"));
  Write("merges.txt", "a b\n");
  Write("added_tokens.json", R"({"x": "y"})");
  EXPECT_THAT(LoadError(), HasSubstr("added_tokens.json"));
  Write("added_tokens.json", "{}");
  Write("vocab.json", "[");
  EXPECT_THAT(LoadError(), HasSubstr("vocab.json"));
}

TEST_F(FilesTest, AnEmptyFolderNamesWhatWasLookedFor) {
  EXPECT_THAT(LoadError(), HasSubstr("tokenizer.json"));
}

TEST_F(FilesTest, ATruncatedLlama2cFileIsAnError) {
  std::string bytes("\7\0\0\0", 4);
  for (int i = 0; i < 300; ++i) bytes += std::string("\0\0\0\0\1\0\0\0", 8) + "x";
  EXPECT_TRUE(ParseLlama2cTokenizer(bytes, "t").ok());
  for (const size_t length : {size_t{0}, size_t{3}, size_t{5}, size_t{11}, bytes.size() - 1}) {
    EXPECT_THAT(std::string(ParseLlama2cTokenizer(bytes.substr(0, length), "t").status().message()),
                HasSubstr("t: "));
  }
}

}  // namespace
}  // namespace ibid
