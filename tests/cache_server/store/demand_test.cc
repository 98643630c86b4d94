#include "cache_server/demand.h"

#include <gtest/gtest.h>

#include <cmath>
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

constexpr uint64_t kNoFading = uint64_t{1} << 50;  // lookups

TEST(HotPrefixesTest, TheFrequentOnesAreFoundAmongManyRareOnes) {
  const NamespaceId ns = NamespaceOf("a");
  HotPrefixes hot(16, kNoFading);
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
  HotPrefixes hot(4, kNoFading);
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

TEST(HotPrefixesTest, ALookupCountsHalfAfterEachHalfLife) {
  const NamespaceId ns = NamespaceOf("a");
  HotPrefixes hot(4, /*half_life_lookups=*/1'000);
  for (int i = 0; i < 100; ++i) hot.Count(ns, KeyOf(1), 3);
  const uint64_t before = hot.Top(1)[0].matches;
  EXPECT_GE(before, 96u);
  EXPECT_LE(before, 100u);
  for (int i = 0; i < 2'000; ++i) hot.Count(ns, KeyOf(2), 5);
  const std::vector<HotPrefix> top = hot.Top(2);
  ASSERT_EQ(top.size(), 2u);
  EXPECT_EQ(top[0].first, KeyOf(2)) << "what is asked for now comes first";
  EXPECT_EQ(top[1].first, KeyOf(1));
  EXPECT_NEAR(static_cast<double>(top[1].matches), static_cast<double>(before) / 4, 1);
  EXPECT_NEAR(static_cast<double>(top[1].matched_blocks), 3 * static_cast<double>(before) / 4, 3);
}

TEST(HotPrefixesTest, WhatNobodyAsksForAnyMoreIsForgottenHoweverHotItWas) {
  const NamespaceId ns = NamespaceOf("a");
  HotPrefixes hot(4, /*half_life_lookups=*/100);
  for (int i = 0; i < 50'000; ++i) hot.Count(ns, KeyOf(1), 3);
  EXPECT_NEAR(static_cast<double>(hot.Top(1)[0].matches), 100 / std::log(2), 2)
      << "the sum of all that fades, also past the end of what a double counts exactly";
  for (int i = 0; i < 2'000; ++i) hot.Count(ns, KeyOf(2), 3);
  const std::vector<HotPrefix> top = hot.Top(4);
  ASSERT_EQ(top.size(), 1u);
  EXPECT_EQ(top[0].first, KeyOf(2));
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

// 43: an estimate must not say that a cache without end would have had less than this one.
TEST(DemandTest, TheInfiniteHitRatioIsNoLessThanWhatWasFound) {
  StoreCounters counters(nullptr);
  const auto demand = std::make_unique<Demand>(counters);
  const NamespaceId ns = NamespaceOf("a");
  // After a restart a store has keys that nobody asked it for before.
  const auto chain = KeysOf(ChainOf(ns, 1, 20));
  demand->Count(ns, chain, 15);
  EXPECT_EQ(demand->infinite_hit_ratio(), 0.75);
}

}  // namespace
}  // namespace ibid
