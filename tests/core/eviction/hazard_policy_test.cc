#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "core/eviction/eviction_tier.h"
#include "core/eviction/hazard_policy.h"
#include "core/eviction/reuse_rates.h"

namespace ibid {
namespace {

// Requests against one tier, as a server makes them: a lookup, then the missing blocks in order,
// then evictions down to the capacity.
class Tier {
 public:
  explicit Tier(uint64_t capacity, bool asks_for_parts = false)
      : capacity_(capacity), asks_for_parts_(asks_for_parts) {
    tier_.SetCapacity(capacity);
  }

  // The number of leading blocks that were there. The first is at `first_position` of its chain.
  size_t Request(const std::vector<EntryId>& chain, bool has_tail = false,
                 uint32_t first_position = 0) {
    std::vector<ChainBlock> blocks;
    size_t hits = 0;
    for (const EntryId b : chain) {
      const bool is_there = tier_.contains(b);
      if (is_there && hits == blocks.size()) ++hits;
      blocks.push_back({Fingerprint(b), is_there ? b : kNoEntry});
    }
    tier_.Lookup(
        blocks,
        {.block_tokens = 512, .first_position = first_position, .is_part = asks_for_parts_});
    for (uint32_t i = 0; i < chain.size(); ++i) {
      if (tier_.contains(chain[i])) continue;
      const EntryId parent = i == 0 ? kNoEntry : chain[i - 1];
      if (parents_.size() <= chain[i]) parents_.resize(chain[i] + 1, kNoEntry);
      parents_[chain[i]] = parent;
      tier_.Insert(chain[i], parent);
      tier_.Admit(chain[i], {Fingerprint(chain[i]), parent, first_position + i, 512,
                             has_tail && i + 1 == chain.size()});
      ++resident_;
    }
    while (resident_ > capacity_) EvictOne();
    return hits;
  }

  EntryId EvictOne() {
    const EntryId b = tier_.TakeVictim();
    if (b == kNoEntry) return b;
    tier_.Remove(b, parents_[b], {Fingerprint(b), true});
    --resident_;
    return b;
  }
  bool contains(EntryId b) const { return tier_.contains(b); }
  EvictionTier& tier() { return tier_; }
  static uint64_t Fingerprint(EntryId b) { return (b + 1) * uint64_t{0x9E3779B97F4A7C15}; }

