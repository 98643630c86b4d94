#include "core/eviction/eviction_tier.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

namespace ibid {
namespace {

BlockTraits TraitsOf(EntryId b, EntryId parent, uint32_t position = 0) {
  return {.fingerprint = b * uint64_t{0x9E3779B97F4A7C15},
          .parent = parent,
          .position = position,
          .block_tokens = 512};
}

void InsertAdmitted(EvictionTier& tier, EntryId b, EntryId parent, uint32_t position = 0) {
  tier.Insert(b, parent);
  tier.Admit(b, TraitsOf(b, parent, position));
}

std::vector<EntryId> EvictAll(EvictionTier& tier, const std::vector<EntryId>& parents) {
  std::vector<EntryId> order;
  for (EntryId b = tier.TakeVictim(); b != kNoEntry; b = tier.TakeVictim()) {
    tier.Remove(b, parents[b], {b, true});
    order.push_back(b);
  }
  return order;
}

// What every policy keeps under the leaf rule.
class EvictionTierTest : public ::testing::TestWithParam<std::string> {
 protected:
  EvictionTierTest() { tier_.SetCapacity(100); }
  EvictionTier tier_{GetParam()};
};

TEST_P(EvictionTierTest, EvictsAChainFromItsEndThoughItsStartCameFirst) {
  const std::vector<EntryId> parents = {kNoEntry, 0, 1};
  for (EntryId b = 0; b < 3; ++b) InsertAdmitted(tier_, b, parents[b], b);
  EXPECT_EQ(EvictAll(tier_, parents), (std::vector<EntryId>{2, 1, 0}));
}

// Priorities are of the block, whether it is there or not, and hold under the leaf rule.
TEST_P(EvictionTierTest, EachPriorityIsGivenOutForItselfAndMustStayToo) {
  tier_.SetPriority(3, KeepPriority::kMustStay, 2);
  tier_.SetPriority(4, KeepPriority::kLow, 2);
  for (EntryId b = 0; b < 5; ++b) {
    tier_.Insert(b, kNoEntry, 2);
    tier_.Admit(b, TraitsOf(b, kNoEntry));
  }
  EXPECT_EQ(tier_.kept_pages(), 4u);
  tier_.SetPriority(1, KeepPriority::kHigh, 2);
  EXPECT_EQ(tier_.kept_pages(), 6u);
  std::set<EntryId> plain;
  for (EntryId b = tier_.TakeVictim(); b != kNoEntry; b = tier_.TakeVictim()) plain.insert(b);
  EXPECT_EQ(plain, (std::set<EntryId>{0, 2}));
  EXPECT_EQ(tier_.TakeVictim(KeepPriority::kLow), 4u);
  EXPECT_EQ(tier_.TakeVictim(KeepPriority::kLow), kNoEntry);
  EXPECT_EQ(tier_.TakeVictim(KeepPriority::kHigh), 1u);
  tier_.SetPriority(3, KeepPriority::kNone, 2);
  EXPECT_EQ(tier_.TakeVictim(), 3u) << "a candidate again as soon as nothing keeps it";
  tier_.Remove(1, kNoEntry, {.slot_pages = 2});
  tier_.Remove(4, kNoEntry, {.slot_pages = 2});
  EXPECT_EQ(tier_.kept_pages(), 0u);
}

TEST_P(EvictionTierTest, AKeptBlockThatGetsAChildLeavesAfterIt) {
  InsertAdmitted(tier_, 0, kNoEntry);
  tier_.SetPriority(0, KeepPriority::kLow, 0);
  EXPECT_EQ(tier_.TakeVictim(), kNoEntry);
  InsertAdmitted(tier_, 1, 0, 1);
  tier_.SetPriority(1, KeepPriority::kLow, 0);
  EXPECT_EQ(tier_.TakeVictim(), kNoEntry);
  EXPECT_EQ(tier_.TakeVictim(KeepPriority::kLow), 1u);
  tier_.Remove(1, 0, {});
  EXPECT_EQ(tier_.TakeVictim(), kNoEntry);
  EXPECT_EQ(tier_.TakeVictim(KeepPriority::kLow), 0u);
}

TEST_P(EvictionTierTest, ABlockThatCameInIsNoVictimBeforeItIsAdmitted) {
  tier_.Insert(5, kNoEntry);
  EXPECT_EQ(tier_.TakeVictim(), kNoEntry);
  tier_.Use(5);
  EXPECT_EQ(tier_.TakeVictim(), kNoEntry);
  tier_.Admit(5, TraitsOf(5, kNoEntry));
  EXPECT_EQ(tier_.TakeVictim(), 5u);
}

TEST_P(EvictionTierTest, AChildStillBeingFilledKeepsItsParent) {
  InsertAdmitted(tier_, 0, kNoEntry);
  tier_.Insert(1, 0);
  EXPECT_EQ(tier_.TakeVictim(), kNoEntry);
  tier_.Remove(1, 0, {});
  EXPECT_EQ(tier_.TakeVictim(), 0u);
}

TEST_P(EvictionTierTest, AVictimThatIsPutBackIsTheNextVictimAgain) {
  InsertAdmitted(tier_, 0, kNoEntry);
  InsertAdmitted(tier_, 1, kNoEntry);
  const EntryId victim = tier_.TakeVictim();
  ASSERT_NE(victim, kNoEntry);
  tier_.PutBack(victim);
  tier_.PutBack(victim);
  EXPECT_EQ(tier_.TakeVictim(), victim);
}

TEST_P(EvictionTierTest, CountsChildrenOfAParentThatIsNotThereYet) {
  InsertAdmitted(tier_, 1, 7, 1);
  EXPECT_EQ(tier_.children_count(7), 1u);
  EXPECT_FALSE(tier_.contains(7));
  InsertAdmitted(tier_, 7, kNoEntry);
  EXPECT_EQ(tier_.TakeVictim(), 1u);
}

TEST_P(EvictionTierTest, AnInnerBlockIsTakenOnlyWhenAskedFor) {
  InsertAdmitted(tier_, 0, kNoEntry);
  InsertAdmitted(tier_, 1, 0, 1);
  ASSERT_EQ(tier_.TakeVictim(), 1u);  // taken, but still a child of 0
  EXPECT_EQ(tier_.TakeVictim(), kNoEntry);
  EXPECT_EQ(tier_.common_share().TakeInner(), 0u);
  tier_.common_share().PutBackInner(0);
  EXPECT_EQ(tier_.common_share().TakeInner(), 0u);
  tier_.PutBack(0);
  EXPECT_EQ(tier_.common_share().TakeInner(), kNoEntry);
}

// After any sequence of lookups, inserts in chain order, uses, put-backs and evictions no block of
// the tier has a parent that was evicted before it, and none is ever lost.
TEST_P(EvictionTierTest, PrefixesHaveNoHolesAndNoBlockIsLostAfterAnyRandomSequence) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    EvictionTier tier(GetParam());
    tier.SetCapacity(64);
    std::vector<EntryId> parents;  // of every block there ever was
    std::vector<uint32_t> positions;
    std::set<EntryId> resident;
    std::vector<EntryId> taken;  // victims not removed yet
    const auto any = [&] {
      return *std::next(resident.begin(), static_cast<int>(random() % resident.size()));
    };
    for (int step = 0; step < 3000; ++step) {
      switch (random() % 7) {
        case 0:
        case 1: {  // a child of a block of the tier, or a new start
          EntryId parent = kNoEntry;
          if (!resident.empty() && random() % 8 != 0) parent = any();
          const EntryId b = static_cast<EntryId>(parents.size());
          parents.push_back(parent);
          positions.push_back(parent == kNoEntry ? 0 : positions[parent] + 1);
          InsertAdmitted(tier, b, parent, positions[b]);
          resident.insert(b);
          break;
        }
        case 2:
          if (!resident.empty()) tier.Use(any());
          break;
        case 3: {
          const EntryId b = tier.TakeVictim();
          if (b != kNoEntry) taken.push_back(b);
          break;
        }
        case 4:
          if (!taken.empty()) {
            tier.PutBack(taken.back());
            taken.pop_back();
          }
          break;
        case 5: {  // a lookup of a whole chain and of a block that is not there
          if (resident.empty()) break;
          std::vector<ChainBlock> chain;
          for (EntryId b = any(); b != kNoEntry; b = parents[b]) {
            chain.insert(chain.begin(), {TraitsOf(b, kNoEntry).fingerprint, b});
          }
          chain.push_back({random(), kNoEntry});
          tier.Lookup(chain, {.block_tokens = 512});
          break;
        }
        default: {
          const EntryId b = tier.TakeVictim();
          if (b == kNoEntry) break;
          tier.Remove(b, parents[b], {TraitsOf(b, kNoEntry).fingerprint, random() % 4 != 0});
          ASSERT_EQ(resident.erase(b), 1u);
          std::erase(taken, b);
        }
      }
      for (const EntryId b : resident) {
        ASSERT_TRUE(tier.contains(b));
        ASSERT_TRUE(parents[b] == kNoEntry || resident.contains(parents[b]))
            << "seed " << seed << " step " << step;
      }
    }
    for (const EntryId b : taken) tier.PutBack(b);
    EXPECT_EQ(EvictAll(tier, parents).size(), resident.size()) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, EvictionTierTest,
                         ::testing::ValuesIn(std::vector<std::string>(EvictionPolicyNames().begin(),
                                                                      EvictionPolicyNames().end())),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(LruPolicy, EvictsTheLeastRecentlyUsedFirst) {
  EvictionTier tier("lru");
  for (EntryId b = 0; b < 4; ++b) InsertAdmitted(tier, b, kNoEntry);
  tier.Use(1);
  EXPECT_EQ(EvictAll(tier, std::vector<EntryId>(4, kNoEntry)), (std::vector<EntryId>{0, 2, 3, 1}));
}

TEST(LruPolicy, AParentTakesThePlaceOfItsOwnRecencyOnceItsChildrenAreGone) {
  EvictionTier tier("lru");
  const std::vector<EntryId> parents = {kNoEntry, 0, kNoEntry, kNoEntry};
  for (EntryId b = 0; b < 4; ++b) InsertAdmitted(tier, b, parents[b]);
  EXPECT_EQ(EvictAll(tier, parents), (std::vector<EntryId>{1, 0, 2, 3}));
}

TEST(EvictionPolicies, AnUnknownNameIsRefusedWithTheNamesThereAre) {
  BlockLists lists;
  const auto policy = MakeEvictionPolicy("fifo", lists);
  ASSERT_FALSE(policy.ok());
  EXPECT_NE(policy.status().message().find("hazard"), std::string::npos) << policy.status();
}

}  // namespace
}  // namespace ibid
