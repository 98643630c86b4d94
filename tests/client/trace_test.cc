#include "client/replay/trace.h"

#include <sstream>

#include "core/limit.h"
#include "gmock/gmock.h"

namespace ibid {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<Trace> Parse(const std::string& text) {
  std::istringstream lines(text);
  return ParseTrace(lines, "folder/some_trace.jsonl", /*block_tokens=*/10);
}

std::string Line(int timestamp, int tokens, const std::string& ids) {
  return "{\"timestamp\": " + std::to_string(timestamp) +
         ", \"input_length\": " + std::to_string(tokens) + ", \"hash_ids\": [" + ids + "]}\n";
}

TEST(Trace, NumbersBlocksInOrderOfTheirFirstRequestAndKnowsTheirParents) {
  const auto trace =
      Parse(Line(0, 20, "70, 71") + "\n" + Line(5, 25, "70, 90, 18446744073709551615"));
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->name, "some_trace");
  EXPECT_EQ(trace->input_tokens, 45u);
  EXPECT_EQ(trace->blocks_count(), 4u);
  EXPECT_THAT(trace->ChainOf(trace->requests[0]), ElementsAre(0, 1));
  EXPECT_THAT(trace->ChainOf(trace->requests[1]), ElementsAre(0, 2, 3));
  EXPECT_THAT(trace->parents, ElementsAre(kNoEntry, 0, 0, 2));
  EXPECT_FALSE(trace->HasTail(trace->requests[0]));
  EXPECT_TRUE(trace->HasTail(trace->requests[1]));
}

TEST(Trace, BlocksAreCutIntoSmallerOnesUpToTheShortestRequestThatEndsInThem) {
  const auto trace = Parse(Line(0, 17, "5, 6") + Line(1, 20, "5, 7") + Line(2, 30, "5, 7, 8"));
  ASSERT_TRUE(trace.ok()) << trace.status();
  const auto split = SplitBlocks(*trace, 5);
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->block_tokens, 5u);
  EXPECT_EQ(split->input_tokens, 67u);
  EXPECT_THAT(split->ChainOf(split->requests[0]), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(split->ChainOf(split->requests[1]), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(split->ChainOf(split->requests[2]), ElementsAre(0, 1, 4, 5, 6, 7));
  EXPECT_THAT(split->parents, ElementsAre(kNoEntry, 0, 1, 2, 1, 4, 5, 6));
  EXPECT_TRUE(split->HasTail(split->requests[0]));
  EXPECT_THAT(SplitBlocks(*trace, 4).status().message(), HasSubstr("blocks of 10 tokens"));
  EXPECT_FALSE(SplitBlocks(*trace, 0).ok());
}

TEST(Trace, TheLastLineMayLackItsEndAndLinesMayEndWithCarriageReturns) {
  std::string text = Line(0, 5, "1") + Line(1, 5, "1");
  text.insert(text.find('\n'), "\r");
  text.pop_back();
  const auto trace = Parse(text);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->requests.size(), 2u);
}

TEST(Trace, AWrongLineIsNamedWithWhatToChange) {
  const std::string good = Line(7, 15, "1, 2");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"hello\n", "is no JSON object"},
      {"[1, 2]\n", "is no JSON object"},
      {"{\"timestamp\": 8", "is no JSON object"},
      {std::string(100'000, '['), "is no JSON object"},
      {good.substr(0, good.size() - 1) + std::string("\0x\n", 3), "is no JSON object"},
      {"{\"input_length\": 5, \"hash_ids\": [1]}\n", "\"timestamp\" is no number"},
      {"{\"timestamp\": 8, \"hash_ids\": [1]}\n", "\"input_length\" is no count"},
      {Line(8, 0, ""), "\"input_length\" is no count"},
      {Line(8, -5, "1"), "\"input_length\" is no count"},
      {"{\"timestamp\": 8, \"input_length\": 4294967296, \"hash_ids\": []}\n",
       "\"input_length\" is no count"},
      {"{\"timestamp\": 8, \"input_length\": 5}\n", "\"hash_ids\" is no array"},
      {Line(8, 15, "1"), "is 2 blocks of 10 tokens, but there are 1 hash_ids"},
      {Line(8, 15, "1, -2"), "a hash id is no unsigned number"},
      {Line(8, 15, "1, 2.5"), "a hash id is no unsigned number"},
      {Line(8, 15, "2, 1"), "hash id 2 follows another one than before"},
      {Line(8, 15, "1, 1"), "hash id 1 follows another one than before"},
      {Line(6, 15, "1, 2"), "sort the trace"}};
  for (const auto& [line, text] : cases) {
    const auto trace = Parse(good + line);
    EXPECT_TRUE(absl::IsInvalidArgument(trace.status())) << line.substr(0, 60);
    EXPECT_THAT(trace.status().message(), HasSubstr("some_trace.jsonl:2: "));
    EXPECT_THAT(trace.status().message(), HasSubstr(text));
  }
}

TEST(Trace, AnEmptyTraceIsRefused) {
  EXPECT_THAT(Parse("").status().message(), HasSubstr("has no request"));
  EXPECT_THAT(Parse("\n \n").status().message(), HasSubstr("has no request"));
}

TEST(Trace, ALineWithoutEndIsRefusedAtItsLimit) {
  const auto trace = Parse(Line(0, 5, "1") + std::string(kTraceLineBytesMax + 10, ' '));
  EXPECT_TRUE(absl::IsResourceExhausted(trace.status())) << trace.status();
  EXPECT_EQ(LimitOf(trace.status()), (Limit{"kTraceLineBytesMax", kTraceLineBytesMax}));
}

TEST(Trace, AFileThatIsNotThereAndAFolderAreToldApart) {
  EXPECT_TRUE(absl::IsNotFound(ReadTrace("/nowhere/trace.jsonl", 10).status()));
  EXPECT_THAT(ReadTrace("/tmp", 10).status().message(), HasSubstr("is a folder"));
}

}  // namespace
}  // namespace ibid
