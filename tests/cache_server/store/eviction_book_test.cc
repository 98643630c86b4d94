#include "cache_server/eviction_book.h"

#include <gtest/gtest.h>

namespace ibid {
namespace {

class EvictionBookTest : public ::testing::Test {
 protected:
  void Insert(TierName tier, EntryId b, EntryId parent, OwnerId owner = kNobody) {
    book_.Insert(tier, b, parent, 1, owner);
    book_.Admit(tier, b, {.fingerprint = b, .parent = parent, .block_tokens = 16});
  }

  // Owner 1 has so many pages of the host tier.
  static std::vector<TierPages> Quotas(uint64_t host_pages) {
    constexpr uint64_t kNone = EvictionTier::kNoQuota;
    return {{kNone, kNone, kNone}, {host_pages, kNone, kNone}};
  }

  EvictionBook book_{"lru"};
};

TEST_F(EvictionBookTest, TheLastCopyStaysWhileAChildIsInTheOtherTier) {
  Insert(TierName::kDisk, 0, kNoEntry);
  Insert(TierName::kDisk, 5, kNoEntry);
  Insert(TierName::kHost, 1, 0);  // a child of 0, in host only
  EXPECT_EQ(book_.TakeVictim(TierName::kDisk), 5u)
      << "0 is colder, but a child of it lives in the host tier";
  book_.Remove(TierName::kDisk, 5, kNoEntry, {});
  EXPECT_EQ(book_.TakeVictim(TierName::kDisk), 0u)
      << "when nothing else is left it goes all the same";
}

TEST_F(EvictionBookTest, ADeferredBlockIsACandidateAgainOnceTheChildLeaves) {
  Insert(TierName::kDisk, 0, kNoEntry);
  Insert(TierName::kDisk, 5, kNoEntry);
  book_.Insert(TierName::kHost, 1, 0);
  EXPECT_EQ(book_.TakeVictim(TierName::kDisk), 5u);
  book_.PutBack(TierName::kDisk, 5);
  book_.Remove(TierName::kHost, 1, 0, {});
  EXPECT_EQ(book_.TakeVictim(TierName::kDisk), 0u);
}

TEST_F(EvictionBookTest, ALookupOfAChainMakesItsStartTheHottestInEveryTier) {
  for (const TierName tier : {TierName::kHost, TierName::kDisk}) {
    for (const EntryId b : {0u, 1u, 2u}) Insert(tier, b, kNoEntry);
  }
  const ChainBlock chain[] = {{0, 0}, {1, 1}, {2, 2}, {3, kNoEntry}};
  book_.Lookup(chain, {.block_tokens = 16});
  for (const TierName tier : {TierName::kHost, TierName::kDisk}) {
    EXPECT_EQ(book_.TakeVictim(tier), 2u);
    EXPECT_EQ(book_.TakeVictim(tier), 1u);
    EXPECT_EQ(book_.TakeVictim(tier), 0u);
  }
}

// What an operator pinned stays while anything else can leave, whoever uses too much.
TEST_F(EvictionBookTest, APriorityHoldsOverTheSharesOfOwners) {
  book_.SetRoom(TierName::kHost, 100);
  EXPECT_FALSE(book_.SetQuotas(1, Quotas(2)));
  book_.SetPriority(0, KeepPriority::kLow, 1);
  Insert(TierName::kHost, 0, kNoEntry, 1);
  Insert(TierName::kHost, 1, kNoEntry, 1);
  Insert(TierName::kHost, 2, kNoEntry, 0);
  EXPECT_EQ(book_.TakeVictim(TierName::kHost), 1u) << "of the share that is full";
  EXPECT_EQ(book_.TakeVictim(TierName::kHost), 2u) << "of the other";
  EXPECT_EQ(book_.TakeVictim(TierName::kHost), 0u);
}

TEST_F(EvictionBookTest, ABlockHasOneOwnerInAllTiers) {
  book_.SetQuotas(1, Quotas(5));
  Insert(TierName::kHost, 0, kNoEntry, 1);
  Insert(TierName::kDisk, 0, kNoEntry, 0);
  EXPECT_EQ(book_.UsedPages()[1], (TierPages{1, 1, 0}));
  book_.Move(0, 0, 1, {.fingerprint = 0, .block_tokens = 16});
  EXPECT_EQ(book_.UsedPages()[0], (TierPages{1, 1, 0}));
  EXPECT_EQ(book_.UsedPages()[1], TierPages{});
}

TEST_F(EvictionBookTest, OfTwoSetsOfQuotasTheLaterHoldsInWhateverOrderTheyCome) {
  book_.SetQuotas(2, Quotas(1));
  book_.SetQuotas(1, Quotas(9));
  Insert(TierName::kHost, 0, kNoEntry, 1);
  EXPECT_FALSE(book_.Insert(TierName::kHost, 1, kNoEntry, 1, 1));
  book_.SetQuotas(3, {});
  EXPECT_TRUE(book_.Insert(TierName::kHost, 2, kNoEntry, 1, 1));
}

}  // namespace
}  // namespace ibid
