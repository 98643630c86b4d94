#include "client/placement.h"

#include <algorithm>
#include <map>

#include "gtest/gtest.h"

namespace ibid {
namespace {

BlockKey KeyOf(uint32_t n) { return MakeBlockKey(BlockKey{}, std::vector<uint32_t>{n}); }

std::vector<std::string> Servers(int count) {
  std::vector<std::string> servers;
  for (int i = 0; i < count; ++i) servers.push_back("10.0.0." + std::to_string(i) + ":7070");
  return servers;
}

std::vector<ChainLink> Chain(uint32_t blocks_count) {
  std::vector<uint32_t> tokens(blocks_count * 4);
  for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = i;
  return MakeChain(NamespaceId{}, tokens, 4, false);
}

TEST(PlacementTest, WeightsAreTheDocumentedHash) {
  const BlockKey key{
      *DigestFromHex("d764aed051dabb1bf4e2495c92bcfea4a3a80bf65328b4b2c13b3293407b51da")};
  EXPECT_EQ(PlacementWeight("10.0.0.1:7070", key), 0x26f7c30484edd02fu);
  EXPECT_EQ(PlacementWeight("10.0.0.2:7070", key), 0x53660c38ab6bc97eu);
  EXPECT_EQ(PlacementWeight("cache.example:7070", key), 0x541983b130de3c75u);
}

TEST(PlacementTest, OrderOfTheServersIsIrrelevant) {
  const std::vector<std::string> servers = Servers(7);
  std::vector<std::string> reversed(servers.rbegin(), servers.rend());
  for (uint32_t n = 0; n < 1'000; ++n) {
    EXPECT_EQ(servers[PlaceGroup(servers, KeyOf(n))], reversed[PlaceGroup(reversed, KeyOf(n))]);
  }
}

TEST(PlacementTest, ServersGetEqualShares) {
  const std::vector<std::string> servers = Servers(5);
  std::map<uint32_t, int> shares;
  for (uint32_t n = 0; n < 10'000; ++n) shares[PlaceGroup(servers, KeyOf(n))]++;
  for (const auto& [server, share] : shares)
    EXPECT_NEAR(share, 2'000, 200) << server;  // 5 standard deviations
}

TEST(PlacementTest, AddingAServerMovesItsShareOfGroupsAndNoOther) {
  const std::vector<std::string> before = Servers(9), after = Servers(10);
  int moved_count = 0;
  for (uint32_t n = 0; n < 10'000; ++n) {
    const uint32_t old_server = PlaceGroup(before, KeyOf(n)),
                   new_server = PlaceGroup(after, KeyOf(n));
    if (old_server == new_server) continue;
    EXPECT_EQ(new_server, 9u);
    ++moved_count;
  }
  EXPECT_NEAR(moved_count, 1'000, 150);
}

TEST(PlacementTest, BlocksOfAGroupAreOnTheServerOfItsFirstBlock) {
  const std::vector<std::string> servers = Servers(5);
  const std::vector<ChainLink> chain = Chain(200);
  const std::vector<uint16_t> placed = Placement(servers, 64).Place(chain);
  ASSERT_EQ(placed.size(), chain.size());
  for (size_t i = 0; i < chain.size(); ++i)
    EXPECT_EQ(placed[i], PlaceGroup(servers, chain[i / 64 * 64].key)) << i;
}

TEST(PlacementTest, AChainThatGrowsIsPlacedByItsEndAlone) {
  Placement placement(Servers(5), 8);
  const std::vector<ChainLink> chain = Chain(40);
  const std::vector<uint16_t> whole = Placement(Servers(5), 8).Place(chain);
  for (size_t i = 0; i < chain.size(); ++i)
    EXPECT_EQ(placement.Place({&chain[i], 1})[0], whole[i]) << i;
}

TEST(PlacementTest, ABlockInsideOfAnUnknownGroupIsNotPlaced) {
  Placement placement(Servers(3), 8);
  const std::vector<ChainLink> chain = Chain(20);
  const std::vector<uint16_t> placed = placement.Place({&chain[3], 10});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(placed[i], Placement::kUnplaced);
  for (int i = 5; i < 10; ++i) EXPECT_NE(placed[i], Placement::kUnplaced);  // from block 8 on
}

TEST(PlacementTest, LinksOfSeveralChainsAreEachPlacedByTheirOwn) {
  const std::vector<ChainLink> one = Chain(16);
  std::vector<ChainLink> other = Chain(16);
  BlockKey parent = KeyOf(99);
  for (ChainLink& link : other) {
    link.parent = parent;
    link.key = parent = MakeBlockKey(parent, std::vector<uint32_t>{1});
  }
  Placement placement(Servers(5), 8);
  const std::vector<uint16_t> of_one = placement.Place(one), of_other = placement.Place(other);
  const std::vector<ChainLink> mixed = {one[3], other[3], one[12], other[13]};
  EXPECT_EQ(placement.Place(mixed),
            (std::vector<uint16_t>{of_one[3], of_other[3], of_one[12], of_other[13]}));
}

TEST(PlacementTest, RemembersTheLastBlocksAndForgetsOldOnes) {
  Placement placement(Servers(3), 1u << 30);
  std::vector<ChainLink> chain = Chain(2);
  const uint16_t server = placement.Place({&chain[0], 1})[0];
  EXPECT_EQ(placement.Place({&chain[1], 1})[0], server);
  for (size_t generation = 0; generation < 2; ++generation) {
    std::vector<ChainLink> others(Placement::kRememberedBlocksMax + 1);
    for (size_t i = 0; i < others.size(); ++i)
      others[i].key.digest = KeyOf(7).digest, others[i].key.digest[0] ^= i,
      others[i].key.digest[1] ^= i >> 8, others[i].key.digest[2] ^= i >> 16,
      others[i].key.digest[3] ^= generation;
    placement.Place(others);
  }
  EXPECT_EQ(placement.Place({&chain[1], 1})[0], Placement::kUnplaced);
}

}  // namespace
}  // namespace ibid
