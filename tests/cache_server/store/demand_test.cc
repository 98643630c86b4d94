#include "cache_server/demand.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/cache_server/store/store_harness.h"

namespace ibid {
namespace {

BlockKey KeyOf(uint64_t number) {
  BlockKey key;
  std::mt19937_64 random(number);
  for (uint8_t& byte : key.digest) byte = static_cast<uint8_t>(random());
  return key;
}

TEST(HotPrefixesTest, TheFrequentOnesAreFoundAmongManyRareOnes) {
  const NamespaceId ns = NamespaceOf("a");
  HotPrefixes hot(16);
  std::mt19937 random(1);
  std::map<uint64_t, uint64_t> truth;
  for (int i = 0; i < 20'000; ++i) {
    // A third goes to three prefixes, the rest to as many as there are calls.
    const uint64_t key = random() % 3 == 0 ? random() % 3 : 1'000 + static_cast<uint64_t>(i);
    ++truth[key];
    hot.Count(ns, KeyOf(key), static_cast<uint32_t>(key % 7));
  }
  const std::vector<HotPrefix> top = hot.Top(3);
  ASSERT_EQ(top.size(), 3u);
  std::set<BlockKey> found;
  for (const HotPrefix& each : top) found.insert(each.first);
  for (uint64_t key = 0; key < 3; ++key) {
    ASSERT_EQ(found.count(KeyOf(key)), 1u) << key;
    for (const HotPrefix& each : top) {
      if (each.first != KeyOf(key)) continue;
      EXPECT_GE(each.matches, truth[key]);
      EXPECT_LE(each.matches - each.excess, truth[key]);
      EXPECT_EQ(each.longest_match, key % 7);
    }
  }
  EXPECT_EQ(hot.Top(1'000).size(), 16u) << "bounded";
}

TEST(HotPrefixesTest, TheSameKeyOfAnotherNamespaceIsAnotherPrefix) {
  HotPrefixes hot(4);
  hot.Count(NamespaceOf("a"), KeyOf(1), 5);
  hot.Count(NamespaceOf("a"), KeyOf(1), 3);
  hot.Count(NamespaceOf("b"), KeyOf(1), 9);
  const auto top = hot.Top(4);
  ASSERT_EQ(top.size(), 2u);
  EXPECT_EQ(top[0].ns, NamespaceOf("a"));
  EXPECT_EQ(top[0].matches, 2u);
  EXPECT_EQ(top[0].matched_blocks, 8u);
  EXPECT_EQ(top[0].longest_match, 5u);
}

// The estimate against the truth that a set keeps.
TEST(DemandTest, TheInfiniteHitRatioIsThatOfACacheThatForgetsNothing) {
  StoreCounters counters(nullptr);
  const auto demand = std::make_unique<Demand>(counters);
  EXPECT_EQ(demand->infinite_hit_ratio(), 0);
  const NamespaceId ns = NamespaceOf("a");
  std::mt19937 random(2);
  std::set<BlockKey> seen;
  uint64_t asked = 0, known = 0;
  for (int i = 0; i < 3'000; ++i) {
    const auto chain = KeysOf(ChainOf(ns, random() % 900, 10 + random() % 20, /*shared=*/5));
    for (const BlockKey& key : chain) known += seen.insert(key).second ? 0 : 1;
    asked += chain.size();
    demand->Count(ns, chain, 4);
  }
  EXPECT_EQ(counters.asked_keys.value(), asked);
  EXPECT_EQ(counters.matched_keys.value(), 12'000u);
  const auto distinct = static_cast<double>(seen.size());
  EXPECT_NEAR(demand->distinct_keys() / distinct, 1, 0.03);
  const double truth = static_cast<double>(known) / static_cast<double>(asked);
  EXPECT_NEAR(demand->infinite_hit_ratio(), truth, 0.02);
}

}  // namespace
}  // namespace ibid
