// The baselines and bounds on two real traces, against what an independent simulator of the same
// definitions printed, which has no leaf rule and touches blocks in another order: ARC and
// s3fifo-60 differ by up to .0046 for that. hazard has no other implementation: its row is what it
// reached when it was written, so that a change shows.
#include <cstdio>
#include <filesystem>
#include <iostream>

#include "client/replay/replay.h"
#include "gmock/gmock.h"

namespace ibid {
namespace {

constexpr uint32_t kBlockTokens = 512;
constexpr double kFractions[] = {0.01, 0.02, 0.05, 0.10, 0.20, 0.40};

struct GoldenRow {
  const char* policy;
  double conversation[std::size(kFractions)];
  double synthetic[std::size(kFractions)];
  double tolerance;
};

constexpr GoldenRow kRows[] = {
    {"lru",
     {.0535, .0808, .1996, .2844, .3521, .3675},
     {.0388, .0793, .1596, .2673, .4003, .5551},
     .003},
    {"arc",
     {.0662, .0918, .2143, .2899, .3264, .3667},
     {.0430, .0835, .1664, .2707, .4134, .5823},
     .005},
    {"s3fifo-10",
     {.0771, .1103, .1948, .2485, .3128, .3667},
     {.0398, .0836, .1595, .2748, .4092, .5854},
     .003},
    {"s3fifo-60",
     {.0677, .1024, .2185, .2950, .3416, .3667},
     {.0402, .0837, .1588, .2635, .4090, .5599},
     .005},
    {"hazard",
     {.0955, .1528, .2329, .3043, .3560, .3677},
     {.0466, .0886, .1692, .2847, .4338, .5804},
     .001},
    {"min",
     {.2512, .3204, .3736, .3736, .3736, .3736},
     {.1889, .2662, .4030, .5156, .6191, .6512},
     .00005},
    {"infinite",
     {.3736, .3736, .3736, .3736, .3736, .3736},
     {.6512, .6512, .6512, .6512, .6512, .6512},
     .00005},
};

void ExpectRows(const std::string& file, auto ratios_of) {
  const std::string path = std::string(IBID_SHARED_DATA "/traces/") + file;
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent";
  const absl::StatusOr<Trace> trace = ReadTrace(path, kBlockTokens);
  ASSERT_TRUE(trace.ok()) << trace.status();
  for (const GoldenRow& row : kRows) {
    for (size_t i = 0; i < std::size(kFractions); ++i) {
      const auto result = ReplayTrace(*trace, row.policy, CapacityBlocks(*trace, kFractions[i]));
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_NEAR(result->token_hit_ratio(), ratios_of(row)[i], row.tolerance)
          << row.policy << " at " << kFractions[i];
    }
  }
}

TEST(ReplayGolden, PoliciesReachTheSameRatiosOnTheConversationTrace) {
  ExpectRows("mooncake_fast25_conversation_trace.jsonl",
             [](const GoldenRow& row) { return row.conversation; });
}

TEST(ReplayGolden, PoliciesReachTheSameRatiosOnTheSyntheticTrace) {
  ExpectRows("mooncake_fast25_synthetic_trace.jsonl",
             [](const GoldenRow& row) { return row.synthetic; });
}

}  // namespace
}  // namespace ibid
