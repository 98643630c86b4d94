#include "cache_server/eviction_book.h"

#include <gtest/gtest.h>

namespace ibid {
namespace {

class EvictionBookTest : public ::testing::Test {
 protected:
  void Insert(TierName tier, EntryId b, EntryId parent) {
    book_.Insert(tier, b, parent);
    book_.Admit(tier, b, {.fingerprint = b, .parent = parent, .block_tokens = 16});
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
  book_.Lookup(chain, 16);
  for (const TierName tier : {TierName::kHost, TierName::kDisk}) {
    EXPECT_EQ(book_.TakeVictim(tier), 2u);
    EXPECT_EQ(book_.TakeVictim(tier), 1u);
    EXPECT_EQ(book_.TakeVictim(tier), 0u);
  }
}

}  // namespace
}  // namespace ibid
