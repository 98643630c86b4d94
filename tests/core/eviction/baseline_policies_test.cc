// ARC and S3-FIFO, each through the tier that the server uses.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/eviction/eviction_tier.h"

namespace ibid {
namespace {

// Blocks without parents; a block's fingerprint follows from its id.
class Blocks {
 public:
  Blocks(const std::string& policy, uint64_t capacity) : tier_(policy) {
    tier_.SetCapacity(capacity);
  }

  void Insert(EntryId begin, EntryId end) {
    for (EntryId b = begin; b < end; ++b) {
      tier_.Insert(b, kNoEntry);
      tier_.Admit(b, {.fingerprint = Fingerprint(b), .block_tokens = 16});
    }
  }
  void Use(EntryId b) { tier_.Use(b); }
  EntryId Evict() {
    const EntryId b = tier_.TakeVictim();
    if (b != kNoEntry) tier_.Remove(b, kNoEntry, {Fingerprint(b), true});
    return b;
  }
  void Drop(EntryId b) { tier_.Remove(b, kNoEntry, {Fingerprint(b), false}); }
  std::vector<EntryId> EvictAll() {
    std::vector<EntryId> order;
    for (EntryId b = Evict(); b != kNoEntry; b = Evict()) order.push_back(b);
    return order;
  }
  // Every block passes through the tier once, one evicted for each.
  void Scan(EntryId begin, EntryId end) {
    for (EntryId b = begin; b < end; ++b) {
      Evict();
      Insert(b, b + 1);
    }
  }
  bool contains(EntryId b) const { return tier_.contains(b); }

 private:
  static uint64_t Fingerprint(EntryId b) { return (b + 1) * uint64_t{0x9E3779B97F4A7C15}; }
  EvictionTier tier_;
};

using Ids = std::vector<EntryId>;

TEST(ArcPolicy, BlocksUsedAgainOutliveAScan) {
  Blocks blocks("arc", 4);
  blocks.Insert(0, 4);
  blocks.Use(0);
  blocks.Use(1);
  blocks.Scan(10, 40);
  EXPECT_TRUE(blocks.contains(0));
  EXPECT_TRUE(blocks.contains(1));
  EXPECT_EQ(blocks.EvictAll(), (Ids{38, 39, 0, 1}));
}

TEST(ArcPolicy, ABlockThatComesBackSoonAfterItsEvictionCountsAsUsedAgain) {
  Blocks blocks("arc", 4);
  blocks.Insert(0, 4);
  ASSERT_EQ(blocks.Evict(), 0u);
  blocks.Insert(0, 1);
  ASSERT_EQ(blocks.Evict(), 1u);
  blocks.Insert(4, 5);
  EXPECT_EQ(blocks.EvictAll(), (Ids{2, 3, 0, 4})) << "0 left before 4: one place is for new blocks";
}

TEST(ArcPolicy, RoomForNewBlocksGrowsWhenTheyAreMissedAndShrinksWhenOthersAre) {
  Blocks blocks("arc", 4);
  blocks.Insert(0, 4);
  blocks.Use(0);
  blocks.Use(1);
  ASSERT_EQ(blocks.Evict(), 2u);
  blocks.Insert(2, 3);            // it was missed: one place for blocks used once, which 3 has
  ASSERT_EQ(blocks.Evict(), 0u);  // so one that was used again goes
  blocks.Insert(0, 1);            // it was missed too: no place for blocks used once
  EXPECT_EQ(blocks.Evict(), 3u);
}

TEST(ArcPolicy, ADroppedBlockIsNotRemembered) {
  Blocks blocks("arc", 4);
  blocks.Insert(0, 4);
  blocks.Drop(0);
  blocks.Insert(0, 1);
  EXPECT_EQ(blocks.EvictAll(), (Ids{1, 2, 3, 0}));
}

TEST(ArcPolicy, RemembersNotMoreEvictedBlocksThanTheTierHolds) {
  Blocks blocks("arc", 4);
  blocks.Insert(0, 2);
  blocks.Use(0);
  blocks.Use(1);
  blocks.Insert(2, 4);
  blocks.Scan(4, 8);  // ghosts: 4 and 5 of those used once, which are 6 and 7
  ASSERT_EQ(blocks.Evict(), 6u);
  blocks.Insert(2, 3);  // forgotten: used once
  EXPECT_EQ(blocks.EvictAll(), (Ids{7, 2, 0, 1}));
}

TEST(S3FifoPolicy, BlocksLeaveInOrderOfArrivalAndThoseUsedMeanwhileStay) {
  Blocks blocks("s3fifo-10", 10);
  blocks.Insert(0, 10);
  blocks.Use(3);
  EXPECT_EQ(blocks.EvictAll(), (Ids{0, 1, 2, 4, 5, 6, 7, 8, 9, 3}));
}

TEST(S3FifoPolicy, ABlockThatComesBackSoonAfterItsEvictionStaysLongerThanNewOnes) {
  Blocks blocks("s3fifo-10", 10);
  blocks.Insert(0, 10);
  ASSERT_EQ(blocks.Evict(), 0u);
  blocks.Insert(0, 1);
  ASSERT_EQ(blocks.Evict(), 1u);
  blocks.Insert(10, 11);
  EXPECT_EQ(blocks.EvictAll(), (Ids{2, 3, 4, 5, 6, 7, 8, 9, 10, 0}));
}

TEST(S3FifoPolicy, AUseInTheMainQueueIsWorthOneMoreRound) {
  Blocks blocks("s3fifo-10", 10);
  blocks.Insert(0, 3);
  for (int i = 0; i < 3; ++i) blocks.Evict();
  blocks.Insert(0, 3);  // all three known
  blocks.Use(0);
  blocks.Use(0);
  blocks.Use(1);
  EXPECT_EQ(blocks.EvictAll(), (Ids{2, 1, 0}));
}

TEST(S3FifoPolicy, TheSmallQueueKeepsItsPartOfTheRoom) {
  for (const bool is_large : {false, true}) {
    Blocks blocks(is_large ? "s3fifo-60" : "s3fifo-10", 10);
    blocks.Insert(0, 4);
    for (int i = 0; i < 4; ++i) blocks.Evict();
    blocks.Insert(0, 4);  // known: to the main queue
    blocks.Insert(4, 9);  // five new ones
    EXPECT_EQ(blocks.Evict(), is_large ? 0u : 4u);
  }
}

TEST(S3FifoPolicy, ForgetsEvictedBlocksBeyondTheMainQueuesPart) {
  Blocks blocks("s3fifo-10", 10);
  blocks.Insert(0, 10);
  blocks.Scan(10, 20);  // 0 to 9 were evicted; 9 are remembered, 0 is not
  blocks.Scan(0, 1);
  blocks.Scan(30, 31);
  const Ids order = blocks.EvictAll();
  EXPECT_EQ(order[order.size() - 2], 0u);
  EXPECT_EQ(order.back(), 30u) << "0 is as new as 30";
}

TEST(S3FifoPolicy, ADroppedBlockIsNotRemembered) {
  Blocks blocks("s3fifo-10", 10);
  blocks.Insert(0, 3);
  blocks.Drop(0);
  blocks.Insert(0, 1);
  blocks.Insert(3, 4);
  EXPECT_EQ(blocks.EvictAll(), (Ids{1, 2, 0, 3}));
}

}  // namespace
}  // namespace ibid
