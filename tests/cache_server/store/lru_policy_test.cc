#include "cache_server/lru_policy.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "cache_server/eviction_book.h"

namespace ibid {
namespace {

std::vector<EntryId> EvictAll(EvictionPolicy& policy) {
  std::vector<EntryId> order;
  for (EntryId b = policy.TakeVictim(); b != kNoEntry; b = policy.TakeVictim()) {
    policy.OnRemove(b);
    order.push_back(b);
  }
  return order;
}

void InsertUsed(EvictionPolicy& policy, EntryId b, EntryId parent) {
  policy.OnInsert(b, parent);
  policy.OnUse(b);
}

TEST(LruPolicy, EvictsTheLeastRecentlyUsedFirst) {
  LruPolicy policy;
  for (EntryId b = 0; b < 4; ++b) InsertUsed(policy, b, kNoEntry);
  policy.OnUse(1);
  EXPECT_EQ(EvictAll(policy), (std::vector<EntryId>{0, 2, 3, 1}));
}

TEST(LruPolicy, EvictsAChainFromItsEndThoughItsStartIsColder) {
  LruPolicy policy;
  InsertUsed(policy, 0, kNoEntry);
  InsertUsed(policy, 1, 0);
  InsertUsed(policy, 2, 1);
  EXPECT_EQ(EvictAll(policy), (std::vector<EntryId>{2, 1, 0}));
}

TEST(LruPolicy, AParentTakesThePlaceOfItsOwnRecencyOnceItsChildrenAreGone) {
  LruPolicy policy;
  InsertUsed(policy, 0, kNoEntry);  // colder than everything else
  InsertUsed(policy, 1, 0);
  InsertUsed(policy, 2, kNoEntry);
  InsertUsed(policy, 3, kNoEntry);
  EXPECT_EQ(EvictAll(policy), (std::vector<EntryId>{1, 0, 2, 3}));
}

TEST(LruPolicy, ABlockThatCameInIsNoVictimBeforeItsFirstUse) {
  LruPolicy policy;
  policy.OnInsert(5, kNoEntry);
  EXPECT_EQ(policy.TakeVictim(), kNoEntry);
  policy.OnUse(5);
  EXPECT_EQ(policy.TakeVictim(), 5u);
}

TEST(LruPolicy, AChildStillBeingFilledKeepsItsParent) {
  LruPolicy policy;
  InsertUsed(policy, 0, kNoEntry);
  policy.OnInsert(1, 0);
  EXPECT_EQ(policy.TakeVictim(), kNoEntry);
  policy.OnRemove(1);
  EXPECT_EQ(policy.TakeVictim(), 0u);
}

TEST(LruPolicy, AVictimThatIsPutBackIsTheNextVictimAgain) {
  LruPolicy policy;
  InsertUsed(policy, 0, kNoEntry);
  InsertUsed(policy, 1, kNoEntry);
  EXPECT_EQ(policy.TakeVictim(), 0u);
  policy.PutBack(0);
  policy.PutBack(0);
  EXPECT_EQ(EvictAll(policy), (std::vector<EntryId>{0, 1}));
}

TEST(LruPolicy, CountsChildrenOfAParentThatIsNotThereYet) {
  LruPolicy policy;
  InsertUsed(policy, 1, 7);
  EXPECT_EQ(policy.children_count(7), 1u);
  InsertUsed(policy, 7, kNoEntry);
  policy.OnUse(1);
  EXPECT_EQ(EvictAll(policy), (std::vector<EntryId>{1, 7}));
}

// After any sequence of inserts in chain order, uses, put-backs and evictions no resident block has
// a parent that was evicted before it.
TEST(LruPolicy, PrefixesHaveNoHolesAfterAnyRandomSequence) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    LruPolicy policy;
    std::vector<EntryId> parents;  // of every block there ever was
    std::set<EntryId> resident;
    std::vector<EntryId> taken;  // victims not removed yet
    for (int step = 0; step < 2000; ++step) {
      switch (random() % 6) {
        case 0:
        case 1: {  // a child of a resident block, or a new root
          EntryId parent = kNoEntry;
          if (!resident.empty() && random() % 8 != 0) {
            parent = *std::next(resident.begin(), static_cast<int>(random() % resident.size()));
          }
          const EntryId b = static_cast<EntryId>(parents.size());
          parents.push_back(parent);
          InsertUsed(policy, b, parent);
          resident.insert(b);
          break;
        }
        case 2:
          if (!resident.empty()) {
            policy.OnUse(
                *std::next(resident.begin(), static_cast<int>(random() % resident.size())));
          }
          break;
        case 3: {
          const EntryId b = policy.TakeVictim();
          if (b != kNoEntry) taken.push_back(b);
          break;
        }
        case 4:
          if (!taken.empty()) {
            policy.PutBack(taken.back());
            taken.pop_back();
          }
          break;
        default: {
          const EntryId b = policy.TakeVictim();
          if (b == kNoEntry) break;
          policy.OnRemove(b);
          ASSERT_EQ(resident.erase(b), 1u);
        }
      }
      for (const EntryId b : resident) {
        ASSERT_TRUE(parents[b] == kNoEntry || resident.contains(parents[b]))
            << "seed " << seed << " step " << step;
      }
    }
    while (!taken.empty()) {
      policy.PutBack(taken.back());
      taken.pop_back();
    }
    EXPECT_EQ(EvictAll(policy).size(), resident.size()) << "seed " << seed;
  }
}

