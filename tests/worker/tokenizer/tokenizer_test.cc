// The parts of the tokenizer: characters, merges, pieces, streaming.
#include "worker/tokenizer/tokenizer.h"

#include <map>
#include <random>

#include "gtest/gtest.h"
#include "worker/tokenizer/byte_level_tokenizer.h"
#include "worker/tokenizer/pair_merger.h"
#include "worker/tokenizer/pre_tokenizer.h"
#include "worker/tokenizer/utf8.h"

namespace ibid {
namespace {

std::vector<std::string> Pieces(const PreTokenizer& pre_tokenizer, absl::string_view text) {
  std::vector<std::string> pieces;
  const absl::Status status = pre_tokenizer.ForEachPiece(text, [&](absl::string_view piece) {
    pieces.emplace_back(piece);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return pieces;
}

using Strings = std::vector<std::string>;

TEST(Utf8, ReplacesEachBrokenPartOnceAndKeepsTheRest) {
  std::string text;
  EXPECT_EQ(AppendAsUtf8("a\xff\xe2\x82z\xf0\x9f\x98\x80\xed\xa0\x80\xc0\x80", true, &text), 0u);
  EXPECT_EQ(text, "a\ufffd\ufffdz\U0001f600\ufffd\ufffd\ufffd\ufffd\ufffd");
}

TEST(Utf8, HoldsBackAnUnfinishedCharacterUntilTheEnd) {
  std::string text;
  EXPECT_EQ(AppendAsUtf8("x\xf0\x9f\x98", false, &text), 3u);
  EXPECT_EQ(text, "x");
  EXPECT_EQ(AppendAsUtf8("\xf0\x9f\x98", true, &text), 0u);
  EXPECT_EQ(text, "x\ufffd");
}

TEST(PreTokenizerTest, Gpt2PatternKeepsTheLastSpaceOfARunWithTheWord) {
  PreTokenizer p;
  ASSERT_TRUE(p.AddSplit(kGpt2Pattern).ok());
  EXPECT_EQ(Pieces(p, "Hello  world's 123!\n"),
            (Strings{"Hello", " ", " world", "'s", " 123", "!", "\n"}));
  EXPECT_EQ(Pieces(p, ""), Strings{});
}

TEST(PreTokenizerTest, Qwen2PatternTakesOneDigitAndOneSignBeforeLetters) {
  PreTokenizer p;
  ASSERT_TRUE(p.AddSplit(kQwen2Pattern).ok());
  EXPECT_EQ(Pieces(p, "(self.x2 12'LL\n\n"),
            (Strings{"(self", ".x", "2", " ", "1", "2", "'LL", "\n\n"}));
}

TEST(PreTokenizerTest, Llama3PatternTakesUpToThreeDigits) {
  PreTokenizer p;
  ASSERT_TRUE(p.AddSplit(kLlama3Pattern).ok());
  EXPECT_EQ(Pieces(p, "12345"), (Strings{"123", "45"}));
}

TEST(PreTokenizerTest, DigitsComeApartBeforeTheWordPattern) {
  PreTokenizer p;
  ASSERT_TRUE(p.AddSplit(kDigitPattern).ok());
  ASSERT_TRUE(p.AddSplit(kGpt2Pattern).ok());
  EXPECT_EQ(Pieces(p, "a 12b"), (Strings{"a", " ", "1", "2", "b"}));
}

TEST(PreTokenizerTest, BytesThatAreNoUtf8ArePiecesToo) {
  PreTokenizer p;
  ASSERT_TRUE(p.AddSplit(kGpt2Pattern).ok());
  std::string all;
  for (const std::string& piece : Pieces(p, "ab\xff\xfe cd\xe2\x82")) all += piece;
  EXPECT_EQ(all, "ab\xff\xfe cd\xe2\x82");
}

TEST(PreTokenizerTest, RemovedMatchesAndGapsAreLeftOut) {
  PreTokenizer matches, gaps;
  ASSERT_TRUE(matches.AddSplit(R"(\s+)", /*drops_matches=*/true).ok());
  ASSERT_TRUE(gaps.AddSplit(R"(\w+)", false, /*drops_gaps=*/true).ok());
  EXPECT_EQ(Pieces(matches, " a  b "), (Strings{"a", "b"}));
  EXPECT_EQ(Pieces(gaps, " a  b "), (Strings{"a", "b"}));
}

TEST(PreTokenizerTest, EmptyMatchesCutNothingAndEnd) {
  PreTokenizer p;
  ASSERT_TRUE(p.AddSplit("x*").ok());
  EXPECT_EQ(Pieces(p, "äxxb"), (Strings{"ä", "xx", "b"}));
}

TEST(PreTokenizerTest, ABrokenPatternIsRefusedWithItsPlace) {
  PreTokenizer p;
  const absl::Status status = p.AddSplit("a(b");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("a(b"), absl::string_view::npos);
}

TEST(PreTokenizerTest, NfcComposesValidTextAndLeavesOtherBytesAlone) {
  PreTokenizer p;
  p.SetNfc();
  EXPECT_EQ(*p.Normalize("cafe\u0301"), "caf\u00e9");
  EXPECT_EQ(*p.Normalize("e\u0301\xff"), "e\u0301\xff");
}

// Random merge tables over few symbols: equal to looking for the best pair again after each merge.
TEST(MergePairsTest, GivesWhatRepeatedSearchForTheBestPairGives) {
  std::mt19937 chance(7);
  for (int round = 0; round < 2000; ++round) {
    std::map<std::pair<uint32_t, uint32_t>, std::pair<int, uint32_t>> table;
    for (uint32_t i = 0; i < 12; ++i) {
      table.emplace(std::pair(chance() % (4 + i), chance() % (4 + i)),
                    std::pair(int(chance() % 8), 4 + i));
    }
    const auto find = [&](uint32_t left, uint32_t right) -> std::optional<Merge<int>> {
      const auto found = table.find({left, right});
      if (found == table.end()) return std::nullopt;
      return Merge<int>{found->second.first, found->second.second};
    };
    std::vector<uint32_t> symbols(chance() % 40);
    for (uint32_t& symbol : symbols) symbol = chance() % 4;
    std::vector<uint32_t> plain = symbols;
    while (true) {
      std::optional<Merge<int>> best;
      size_t at = 0;
      for (size_t i = 0; i + 1 < plain.size(); ++i) {
        const auto merge = find(plain[i], plain[i + 1]);
        if (merge && (!best || merge->rank < best->rank)) best = merge, at = i;
      }
      if (!best) break;
      plain[at] = best->merged;
      plain.erase(plain.begin() + at + 1);
    }
    MergePairs<int>(&symbols, find);
    ASSERT_EQ(symbols, plain) << "round " << round;
  }
}

// Single bytes, the merges given, and special tokens after them.
std::unique_ptr<ByteLevelTokenizer> SmallTokenizer(std::vector<AddedToken> added) {
  ByteLevelParts parts;
  uint32_t next = 0;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    for (uint32_t code_point = 0; code_point < 0x200; ++code_point) {
      std::string text;
      AppendCodePoint(code_point, &text);
      const auto bytes = BytesOfAlphabet(text);
      if (bytes && static_cast<uint8_t>((*bytes)[0]) == byte)
        parts.vocabulary.emplace_back(text, next++);
    }
  }
  parts.vocabulary.emplace_back("ab", next++);
  parts.merges = {{"a", "b"}};
  for (AddedToken& token : added) token.id = next++;
  parts.added = std::move(added);
  EXPECT_TRUE(parts.pre_tokenizer.AddSplit(kGpt2Pattern).ok());
  auto made = ByteLevelTokenizer::Make(std::move(parts), "test");
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? *std::move(made) : nullptr;
}

TEST(ByteLevel, SpecialTokensInTextAreFoundLongestFirstAndOnlyWhenAsked) {
  const auto t = SmallTokenizer({{0, "<|a|>", true}, {0, "<|a|>b", true}, {0, "<tool>", false}});
  EXPECT_EQ(*t->Encode("x<|a|>ab<|a|>b<tool>", {}),
            (std::vector<uint32_t>{'x', 257, 256, 258, 259}));
  const auto plain = *t->Encode("<|a|><tool>", {.parses_special = false});
  EXPECT_EQ(plain, (std::vector<uint32_t>{'<', '|', 'a', '|', '>', 259}));
  EXPECT_EQ(t->Decode({257, 'x'}, /*skips_special=*/true), "x");
  EXPECT_EQ(t->Decode({257, 'x'}), "<|a|>x");
}

TEST(ByteLevel, AddedTokensTakeTheWhiteSpaceTheyStrip) {
  const auto t = SmallTokenizer({{0, "<m>", true, true, true}});
  EXPECT_EQ(*t->Encode("x \u00a0<m>\n y", {}), (std::vector<uint32_t>{'x', 257, 'y'}));
}

TEST(ByteLevel, EveryByteStringComesBack) {
  const auto t = SmallTokenizer({});
  std::mt19937 chance(3);
  for (int round = 0; round < 200; ++round) {
    std::string bytes(chance() % 50, '\0');
    for (char& byte : bytes) byte = static_cast<char>(chance());
    const auto ids = t->Encode(bytes, {});
    ASSERT_TRUE(ids.ok()) << ids.status();
    std::string back;
    for (const uint32_t id : *ids) back += std::string(t->TokenBytes(id));
    ASSERT_EQ(back, bytes);
  }
}

TEST(ByteLevel, StreamedPiecesAreWholeCharactersAndJoinToTheDecodedText) {
  const auto t = SmallTokenizer({{0, "<e>", true}});
  std::mt19937 chance(5);
  const std::string alphabet[] = {"a", "é", "你", "😀", "\xff", "\xe4\xbd", "\xf0\x9f"};
  for (int round = 0; round < 200; ++round) {
    std::string bytes;
    for (int i = 0; i < 10; ++i) bytes += alphabet[chance() % 7];
    const std::vector<uint32_t> ids = *t->Encode(bytes, {});
    StreamDecoder decoder(t.get());
    std::string text;
    for (const uint32_t id : ids) {
      const std::string piece = decoder.Add(id);
      std::string valid;
      AppendAsUtf8(piece, true, &valid);
      EXPECT_EQ(piece, valid);
      text += piece;
    }
    text += decoder.Finish();
    ASSERT_EQ(text, t->Decode(ids));
  }
}

TEST(ByteLevel, IdsOutsideTheVocabularyHaveNoBytes) {
  const auto t = SmallTokenizer({});
  EXPECT_EQ(t->Decode({'a', 100000, 'b'}), "ab");
  EXPECT_FALSE(t->is_special(100000));
}

TEST(ByteLevel, ATextBeyondTheLimitIsRefusedByItsName) {
  const auto t = SmallTokenizer({});
  const absl::Status status = t->Encode(std::string(kEncodeTextBytesMax + 1, 'a'), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("kEncodeTextBytesMax"), absl::string_view::npos);
}

}  // namespace
}  // namespace ibid