 private:
  EvictionTier tier_{"hazard"};
  const uint64_t capacity_;
  const bool asks_for_parts_;
  uint64_t resident_ = 0;
  std::vector<EntryId> parents_;
};

std::vector<EntryId> Range(EntryId begin, EntryId count) {
  std::vector<EntryId> ids(count);
  std::iota(ids.begin(), ids.end(), begin);
  return ids;
}

TEST(HazardPolicy, PartialLastBlocksLeaveFirstOnceItHasSeenThatTheyAreNotUsedAgain) {
  Tier tier(2000);
  // Conversations of two turns, ten others between them. The second asks for all full blocks of the
  // first and never for its tail.
  constexpr EntryId kCount = 2000;
  for (EntryId c = 0; c < kCount; ++c) {
    std::vector<EntryId> first = Range(c * 20, 4);
    first.push_back(c * 20 + 10);
    tier.Request(first, /*has_tail=*/true);
    if (c >= 10) tier.Request(Range((c - 10) * 20, 8));
  }
  const EntryId newest_tail = (kCount - 1) * 20 + 10;
  while (tier.contains(newest_tail)) ASSERT_NE(tier.EvictOne(), kNoEntry);
  for (EntryId c = kCount - 10; c < kCount; ++c) {
    for (const EntryId b : Range(c * 20, 4)) EXPECT_TRUE(tier.contains(b)) << c << " " << b;
  }
}

// 20 conversations of 10 blocks that come again and again, between scans of chains that never do:
// hits of the conversations in the last 20 of 60 rounds.
size_t HitsBetweenScans(Tier& tier) {
  EntryId scan = 100'000;
  size_t hits = 0;
  for (int round = 0; round < 60; ++round) {
    for (EntryId c = 0; c < 20; ++c) {
      const size_t found = tier.Request(Range(c * 100, 10));
      if (round >= 40) hits += found;
      tier.Request(Range(scan, 30));
      scan += 30;
    }
  }
  return hits;
}

TEST(HazardPolicy, KeepsAWorkingSetThatAScanWouldWashOutOfLru) {
  Tier tier(400);
  // LRU has none: 800 blocks come between two uses of a conversation, and 400 fit.
  EXPECT_GT(HitsBetweenScans(tier), 20u * 20u * 10u / 2);
}

// Of conversations that go on, and branches of others that never come again: told apart by how much
// of the chain before was found, which is known only with the position.
TEST(HazardPolicy, TellsContinuationsFromBranchesWhereReadersHaveTheFirstBlocksThemselves) {
  constexpr uint32_t kOwnBlocks = 40;  // of the reader
  constexpr EntryId kConversations = 20, kStride = 10'000;
  Tier tier(500);
  EntryId branch = 1'000'000;
  size_t hits = 0, asked = 0;
  for (int round = 0; round < 40; ++round) {
    for (EntryId c = 0; c < kConversations; ++c) {
      // Every turn brings two blocks; after ten of them another conversation takes the place.
      const EntryId turn = static_cast<EntryId>(round + c) % 10;
      const EntryId begin = (c + 1) * kStride + static_cast<EntryId>(round + c) / 10 * 100;
      const size_t found = tier.Request(Range(begin, 6 + 2 * turn), false, kOwnBlocks);
      if (round >= 20 && turn > 0) {
        hits += found;
        asked += 4 + 2 * turn;
      }
      std::vector<EntryId> chain = Range(0, 6);  // of a longer chain that everybody knows
      for (const EntryId b : Range(branch, 30)) chain.push_back(b);
      branch += 30;
      tier.Request(chain, false, kOwnBlocks);
    }
  }
  EXPECT_GT(hits, asked * 95 / 100) << hits << " of " << asked;
}

// What each of several servers learns alone would keep one part of a chain here and drop another
// there.
TEST(HazardPolicy, OrdersByAgeLikeLruWhereChainsAreSpreadOverServers) {
  Tier tier(400, /*asks_for_parts=*/true);
  EntryId scan = 100'000;
  for (int round = 0; round < 60; ++round) {
    for (EntryId c = 0; c < 20; ++c) {
      ASSERT_EQ(tier.Request(Range(c * 100, 10)), 0u) << "800 blocks came since the last use";
      ASSERT_EQ(tier.Request(Range(c * 100, 10)), 10u);
      tier.Request(Range(scan, 30));
      scan += 30;
    }
  }
}

// Nobody asks for the rest of a chain whose start, on another server, is missing.
TEST(HazardPolicy, GroupsWithoutParentsLeaveOldestFirstAndEndFirst) {
  EvictionTier tier("hazard");
  tier.SetCapacity(1'000);
  constexpr EntryId kGroups = 40, kGroupBlocks = 4, kLookedUp = 1'000;
  const auto insert = [&](EntryId b, EntryId parent, uint32_t position) {
    tier.Insert(b, parent);
    tier.Admit(b, {(b + 1) * uint64_t{0x9E3779B97F4A7C15}, parent, position, 512, false});
  };
  insert(kLookedUp, kNoEntry, 0);
  const ChainBlock looked_up[] = {{(kLookedUp + 1) * uint64_t{0x9E3779B97F4A7C15}, kLookedUp}};
  tier.Lookup(looked_up, {.block_tokens = 512, .is_part = true});
  for (EntryId group = 0; group < kGroups; ++group) {
    for (EntryId i = 0; i < kGroupBlocks; ++i) {
      const EntryId b = group * kGroupBlocks + i;
      insert(b, i == 0 ? kNoEntry : b - 1, 64 + i);
    }
  }
  std::vector<EntryId> order;
  for (EntryId b = tier.TakeVictim(); b != kNoEntry; b = tier.TakeVictim()) {
    const bool has_parent = b != kLookedUp && b % kGroupBlocks != 0;
    tier.Remove(b, has_parent ? b - 1 : kNoEntry, {});
    if (b != kLookedUp) order.push_back(b);
  }
  ASSERT_EQ(order.size(), kGroups * kGroupBlocks);
  for (EntryId group = 0; group < kGroups; ++group) {
    for (EntryId i = 0; i < kGroupBlocks; ++i) {
      EXPECT_EQ(order[group * kGroupBlocks + i], group * kGroupBlocks + kGroupBlocks - 1 - i);
    }
  }
}

// Blocks whose parents the tier lacks, of two models with blocks of different sizes, among each
// other: what is learned must stay numbers.
TEST(HazardPolicy, LearnsOnAmongBlocksOfDifferentSizesWithoutParents) {
  Tier tier(400);
  EvictionTier& blocks = tier.tier();
  std::vector<EntryId> orphans;
  for (EntryId b = 500'000; b < 500'009; ++b) {
    const uint32_t block_tokens = b == 500'000 ? 128 : 16;
    blocks.Insert(b, kNoEntry);
    blocks.Admit(b, {Tier::Fingerprint(b), kNoEntry, /*position=*/64, block_tokens, false});
    orphans.push_back(b);
  }
  for (int i = 1; i <= 8; ++i) blocks.Remove(orphans[i], kNoEntry, {Tier::Fingerprint(orphans[i])});
  blocks.Remove(orphans[0], kNoEntry, {Tier::Fingerprint(orphans[0])});
  EXPECT_GT(HitsBetweenScans(tier), 20u * 20u * 10u / 2);
}

TEST(HazardPolicy, ForgetsWhatItLearnedWhenTheLoadChanges) {
  Tier tier(300);
  EntryId next = 0;
  for (int i = 0; i < 300; ++i) {  // first turns that are always continued
    tier.Request(Range(next, 4));
    tier.Request(Range(next, 6));
    next += 10;
  }
  for (int i = 0; i < 3'000; ++i) {  // and then never again: 90,000 units, over one half-life
    tier.Request(Range(next, 30));
    next += 30;
  }
  // Now one small set comes again and again.
  size_t hits = 0;
  for (int round = 0; round < 400; ++round) {
    const size_t found = tier.Request(Range(0, 6));
    if (round >= 200) hits += found;
    tier.Request(Range(next, 30));
    next += 30;
  }
  EXPECT_GT(hits, 1000u) << "of 1,200";
}

// Evicts `count` blocks, one after the other, of a tier that holds few; how many are remembered.
uint32_t RememberedOf(uint32_t block_tokens, uint32_t count) {
  BlockLists lists;
  HazardPolicy policy(lists);
  policy.SetCapacity(1000);
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t fingerprint = (i + 1) * uint64_t{0x9E3779B97F4A7C15};
    const ChainBlock lookup[] = {{fingerprint, kNoEntry}};
    policy.OnLookup(lookup, {.block_tokens = block_tokens});
    lists.Ensure(0).place = static_cast<uint32_t>(Place::kNew);
    policy.OnInsert(0, {fingerprint, kNoEntry, 0, block_tokens, false});
    EXPECT_EQ(policy.TakeVictim(), 0u);
    policy.OnRemove(0, {fingerprint, /*is_eviction=*/true});
  }
  return policy.remembered_count();
}

TEST(HazardPolicy, RemembersAtMostSixtyFiveThousandUnitsOfASmallTier) {
  EXPECT_EQ(RememberedOf(512, 200'000), 65'536u);
}

TEST(HazardPolicy, OfSmallBlocksOneInEachUnitIsRemembered) {
  EXPECT_NEAR(RememberedOf(16, 320'000), 10'000, 400);
}

TEST(ReuseRates, AClassThatIsUsedAgainHasAHigherIndexThanOneThatIsNot) {
  ReuseRates rates;
  for (int i = 0; i < 1000; ++i) {
    rates.Enter(0, 2, 1, i);
    rates.Enter(1, 2, 1, i);
    rates.Leave(0, 2, 1, i, i + 10);
    rates.Leave(1, 2, 1, i, i + 10);
    rates.CountReuse(0, 2, 1);
  }
  rates.Refresh(1010);
  EXPECT_GT(rates.hazard(0, 2), 0.05) << "once in 10 units, less what was assumed before";
  EXPECT_LT(rates.hazard(1, 2), rates.hazard(0, 2) / 10);
  EXPECT_GT(rates.index(0, 2), rates.index(1, 2));
}

TEST(ReuseRates, TheIndexLooksAheadToAnAgeAtWhichBlocksAreUsedAgain) {
  ReuseRates rates;
  for (int i = 0; i < 1000; ++i) {  // nobody comes before age 5, nearly all at 5
    for (int age = 0; age < 6; ++age) {
      rates.Enter(0, age, 1, i);
      rates.Leave(0, age, 1, i, i + ReuseRates::BeginOf(age + 1) - ReuseRates::BeginOf(age));
    }
    rates.CountReuse(0, 5, 1);
  }
  rates.Refresh(2000);
  EXPECT_GT(rates.index(0, 4), rates.hazard(0, 4) * 2) << "it is worth the wait";
}

TEST(ReuseRates, BlocksThatStillWaitCountAsExposure) {
  ReuseRates rates;
  rates.Enter(3, 1, 500, 0);
  rates.Refresh(1);
  const double before = rates.hazard(3, 1);
  rates.Refresh(10'000);
  EXPECT_LT(rates.hazard(3, 1), before / 10);
}

TEST(ReuseRates, HalfOfWhatWasLearnedIsForgottenInAHalfLife) {
  ReuseRates kept, forgotten;
  for (ReuseRates* rates : {&kept, &forgotten}) {
    rates->Enter(0, 0, 1000, 0);
    rates->Leave(0, 0, 1000, 0, 5);
    rates->CountReuse(0, 0, 1000);
  }
  forgotten.Decay(600'000, 60'000);
  kept.Refresh(5);
  forgotten.Refresh(5);
  EXPECT_LT(forgotten.hazard(0, 0), kept.hazard(0, 0) / 2);
}

}  // namespace
}  // namespace ibid
