// Shares of a tier: who loses when the tier is full, what moves when quotas change, and that no
// block is lost or counted twice by it.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/eviction/eviction_tier.h"

namespace ibid {
namespace {

constexpr uint64_t kNoQuota = EvictionTier::kNoQuota;

BlockTraits TraitsOf(EntryId b, EntryId parent = kNoEntry, uint32_t position = 0) {
  return {.fingerprint = b * uint64_t{0x9E3779B97F4A7C15},
          .parent = parent,
          .position = position,
          .block_tokens = 512};
}

class SharesTest : public ::testing::Test {
 protected:
  bool Insert(EntryId b, OwnerId owner, uint32_t pages = 1) {
    owners_.Set(b, owner);
    const bool fits = tier_.Insert(b, kNoEntry, pages);
    tier_.Admit(b, TraitsOf(b));
    return fits;
  }
  void Remove(EntryId b, uint32_t pages = 1) { tier_.Remove(b, kNoEntry, {b, true, pages}); }
  void Move(EntryId b, OwnerId to, uint32_t pages = 1) {
    tier_.Move(b, to, pages, TraitsOf(b));
    owners_.Set(b, to);
  }
  uint64_t Used(OwnerId owner) const {
    return owner < tier_.used_pages().size() ? tier_.used_pages()[owner] : 0;
  }

