// Rates, latencies and hits by tier from two looks at a server's counters.
#include "client/cli/rates.h"

#include <gtest/gtest.h>

namespace ibid::cli {
namespace {

ServerStats Look(uint64_t incarnation = 1) {
  ServerStats stats;
  stats.incarnation = incarnation;
  return stats;
}

ServerStats::Tier Tier(const std::string& name, uint64_t hits, uint64_t evictions) {
  ServerStats::Tier tier;
  tier.tier = name;
  tier.hits = hits;
  tier.evictions = evictions;
  return tier;
}

// With bounds of 1 ms, 2 ms and 4 ms, and what took longer.
ServerStats::Method Method(const std::string& name, uint64_t calls, std::vector<uint64_t> counts) {
  ServerStats::Method method;
  method.method = name;
  method.calls = calls;
  method.received_bytes = 10 * calls;
  method.sent_bytes = 1'000 * calls;
  method.latency_bounds_seconds = {.001, .002, .004};
  method.latency_counts = std::move(counts);
  return method;
}

TEST(RatesTest, CountersAreThoseOfTheTimeBetween) {
  ServerStats before = Look(), now = Look();
  before.requested_blocks = 100, now.requested_blocks = 180;
  before.missed_blocks = 50, now.missed_blocks = 60;
  before.asked_keys = 7, now.asked_keys = 17;
  before.matched_keys = 5, now.matched_keys = 9;
  before.published_blocks = 1, now.published_blocks = 4;
  before.methods = {Method("Match", 100, {100, 0, 0, 0})};
  now.methods = {Method("Match", 150, {150, 0, 0, 0}), Method("Fetch", 30, {0, 30, 0, 0})};
  const ServerRates rates = RatesBetween(before, now, absl::Seconds(2));
  EXPECT_EQ(rates.requested_blocks, 80u);
  EXPECT_EQ(rates.missed_blocks, 10u);
  EXPECT_EQ(rates.asked_keys, 10u);
  EXPECT_EQ(rates.matched_keys, 4u);
  EXPECT_EQ(rates.published_blocks, 3u);
  EXPECT_DOUBLE_EQ(rates.methods.at("Match").calls_per_second, 25);
  EXPECT_DOUBLE_EQ(rates.methods.at("Fetch").calls_per_second, 15) << "not called before";
  EXPECT_DOUBLE_EQ(rates.received_bytes_per_second, 400);
  EXPECT_DOUBLE_EQ(rates.sent_bytes_per_second, 40'000);
}

TEST(RatesTest, HitsAndEvictionsAreOfEachTier) {
  ServerStats before = Look(), now = Look();
  before.tiers = {Tier("host", 10, 1), Tier("disk", 5, 0)};
  now.tiers = {Tier("gpu", 2, 0), Tier("host", 40, 4), Tier("disk", 5, 2)};
  const ServerRates rates = RatesBetween(before, now, absl::Seconds(1));
  EXPECT_EQ(rates.tier_hits,
            (std::map<std::string, uint64_t>{{"gpu", 2}, {"host", 30}, {"disk", 0}}));
  EXPECT_EQ(rates.tier_evictions,
            (std::map<std::string, uint64_t>{{"gpu", 0}, {"host", 3}, {"disk", 2}}));
}

TEST(RatesTest, QuantilesAreOfTheCallsBetweenAndInterpolateWithinABucket) {
  ServerStats before = Look(), now = Look();
  before.methods = {Method("Match", 1'000, {0, 0, 0, 1'000})};  // slow ones, long ago
  now.methods = {Method("Match", 1'100, {40, 40, 20, 1'000})};
  const MethodRates match = RatesBetween(before, now, absl::Seconds(1)).methods.at("Match");
  EXPECT_DOUBLE_EQ(match.median_seconds, .001 + .001 * 10 / 40);
  EXPECT_DOUBLE_EQ(match.p99_seconds, .002 + .002 * 19 / 20);
  now.methods = {Method("Match", 1'002, {0, 0, 0, 1'002})};
  const MethodRates slow = RatesBetween(before, now, absl::Seconds(1)).methods.at("Match");
  EXPECT_DOUBLE_EQ(slow.median_seconds, .004) << "the last bound is all that is known";
  const MethodRates none = RatesBetween(now, now, absl::Seconds(1)).methods.at("Match");
  EXPECT_EQ(none.calls_per_second, 0);
  EXPECT_EQ(none.median_seconds, 0);
  EXPECT_EQ(none.p99_seconds, 0);
}

TEST(RatesTest, AServerThatWasRestartedCountsFromItsStart) {
  ServerStats before = Look(1), now = Look(2);
  before.requested_blocks = 100, now.requested_blocks = 3;
  before.tiers = {Tier("host", 90, 9)}, now.tiers = {Tier("host", 2, 1)};
  before.methods = {Method("Match", 100, {100, 0, 0, 0})};
  now.methods = {Method("Match", 2, {0, 2, 0, 0})};
  const ServerRates rates = RatesBetween(before, now, absl::Seconds(1));
  EXPECT_EQ(rates.requested_blocks, 3u);
  EXPECT_EQ(rates.tier_hits.at("host"), 2u);
  EXPECT_EQ(rates.tier_evictions.at("host"), 1u);
  EXPECT_DOUBLE_EQ(rates.methods.at("Match").calls_per_second, 2);
  EXPECT_DOUBLE_EQ(rates.methods.at("Match").median_seconds, .0015);
}

TEST(RatesTest, CountersThatWentBackAndMoreBucketsThanBoundsDoNoHarm) {
  ServerStats before = Look(), now = Look();
  before.requested_blocks = 9, now.requested_blocks = 3;
  before.tiers = {Tier("host", 9, 9)};
  now.tiers = {Tier("host", 3, 3)};
  now.methods = {Method("Match", 5, {1, 1, 1, 1, 1, 1})};
  const ServerRates rates = RatesBetween(before, now, absl::ZeroDuration());
  EXPECT_EQ(rates.requested_blocks, 0u);
  EXPECT_EQ(rates.tier_hits.at("host"), 0u);
  EXPECT_FALSE(rates.methods.contains("Match")) << "malformed";
}

}  // namespace
}  // namespace ibid::cli