class EvictionBookTest : public ::testing::Test {
 protected:
  EvictionBook book_{std::make_unique<LruPolicy>(), std::make_unique<LruPolicy>()};
};

TEST_F(EvictionBookTest, TheLastCopyStaysWhileAChildIsInTheOtherTier) {
  book_.Insert(TierName::kDisk, 0, kNoEntry);
  book_.Use(TierName::kDisk, 0);
  book_.Insert(TierName::kDisk, 5, kNoEntry);
  book_.Use(TierName::kDisk, 5);
  book_.Insert(TierName::kHost, 1, 0);  // a child of 0, in host only
  book_.Use(TierName::kHost, 1);
  EXPECT_EQ(book_.TakeVictim(TierName::kDisk), 5u)
      << "0 is colder, but a child of it lives in the host tier";
  book_.Remove(TierName::kDisk, 5, kNoEntry);
  EXPECT_EQ(book_.TakeVictim(TierName::kDisk), 0u)
      << "when nothing else is left it goes all the same";
}

TEST_F(EvictionBookTest, ADeferredBlockIsACandidateAgainOnceTheChildLeaves) {
  book_.Insert(TierName::kDisk, 0, kNoEntry);
  book_.Use(TierName::kDisk, 0);
  book_.Insert(TierName::kDisk, 5, kNoEntry);
  book_.Use(TierName::kDisk, 5);
  book_.Insert(TierName::kHost, 1, 0);
  EXPECT_EQ(book_.TakeVictim(TierName::kDisk), 5u);
  book_.PutBack(TierName::kDisk, 5);
  book_.Remove(TierName::kHost, 1, 0);
  EXPECT_EQ(book_.TakeVictim(TierName::kDisk), 0u);
}

TEST_F(EvictionBookTest, AUseOfAChainMakesItsStartTheHottest) {
  for (const EntryId b : {0u, 1u, 2u}) book_.Insert(TierName::kHost, b, kNoEntry);
  const EntryId chain[] = {0, 1, 2};
  book_.Use(chain);
  EXPECT_EQ(book_.TakeVictim(TierName::kHost), 2u);
  EXPECT_EQ(book_.TakeVictim(TierName::kHost), 1u);
  EXPECT_EQ(book_.TakeVictim(TierName::kHost), 0u);
}

}  // namespace
}  // namespace ibid
