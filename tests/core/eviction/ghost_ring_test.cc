#include "core/eviction/ghost_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>

namespace ibid {
namespace {

TEST(GhostRing, ForgetsTheOldestOnceItIsFull) {
  GhostRing ring(/*places_max=*/2000);
  for (uint64_t i = 0; i < 2000; ++i) {
    EXPECT_FALSE(ring.Insert(i, static_cast<uint32_t>(i) + 7).has_value());
  }
  EXPECT_EQ(ring.Insert(5000, 1), 7u);
  EXPECT_EQ(ring.Find(0), GhostRing::kNone);
  EXPECT_EQ(ring.value(ring.Find(1)), 8u);
  EXPECT_EQ(ring.count(), 2000u);
}

TEST(GhostRing, AnEmptyRingFindsNothing) {
  const GhostRing ring;
  EXPECT_EQ(ring.Find(3), GhostRing::kNone);
}

TEST(GhostRing, RemembersExactlyWhatAModelRemembersWhileTheLimitGrows) {
  std::mt19937_64 random(3);
  uint32_t limit = 1500;
  GhostRing ring(limit);
  std::map<uint64_t, uint32_t> model;
  for (uint32_t step = 0; step < 50'000; ++step) {
    const uint64_t fingerprint = random() % 6'000;
    const uint32_t place = ring.Find(fingerprint);
    ASSERT_EQ(place != GhostRing::kNone, model.contains(fingerprint)) << step;
    if (place != GhostRing::kNone) {
      ASSERT_EQ(ring.value(place), model[fingerprint]);
      ring.Erase(place);
      model.erase(fingerprint);
    } else {
      const auto forgotten = ring.Insert(fingerprint, step);
      model[fingerprint] = step;
      if (forgotten.has_value()) {
        const auto oldest =
            std::min_element(model.begin(), model.end(),
                             [](const auto& a, const auto& b) { return a.second < b.second; });
        ASSERT_EQ(*forgotten, oldest->second) << "the oldest goes";
        model.erase(oldest);
      }
    }
    ASSERT_EQ(ring.count(), model.size());
    ASSERT_LE(ring.count(), limit);
    if (step == 20'000) ring.RaiseLimit(limit = 4'000);
  }
}

// The places of those that were erased among the others are used again.
TEST(GhostRing, ForgetsByCountExactlyWhatAModelForgetsInFewMorePlaces) {
  constexpr size_t kGhostsMax = 3'000;
  std::mt19937_64 random(5);
  GhostRing ring;
  std::deque<uint64_t> model;  // oldest first
  for (uint32_t step = 0; step < 50'000; ++step) {
    const uint64_t fingerprint = random() % 9'000;
    const auto found = std::find(model.begin(), model.end(), fingerprint);
    ASSERT_EQ(ring.EraseIfThere(fingerprint), found != model.end()) << step;
    if (found != model.end()) model.erase(found);
    if (random() % 4 != 0) {
      model.push_back(fingerprint);
      ASSERT_FALSE(ring.Insert(fingerprint, step).has_value());
    }
    const size_t count_max = step % 1'000 == 999 ? kGhostsMax / 2 : kGhostsMax;
    while (model.size() > count_max) model.pop_front();
    ring.ShrinkTo(count_max);
    ASSERT_EQ(ring.count(), model.size());
  }
  EXPECT_LE(ring.places_count(), kGhostsMax * 4 / 3 + 1);
  ring.ShrinkTo(0);
  EXPECT_EQ(ring.count(), 0u);
  EXPECT_EQ(ring.Find(model.back()), GhostRing::kNone);
  EXPECT_FALSE(ring.Insert(model.back(), 1).has_value());
  EXPECT_EQ(ring.count(), 1u);
}

}  // namespace
}  // namespace ibid
