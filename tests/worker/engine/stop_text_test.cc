#include "worker/engine/stop_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace ibid {
namespace {

// What comes out when `text` goes in, in pieces of the given size.
std::string Filtered(const std::vector<std::string>& stops, const std::string& text,
                     size_t piece_bytes) {
  StopTextFilter filter(stops);
  std::string out;
  for (size_t at = 0; at < text.size() && !filter.is_stopped(); at += piece_bytes) {
    out += filter.Add(text.substr(at, piece_bytes));
  }
  return out + filter.Finish();
}

TEST(StopTextFilter, PassesEverythingWithoutStopTexts) {
  EXPECT_EQ(Filtered({}, "a b c", 2), "a b c");
}

TEST(StopTextFilter, EndsBeforeTheStopTextHoweverItIsCut) {
  for (size_t piece = 1; piece <= 12; ++piece) {
    EXPECT_EQ(Filtered({"stop"}, "do not sto stop here", piece), "do not sto ") << piece;
  }
}

TEST(StopTextFilter, HoldsBackOnlyWhatMayBeAStart) {
  StopTextFilter filter({"\n\nUser:"});
  EXPECT_EQ(filter.Add("Hello"), "Hello");
  EXPECT_EQ(filter.Add(" you\n"), " you");
  EXPECT_EQ(filter.Add("\nUs"), "");
  EXPECT_EQ(filter.Add("e it\n"), "\n\nUse it");
  EXPECT_EQ(filter.Finish(), "\n");
  EXPECT_FALSE(filter.is_stopped());
}

TEST(StopTextFilter, FindsAStopTextThatBeginsInsideAFalseStart) {
  for (size_t piece = 1; piece <= 6; ++piece) EXPECT_EQ(Filtered({"aab"}, "xaaab", piece), "xa");
}

TEST(StopTextFilter, TakesTheStopTextThatIsCompleteFirst) {
  for (size_t piece = 1; piece <= 4; ++piece) {
    EXPECT_EQ(Filtered({"abc", "b"}, "xabc", piece), "xa") << piece;
    EXPECT_EQ(Filtered({"bc", "abc"}, "xabc", piece), "x") << piece;
  }
}

// Against the definition: of all stop texts' ends in the text the first one counts.
TEST(StopTextFilter, EqualsTheDefinitionOnRandomTexts) {
  std::mt19937 random(1);
  for (int round = 0; round < 2'000; ++round) {
    const auto word = [&](size_t bytes) {
      std::string text;
      for (size_t i = 0; i < bytes; ++i) text += static_cast<char>('a' + random() % 2);
      return text;
    };
    std::vector<std::string> stops;
    for (size_t i = 0; i <= random() % 3; ++i) stops.push_back(word(1 + random() % 6));
    const std::string text = word(random() % 20);
    std::string expected = text;
    for (size_t end = 1; end <= text.size() && expected == text; ++end) {
      size_t begin = std::string::npos;
      for (const std::string& stop : stops) {
        if (end >= stop.size() && text.compare(end - stop.size(), stop.size(), stop) == 0) {
          begin = std::min(begin, end - stop.size());
        }
      }
      if (begin != std::string::npos) expected = text.substr(0, begin);
    }
    for (size_t piece : {1, 2, 3, 20})
      ASSERT_EQ(Filtered(stops, text, piece), expected) << text << " round " << round;
  }
}

TEST(ValidateStopTexts, NamesTheLimit) {
  EXPECT_TRUE(ValidateStopTexts({"a", "b"}).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(ValidateStopTexts({""})));
  EXPECT_THAT(ValidateStopTexts(std::vector<std::string>(17, "a")).message(),
              testing::HasSubstr("stop_texts_max=16"));
  EXPECT_THAT(ValidateStopTexts({std::string(1025, 'a')}).message(),
              testing::HasSubstr("stop_text_bytes_max=1024"));
}

}  // namespace
}  // namespace ibid
