#include "worker/engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

namespace ibid {
namespace {

using testing::ElementsAre;

SamplingParams Params(float temperature, uint32_t top_k = 0, float top_p = 1, uint64_t seed = 1) {
  return {temperature, top_k, top_p, seed};
}

// Known answers of Random123 (kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_THAT(Philox4x32({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(
      Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(Philox, UniformIsInRangeAndSpread) {
  double sum = 0;
  std::set<double> values;
  for (uint64_t i = 0; i < 10'000; ++i) {
    const double u = UniformForToken(42, i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    values.insert(u);
  }
  EXPECT_NEAR(sum / 10'000, 0.5, 0.02);
  EXPECT_EQ(values.size(), 10'000);
  EXPECT_NE(UniformForToken(42, 0), UniformForToken(43, 0));
  EXPECT_NE(UniformForToken(42, 0), UniformForToken(42 + (uint64_t{1} << 32), 0));
}

TEST(SampleToken, GreedyTakesTheLowestIdOfEquals) {
  const std::vector<float> logits = {1, 3, 2, 3, 3};
  EXPECT_EQ(SampleToken(logits, Params(0), 0), 1u);
  EXPECT_EQ(SampleToken(logits, Params(2, /*top_k=*/1), 7), 1u);
}

TEST(SampleToken, IgnoresWhatIsNoNumberAndNegativeInfinity) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(SampleToken(std::vector<float>{nan, -inf, 0.5f, nan}, Params(0), 0), 2u);
  for (uint64_t i = 0; i < 50; ++i) {
    EXPECT_EQ(SampleToken(std::vector<float>{nan, -inf, 0.5f, nan}, Params(5, 3, 0.9f), i), 2u);
  }
  EXPECT_EQ(SampleToken(std::vector<float>{nan, nan}, Params(1), 0), 0u);
  EXPECT_EQ(SampleToken(std::vector<float>{1, inf, 2}, Params(1), 0), 1u);
}

TEST(SampleToken, IsAFunctionOfSeedAndIndex) {
  std::vector<float> logits(100);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<float>(i));
  std::set<uint32_t> seen;
  for (uint64_t index = 0; index < 100; ++index) {
    const uint32_t token = SampleToken(logits, Params(1, 0, 1, 9), index);
    EXPECT_EQ(token, SampleToken(logits, Params(1, 0, 1, 9), index));
    seen.insert(token);
  }
  EXPECT_GT(seen.size(), 20);
}

TEST(SampleToken, TopKKeepsTheKLargestAndTheLowestIdsOfEquals) {
  const std::vector<float> logits = {0, 5, 4, 4, 4, 5, -1};
  std::set<uint32_t> seen;
  for (uint64_t i = 0; i < 500; ++i) seen.insert(SampleToken(logits, Params(1, 3), i));
  EXPECT_THAT(seen, ElementsAre(1, 2, 5));
}

TEST(SampleToken, TopPKeepsTheSmallestSetThatReachesP) {
  // Probabilities 0.5, 0.3, 0.15, 0.05.
  const std::vector<float> logits = {std::log(0.15f), std::log(0.5f), std::log(0.05f),
                                     std::log(0.3f)};
  const auto seen_with = [&](float top_p) {
    std::set<uint32_t> seen;
    for (uint64_t i = 0; i < 2'000; ++i) seen.insert(SampleToken(logits, Params(1, 0, top_p), i));
    return seen;
  };
  EXPECT_THAT(seen_with(0.4f), ElementsAre(1));
  EXPECT_THAT(seen_with(0.7f), ElementsAre(1, 3));
  EXPECT_THAT(seen_with(0.9f), ElementsAre(0, 1, 3));
  EXPECT_THAT(seen_with(1), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(seen_with(0), ElementsAre(0, 1, 2, 3));  // off
}

TEST(SampleToken, TopPSortsAsFarAsItMustInALargeVocabulary) {
  std::vector<float> logits(5'000);  // all equal: the nucleus of 0.5 is the lower half of the ids
  std::set<uint32_t> seen;
  for (uint64_t i = 0; i < 500; ++i) seen.insert(SampleToken(logits, Params(1, 0, 0.5f), i));
  EXPECT_LT(*seen.rbegin(), 2'501u);
  EXPECT_GT(*seen.rbegin(), 2'300u);
}

TEST(SampleToken, DrawsInProportionAtTheTemperature) {
  const std::vector<float> logits = {0, std::log(3.0f)};
  const auto share_of_one = [&](float temperature) {
    int ones = 0;
    for (uint64_t i = 0; i < 20'000; ++i) ones += SampleToken(logits, Params(temperature), i) == 1;
    return ones / 20'000.0;
  };
  EXPECT_NEAR(share_of_one(1), 0.75, 0.02);
  EXPECT_NEAR(share_of_one(0.5f), 0.9, 0.02);
  EXPECT_NEAR(share_of_one(100), 0.5, 0.02);
}

TEST(ValidateSampling, NamesTheParameter) {
  EXPECT_TRUE(ValidateSampling(Params(0.7f, 40, 0.9f)).ok());
  EXPECT_THAT(ValidateSampling(Params(-1)).message(), testing::HasSubstr("temperature"));
  EXPECT_THAT(ValidateSampling(Params(std::nanf(""))).message(), testing::HasSubstr("temperature"));
  EXPECT_THAT(ValidateSampling(Params(1, 0, 1.5f)).message(), testing::HasSubstr("top_p"));
}

}  // namespace
}  // namespace ibid
