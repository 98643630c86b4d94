#include "cache_server/extent_allocator.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "core/host_memory.h"

namespace ibid {
namespace {

constexpr uint64_t kPage = kPageBytes;

TEST(ExtentAllocator, CutsAnExtentIntoSlotsOfOneSize) {
  ExtentAllocator slots(2 * 8 * kPage, 8 * kPage);
  EXPECT_EQ(slots.Allocate(3, 1), 0u);
  EXPECT_EQ(slots.Allocate(3, 2), 3u);
  EXPECT_EQ(slots.Allocate(3, 3), 8u)
      << "two slots of 3 pages fit 8; the third is in the next extent";
  EXPECT_EQ(slots.Allocate(3, 4), 11u);
  EXPECT_EQ(slots.Allocate(3, 5), std::nullopt);
  EXPECT_EQ(slots.usage().used_bytes, 12 * kPage);
  EXPECT_EQ(slots.usage().largest_free_bytes, 0u);
}

TEST(ExtentAllocator, AnEmptyExtentTakesAnySizeAgain) {
  ExtentAllocator slots(8 * kPage, 8 * kPage);
  const uint32_t page = *slots.Allocate(3, 1);
  EXPECT_EQ(slots.Allocate(8, 2), std::nullopt);
  EXPECT_EQ(slots.Free(page), 3u);
  EXPECT_EQ(slots.usage().largest_free_bytes, 8 * kPage);
  EXPECT_EQ(slots.Allocate(8, 2), 0u);
}

TEST(ExtentAllocator, TheLastExtentMayBeShorter) {
  ExtentAllocator slots(11 * kPage, 8 * kPage);
  EXPECT_EQ(slots.ExtentBytes(1), 3 * kPage);
  EXPECT_TRUE(slots.CanEverFit(8));
  EXPECT_FALSE(slots.CanEverFit(9));
  EXPECT_EQ(slots.Allocate(5, 1), 0u);
  EXPECT_EQ(slots.Allocate(5, 1), std::nullopt) << "3 pages are left";
  EXPECT_EQ(slots.Allocate(3, 1), 8u);
}

TEST(ExtentAllocator, ClaimsASlotOnceAndOnlyWhereItsSizeAllows) {
  ExtentAllocator slots(16 * kPage, 8 * kPage);
  EXPECT_TRUE(slots.Claim(2, 2, 9));
  EXPECT_FALSE(slots.Claim(2, 2, 9));
  EXPECT_FALSE(slots.Claim(3, 2, 9)) << "starts no slot";
  EXPECT_FALSE(slots.Claim(4, 4, 9)) << "the extent has slots of 2 pages";
  EXPECT_FALSE(slots.Claim(14, 4, 9)) << "reaches over the end";
  EXPECT_FALSE(slots.Claim(16, 2, 9)) << "no such extent";
  EXPECT_EQ(slots.Allocate(2, 1), 0u);
  EXPECT_EQ(slots.Allocate(2, 1), 4u) << "the claimed slot is passed over";
}

// failures 30
TEST(ExtentAllocator, ClearsTheSparsestExtentWhoseBlocksHaveRoomElsewhere) {
  ExtentAllocator slots(3 * 4 * kPage, 4 * kPage);
  std::vector<uint32_t> pages;
  for (uint32_t i = 0; i < 12; ++i) pages.push_back(*slots.Allocate(1, i));
  EXPECT_EQ(slots.BeginClear(1, 4, {}), std::nullopt) << "no room for what would have to move";
  slots.Free(pages[4]);
  slots.Free(pages[5]);
  slots.Free(pages[0]);
  const auto clearing = slots.BeginClear(1, 4, {});
  ASSERT_FALSE(clearing.has_value()) << "extent 1 has 2 blocks, the others 1 free slot";
  slots.Free(pages[8]);
  const auto now = slots.BeginClear(1, 4, {});
  ASSERT_TRUE(now.has_value());
  EXPECT_EQ(now->extent, 1u);
  ASSERT_EQ(now->slots.size(), 2u);
  EXPECT_EQ(now->slots[0].owner, 6u);
  for (const ExtentAllocator::Slot& slot : now->slots) {
    const auto to = slots.Allocate(1, slot.owner);
    ASSERT_TRUE(to.has_value());
    EXPECT_NE(slots.ExtentOf(*to), 1u);
    slots.Free(slot.page);
  }
  EXPECT_EQ(slots.Allocate(4, 1), std::nullopt) << "not before the clearing has ended";
  slots.EndClear(1);
  EXPECT_EQ(slots.Allocate(4, 1), 4u);
}

TEST(ExtentAllocator, ABlockedExtentIsNotUsedUntilItIsUnblocked) {
  ExtentAllocator slots(2 * 4 * kPage, 4 * kPage);
  slots.Block(0);
  EXPECT_EQ(slots.Allocate(4, 1), 4u);
  EXPECT_EQ(slots.Allocate(4, 1), std::nullopt);
  slots.UnblockAll();
  EXPECT_EQ(slots.Allocate(4, 1), 0u);
}

TEST(ExtentAllocator, NeverGivesOutAPageTwiceInAnyRandomSequence) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    constexpr uint32_t kPages = 5 * 64 + 17;
    ExtentAllocator slots(kPages * kPage, 64 * kPage);
    const uint32_t sizes[] = {1, 3, 8, 17, 64};
    std::map<uint32_t, uint32_t> used;  // first page -> pages
    std::vector<bool> taken(kPages);
    uint64_t used_pages = 0;
    for (int step = 0; step < 4000; ++step) {
      if (random() % 5 < 3) {
        const uint32_t size = sizes[random() % 5];
        const auto page = slots.Allocate(size, step);
        if (!page.has_value()) continue;
        ASSERT_LE(*page + size, kPages);
        for (uint32_t i = 0; i < size; ++i) {
          ASSERT_FALSE(taken[*page + i]) << "seed " << seed << " step " << step;
          taken[*page + i] = true;
        }
        used[*page] = size;
        used_pages += size;
      } else if (!used.empty()) {
        const auto it = std::next(used.begin(), static_cast<int>(random() % used.size()));
        ASSERT_EQ(slots.Free(it->first), it->second);
        for (uint32_t i = 0; i < it->second; ++i) taken[it->first + i] = false;
        used_pages -= it->second;
        used.erase(it);
      }
      ASSERT_EQ(slots.usage().used_bytes, used_pages * kPage);
    }
    for (const auto& [page, size] : used) slots.Free(page);
    EXPECT_EQ(slots.usage().cut_bytes, 0u);
    EXPECT_EQ(slots.usage().largest_free_bytes, 64 * kPage);
  }
}

}  // namespace
}  // namespace ibid
