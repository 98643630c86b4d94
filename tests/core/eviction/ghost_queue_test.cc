#include "core/eviction/ghost_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

namespace ibid {
namespace {

TEST(GhostQueue, RemembersExactlyWhatAModelRemembersInPlacesThatAreUsedAgain) {
  constexpr size_t kGhostsMax = 500;
  std::mt19937_64 random(5);
  GhostQueue queue;
  std::deque<uint64_t> model;  // oldest first
  for (int step = 0; step < 50'000; ++step) {
    const uint64_t fingerprint = random() % 1'500;
    const auto found = std::find(model.begin(), model.end(), fingerprint);
    ASSERT_EQ(queue.contains(fingerprint), found != model.end()) << step;
    if (random() % 4 == 0) {
      ASSERT_EQ(queue.Remove(fingerprint), found != model.end()) << step;
      if (found != model.end()) model.erase(found);
    } else {
      if (found != model.end()) model.erase(found);
      model.push_back(fingerprint);
      queue.Push(fingerprint);
    }
    while (model.size() > kGhostsMax) model.pop_front();
    queue.ShrinkTo(kGhostsMax);
    ASSERT_EQ(queue.size(), model.size());
  }
  EXPECT_LE(queue.places_count(), kGhostsMax + 1);
  queue.ShrinkTo(0);
  EXPECT_EQ(queue.size(), 0u);
  EXPECT_FALSE(queue.Remove(model.front()));
}

}  // namespace
}  // namespace ibid
