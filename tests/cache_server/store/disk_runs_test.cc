#include "cache_server/disk_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ibid {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint32_t kPagesPerExtent = 16;

TEST(DiskRuns, NeighboursAreOneRunInTheOrderOfTheDisk) {
  const std::vector<DiskSlot> slots = {{4, 2}, {0, 2}, {2, 2}, {8, 2}};
  EXPECT_THAT(RunsByExtent(slots, kPagesPerExtent),
              ElementsAre(ElementsAre(DiskRun{1, 2, 0}, DiskRun{3})));
}

TEST(DiskRuns, SlotsOfDifferentSizesAreNeighboursToo) {
  const std::vector<DiskSlot> slots = {{0, 1}, {1, 8}, {9, 2}};
  EXPECT_THAT(RunsByExtent(slots, kPagesPerExtent), ElementsAre(ElementsAre(DiskRun{0, 1, 2})));
}

TEST(DiskRuns, NoRunIsInTwoExtents) {
  const std::vector<DiskSlot> slots = {{14, 2}, {16, 2}, {33, 1}};
  EXPECT_THAT(
      RunsByExtent(slots, kPagesPerExtent),
      ElementsAre(ElementsAre(DiskRun{0}), ElementsAre(DiskRun{1}), ElementsAre(DiskRun{2})));
}

TEST(DiskRuns, NothingIsNoRun) { EXPECT_THAT(RunsByExtent({}, kPagesPerExtent), IsEmpty()); }

}  // namespace
}  // namespace ibid
