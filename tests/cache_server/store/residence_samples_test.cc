#include "cache_server/residence_samples.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace ibid {
namespace {

TEST(ResidenceSamplesTest, AFewBlocksAreAllSampled) {
  ResidenceSamples samples(100);
  const absl::Time now = absl::UnixEpoch();
  for (uint32_t id = 0; id < 50; ++id) samples.OnEnter(id, now + absl::Seconds(id));
  for (uint32_t id = 0; id < 50; ++id) {
    EXPECT_EQ(samples.OnLeave(id, now + absl::Seconds(100)), absl::Seconds(100 - id));
  }
  EXPECT_EQ(samples.size(), 0u);
  EXPECT_EQ(samples.OnLeave(7, now), std::nullopt) << "it is not there any more";
}

// Half of the blocks stay one second, half of them 1,000 seconds: both halves show, in a bounded
// table.
TEST(ResidenceSamplesTest, ManyBlocksStayInBoundsAndLongAndShortStaysAreSampledAlike) {
  ResidenceSamples samples(1'000);
  const absl::Time now = absl::UnixEpoch();
  constexpr uint32_t kBlocks = 100'000;
  for (uint32_t id = 0; id < kBlocks; ++id) {
    samples.OnEnter(id, now);
    ASSERT_LE(samples.size(), 1'000u);
  }
  EXPECT_GE(samples.size(), 400u);
  int short_stays = 0, long_stays = 0;
  for (uint32_t id = 0; id < kBlocks; ++id) {
    const bool is_short = std::minstd_rand(id)() % 2 == 0;
    const auto stay = samples.OnLeave(id, now + absl::Seconds(is_short ? 1 : 1'000));
    if (stay.has_value()) ++(is_short ? short_stays : long_stays);
  }
  EXPECT_EQ(samples.size(), 0u);
  EXPECT_GT(short_stays, 100);
  EXPECT_GT(long_stays, 100);
}

}  // namespace
}  // namespace ibid