  BlockOwners owners_;
  EvictionTier tier_{"lru", &owners_};
};

TEST_F(SharesTest, AnOwnerOverItsQuotaIsToldSoAndLosesItsOwnColdestBlock) {
  tier_.SetRoom(100);
  EXPECT_FALSE(tier_.SetQuota(1, 2)) << "it has no block yet";
  EXPECT_TRUE(Insert(10, 2));
  EXPECT_TRUE(Insert(11, 1));
  EXPECT_TRUE(Insert(12, 1));
  EXPECT_FALSE(Insert(13, 1));
  EXPECT_EQ(tier_.ShareOf(13).TakeVictim(), 11u) << "10 is colder, and another's";
  Remove(11);
  EXPECT_TRUE(tier_.FitsQuota(13));
  EXPECT_EQ(Used(1), 2u);
  EXPECT_EQ(Used(2), 1u);
}

TEST_F(SharesTest, TheShareLosesThatUsesMostOfWhatItMay) {
  tier_.SetRoom(100);
  tier_.SetQuota(1, 50);
  for (EntryId b = 0; b < 60; ++b) Insert(b, 2);   // .6 of the tier
  for (EntryId b = 60; b < 89; ++b) Insert(b, 1);  // .58 of its quota
  EXPECT_EQ(tier_.TakeVictim(), 0u);
  for (EntryId b = 89; b < 92; ++b) Insert(b, 1);  // .64
  EXPECT_EQ(tier_.TakeVictim(), 60u);
}

TEST_F(SharesTest, WhereTheFirstShareHasNoVictimTheNextOneLoses) {
  tier_.SetRoom(10);
  tier_.SetQuota(1, 1);
  Insert(0, 1);
  Insert(1, 0);
  EXPECT_EQ(tier_.TakeVictim(), 0u);
  EXPECT_EQ(tier_.TakeVictim(), 1u);
  EXPECT_EQ(tier_.TakeVictim(), kNoEntry);
}

TEST_F(SharesTest, BlocksThatCameBeforeTheQuotaCountForItOnceTheyAreMoved) {
  tier_.SetRoom(100);
  for (EntryId b = 0; b < 4; ++b) Insert(b, 1);
  EXPECT_TRUE(tier_.SetQuota(1, 3)) << "they have to be moved";
  EXPECT_TRUE(Insert(4, 1));
  for (EntryId b = 0; b < 4; ++b) Move(b, 1);
  EXPECT_FALSE(tier_.FitsQuota(4));
  EXPECT_EQ(tier_.OwnShare(1)->TakeVictim(), 4u) << "the order is that of the moves";
  Remove(4);
  EXPECT_TRUE(tier_.SetQuota(1, kNoQuota)) << "and back";
  for (EntryId b = 0; b < 4; ++b) Move(b, 1);
  EXPECT_EQ(tier_.OwnShare(1), nullptr);
  EXPECT_EQ(tier_.common_share().blocks_count, 4u);
  EXPECT_EQ(Used(1), 4u);
}

TEST_F(SharesTest, ABlockThatGetsAnotherOwnerCountsForThatOne) {
  tier_.SetRoom(100);
  tier_.SetQuota(1, 10);
  Insert(0, 0, 3);
  Move(0, 1, 3);
  EXPECT_EQ(Used(0), 0u);
  EXPECT_EQ(Used(1), 3u);
  EXPECT_EQ(tier_.OwnShare(1)->used_pages, 3u);
  Move(0, 2, 3);
  EXPECT_EQ(Used(1), 0u);
  EXPECT_EQ(tier_.OwnShare(1)->used_pages, 0u);
  Remove(0, 3);
  EXPECT_EQ(Used(2), 0u);
}

// Compared with lists, over owners with blocks of different sizes whose quotas come and go.
TEST_F(SharesTest, FollowsASimpleModelWhateverHappens) {
  constexpr uint64_t kRoom = 64;
  constexpr OwnerId kOwners = 5;
  std::mt19937 random(7);
  const auto below = [&](uint32_t n) { return random() % n; };
  const auto pages_of = [](OwnerId owner) { return owner % 3 + 1u; };
  tier_.SetRoom(kRoom);
  struct Share {
    uint64_t quota = kNoQuota;
    std::list<EntryId> blocks;  // the coldest first
    uint64_t pages = 0;
  };
  std::map<OwnerId, Share> shares;  // 0: the common one, as no quota is set for owner 0
  std::map<EntryId, std::pair<OwnerId, OwnerId>> where;  // owner, share
  std::vector<uint64_t> used(kOwners, 0);
  const auto take_out = [&](EntryId b) {
    const auto [owner, share] = where.at(b);
    shares[share].blocks.remove(b);
    shares[share].pages -= pages_of(owner);
    used[owner] -= pages_of(owner);
    where.erase(b);
  };
  const auto bring_in = [&](EntryId b, OwnerId owner) {
    const OwnerId share = shares[owner].quota == kNoQuota ? 0 : owner;
    shares[share].blocks.push_back(b);
    shares[share].pages += pages_of(owner);
    used[owner] += pages_of(owner);
    where[b] = {owner, share};
  };
  const auto use_of = [&](const Share& share) {
    return static_cast<double>(share.pages) / static_cast<double>(std::min(share.quota, kRoom));
  };
  const auto evict = [&](EntryId b) {
    ASSERT_TRUE(where.contains(b)) << b;
    const auto [owner, share] = where.at(b);
    ASSERT_EQ(b, shares[share].blocks.front()) << "the coldest of its share";
    take_out(b);
    Remove(b, pages_of(owner));
  };
  for (int step = 0; step < 20'000; ++step) {
    const OwnerId owner = static_cast<OwnerId>(below(kOwners));
    const uint32_t kind = below(100);
    if (kind < 70) {
      EntryId b = below(500);
      while (where.contains(b)) b = (b + 1) % 500;
      const bool fits = Insert(b, owner, pages_of(owner));
      bring_in(b, owner);
      const OwnerId share = where.at(b).second;
      ASSERT_EQ(fits, shares[share].pages <= shares[share].quota);
      while (!tier_.FitsQuota(b) && shares[share].blocks.front() != b) {
        evict(tier_.ShareOf(b).TakeVictim());
      }
      uint64_t total = 0;
      for (const auto& [number, each] : shares) total += each.pages;
      while (total > kRoom) {
        double most = 0;
        for (const auto& [number, each] : shares) {
          if (!each.blocks.empty()) most = std::max(most, use_of(each));
        }
        const EntryId victim = tier_.TakeVictim();
        ASSERT_EQ(use_of(shares[where.at(victim).second]), most);
        total -= pages_of(where.at(victim).first);
        evict(victim);
      }
    } else if (kind < 85 && !where.empty()) {
      auto it = where.lower_bound(below(500));
      if (it == where.end()) it = where.begin();
      tier_.Use(it->first);
      std::list<EntryId>& blocks = shares[it->second.second].blocks;
      blocks.splice(blocks.end(), blocks, std::find(blocks.begin(), blocks.end(), it->first));
    } else if (kind < 95 && !where.empty()) {
      auto it = where.lower_bound(below(500));
      if (it == where.end()) it = where.begin();
      const EntryId b = it->first;
      Remove(b, pages_of(it->second.first));
      take_out(b);
    } else if (owner != 0) {
      const uint64_t quota = below(3) == 0 ? kNoQuota : below(40) + 3;
      shares[owner].quota = quota;
      tier_.SetQuota(owner, quota);
      std::vector<EntryId> all;
      for (const auto& [b, at] : where) all.push_back(b);
      for (const EntryId b : all) {
        const OwnerId of = where.at(b).first;
        Move(b, of, pages_of(of));
        const OwnerId belongs = shares[of].quota == kNoQuota ? 0 : of;
        if (belongs == where.at(b).second) continue;
        take_out(b);
        bring_in(b, of);
      }
    }
    for (OwnerId each = 0; each < kOwners; ++each) ASSERT_EQ(Used(each), used[each]) << step;
  }
}

class SharesOfEachPolicyTest : public ::testing::TestWithParam<std::string> {};

// Chains of several owners, some of whom have quotas that come and go: children leave before their
// parents, no block is lost, and all that was counted goes back to zero.
TEST_P(SharesOfEachPolicyTest, KeepsTheLeafRuleAndLosesNoBlock) {
  constexpr OwnerId kOwners = 4;
  constexpr uint32_t kChains = 12, kLength = 6;
  BlockOwners owners;
  EvictionTier tier(GetParam(), &owners);
  tier.SetRoom(40);
  tier.SetCapacity(40);
  std::mt19937 random(11);
  const auto below = [&](uint32_t n) { return random() % n; };
  const auto owner_of = [](EntryId b) { return static_cast<OwnerId>(b / kLength % kOwners); };
  const auto parent_of = [](EntryId b) { return b % kLength == 0 ? kNoEntry : b - 1; };
  const auto traits_of = [&](EntryId b) { return TraitsOf(b, parent_of(b), b % kLength); };
  size_t count = 0;
  const auto evict = [&](EntryId b) {
    ASSERT_NE(b, kNoEntry) << count << " blocks are there, and none is given out";
    ASSERT_EQ(tier.children_count(b), 0u) << b;
    tier.Remove(b, parent_of(b), {traits_of(b).fingerprint, true, 1});
    --count;
  };
  for (int step = 0; step < 5'000; ++step) {
    const uint32_t chain = below(kChains);
    std::vector<ChainBlock> blocks;
    for (EntryId b = chain * kLength; b < (chain + 1) * kLength; ++b) {
      blocks.push_back({traits_of(b).fingerprint, b});
    }
    tier.Lookup(blocks, {.block_tokens = 512}, owner_of(chain * kLength));
    for (const ChainBlock& block : blocks) {
      if (tier.contains(block.id) || below(4) == 0) continue;
      owners.Set(block.id, owner_of(block.id));
      tier.Insert(block.id, parent_of(block.id), 1);
      tier.Admit(block.id, traits_of(block.id));
      ++count;
      for (; count > 40;) evict(tier.TakeVictim());
      if (HasFatalFailure()) return;
    }
    if (below(10) == 0) {
      tier.SetQuota(static_cast<OwnerId>(below(kOwners)), below(2) == 0 ? kNoQuota : below(30));
    }
    // Some are moved late, so that chains lie in two shares.
    for (EntryId b = 0; b < kChains * kLength; ++b) {
      if (below(8) == 0) tier.Move(b, owner_of(b), 1, traits_of(b));
    }
  }
  while (count > 0 && !HasFatalFailure()) evict(tier.TakeVictim());
  for (const uint64_t pages : tier.used_pages()) EXPECT_EQ(pages, 0u);
  EXPECT_EQ(tier.TakeVictim(), kNoEntry);
}

INSTANTIATE_TEST_SUITE_P(EachPolicy, SharesOfEachPolicyTest,
                         ::testing::Values("hazard", "lru", "arc", "s3fifo-10", "s3fifo-60"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace ibid
