// Blocks in and out through our own channel.
#include "tests/cache_server/service/server_fixture.h"
#include "transport/limits.h"

namespace ibid {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using PublishFetchTest = ServerFixture;

TEST_F(PublishFetchTest, FetchReturnsTheBytesThatWerePublished) {
  StartServer();
  for (const KvLayout& layout : {SmallLayout(), LargeLayout()}) {
    const NamespaceSpec spec = SpecOf(layout);
    const SampleBlocks blocks = MakeBlocks(spec, 6);
    const auto writer = Connect(spec);
    EXPECT_THAT(writer->Publish(blocks), Each(BlockOutcome::kOk));
    const auto reader = Connect(spec);
    EXPECT_THAT(reader->Fetch({0, blocks.ns}, blocks.keys(), layout.PayloadBytes()),
                Each(BlockOutcome::kOk));
    EXPECT_EQ(reader->received, blocks.payloads);
  }
}

TEST_F(PublishFetchTest, APayloadWithAnOwnerTravelsTheSame) {
  StartServer();
  const NamespaceSpec spec = SpecOf(LargeLayout());
  const SampleBlocks blocks = MakeBlocks(spec, 4);
  std::vector<PublishBlock> owned = blocks.ToPublish();
  const auto owner = std::make_shared<int>(0);
  for (PublishBlock& block : owned) block.owner = owner;
  const auto client = Connect(spec);
  EXPECT_THAT(client->Publish(blocks.ns, owned), Each(BlockOutcome::kOk));
  owned.clear();
  EXPECT_TRUE(Eventually([&] { return owner.use_count() == 1; }));
  EXPECT_THAT(client->Fetch({0, blocks.ns}, blocks.keys(), LargeLayout().PayloadBytes()),
              Each(BlockOutcome::kOk));
  EXPECT_EQ(client->received, blocks.payloads);
}

TEST_F(PublishFetchTest, MissesComeInTheirPlace) {
  StartServer();
  const NamespaceSpec spec = SpecOf(SmallLayout());
  const SampleBlocks stored = MakeBlocks(spec, 2);
  const SampleBlocks other = MakeBlocks(spec, 1, 9'000);
  const auto client = Connect(spec);
  client->Publish(stored);
  const std::vector<BlockKey> keys = {other.links[0].key, stored.links[0].key, other.links[0].key,
                                      stored.links[1].key};
  EXPECT_THAT(
      client->Fetch({0, stored.ns}, keys, SmallLayout().PayloadBytes()),
      ElementsAre(BlockOutcome::kMiss, BlockOutcome::kOk, BlockOutcome::kMiss, BlockOutcome::kOk));
  EXPECT_EQ(client->received[1], stored.payloads[0]);
  EXPECT_EQ(client->received[3], stored.payloads[1]);
  EXPECT_THAT(client->received[0], Each(std::byte{0xee}));
  // 43: counted by what was asked, not by calls.
  const CacheStats stats = client->Stats();
  EXPECT_EQ(stats.requested_blocks, 4u);
  EXPECT_EQ(stats.missed_blocks, 2u);
  uint64_t hits = 0;
  for (const auto& tier : stats.tiers) hits += tier.hits;
  EXPECT_EQ(hits + stats.missed_blocks, stats.requested_blocks);
}

// 3, 4: a block whose checksum is wrong is never visible, and the others of its stream are not its
// victims.
TEST_F(PublishFetchTest, AWrongChecksumConcernsItsBlockAlone) {
  StartServer();
  const NamespaceSpec spec = SpecOf(SmallLayout());
  const SampleBlocks blocks = MakeBlocks(spec, 3);
  std::vector<PublishBlock> sent = blocks.ToPublish();
  sent[1].checksum = Checksum(blocks.payloads[1]) ^ 1;
  const auto client = Connect(spec);
  EXPECT_THAT(client->Publish(blocks.ns, sent),
              ElementsAre(BlockOutcome::kOk, BlockOutcome::kCorrupt, BlockOutcome::kOk));
  EXPECT_EQ(client->Match(blocks.ns, blocks.keys()).matched_count, 1u);
  EXPECT_EQ(client->Stats().corrupt_blocks, 1u);
  // The key is not spoilt: the right bytes are taken.
  EXPECT_THAT(client->Publish(blocks),
              ElementsAre(BlockOutcome::kPresent, BlockOutcome::kOk, BlockOutcome::kPresent));
}

// 12: half a block is no block.
TEST_F(PublishFetchTest, AWrongSizeOrAMissingFieldIsInvalid) {
  StartServer();
  const NamespaceSpec spec = SpecOf(SmallLayout());
  const SampleBlocks blocks = MakeBlocks(spec, 4);
  std::vector<PublishBlock> sent = blocks.ToPublish();
  sent[0].payload = sent[0].payload.first(sent[0].payload.size() / 4);
  sent[1].link.parent = BlockKey{};
  sent[2].link.token_count = 17;
  const auto client = Connect(spec);
  EXPECT_THAT(client->Publish(blocks.ns, sent),
              ElementsAre(BlockOutcome::kInvalid, BlockOutcome::kInvalid, BlockOutcome::kInvalid,
                          BlockOutcome::kOk));
  EXPECT_THAT(client->details[0], HasSubstr(absl::StrCat(SmallLayout().PayloadBytes())));
  EXPECT_EQ(client->Stats().reservations, 0u);
}

TEST_F(PublishFetchTest, TheSecondOfTwoWritersIsToldWhatTheFirstDoes) {
  StartServer();
  const NamespaceSpec spec = SpecOf(SmallLayout());
  const SampleBlocks blocks = MakeBlocks(spec, 2);
  const auto first = Connect(spec);
  const auto second = Connect(spec);
  const auto offered =
      first->channel->Offer(first->session_id(), blocks.ns, blocks.keys(), kPatience);
  ASSERT_TRUE(offered.ok()) << offered.status();
  EXPECT_THAT(offered->outcomes, Each(BlockOutcome::kWanted));
  EXPECT_THAT(second->Publish(blocks), Each(BlockOutcome::kPending));
  const auto refused =
      second->channel->Offer(second->session_id(), blocks.ns, blocks.keys(), kPatience);
  ASSERT_TRUE(refused.ok());
  EXPECT_THAT(refused->outcomes, Each(BlockOutcome::kPending));
  EXPECT_THAT(first->Publish(blocks), Each(BlockOutcome::kOk));
  EXPECT_THAT(second->Publish(blocks), Each(BlockOutcome::kPresent));
}

// Layers travel alone, under a checksum of their own.
TEST_F(PublishFetchTest, ALayerRangeIsThatPartOfTheBlock) {
  StartServer();
  const KvLayout layout = SmallLayout();
  const NamespaceSpec spec = SpecOf(layout);
  const SampleBlocks blocks = MakeBlocks(spec, 3);
  const auto client = Connect(spec);
  client->Publish(blocks);
  const FetchCall last_two{0, blocks.ns, 0, 1, 2};
  EXPECT_THAT(client->Fetch(last_two, blocks.keys(), 2 * layout.LayerBytes()),
              Each(BlockOutcome::kOk));
  for (size_t i = 0; i < blocks.payloads.size(); ++i) {
    const std::vector<std::byte> expected(
        blocks.payloads[i].begin() + static_cast<std::ptrdiff_t>(layout.LayerBytes()),
        blocks.payloads[i].end());
    EXPECT_EQ(client->received[i], expected) << i;
  }
  absl::Status status;
  client->Fetch({0, blocks.ns, 0, 2, 2}, blocks.keys(), 2 * layout.LayerBytes(), &status);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  client->Fetch({0, blocks.ns, 0, 0xffffffff, 2}, blocks.keys(), 2 * layout.LayerBytes(), &status);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

// A destination of another size is never filled in part and called complete.
TEST_F(PublishFetchTest, ADestinationOfTheWrongSizeIsNotFilled) {
  StartServer();
  const NamespaceSpec spec = SpecOf(SmallLayout());
  const SampleBlocks blocks = MakeBlocks(spec, 1);
  const auto client = Connect(spec);
  client->Publish(blocks);
  EXPECT_THAT(client->Fetch({0, blocks.ns}, blocks.keys(), SmallLayout().PayloadBytes() / 2),
              ElementsAre(BlockOutcome::kCorrupt));
  EXPECT_THAT(client->received[0], Each(std::byte{0xee}));
}

// 11: a lease that does not hold any more is found out before a single byte is moved.
TEST_F(PublishFetchTest, AFetchUnderAReleasedLeaseMovesNothing) {
  StartServer();
  const NamespaceSpec spec = SpecOf(SmallLayout());
  const SampleBlocks blocks = MakeBlocks(spec, 2);
  const auto client = Connect(spec);
  client->Publish(blocks);
  const MatchReply match = client->Match(blocks.ns, blocks.keys(), /*lease=*/true);
  ASSERT_NE(match.lease_id, 0u);
  const FetchCall call{client->session_id(), blocks.ns, match.lease_id};
  EXPECT_THAT(client->Fetch(call, blocks.keys(), SmallLayout().PayloadBytes()),
              Each(BlockOutcome::kOk));

  const uint64_t released[] = {match.lease_id};
  client->session->ReleaseLeases(released);
  ASSERT_TRUE(Eventually([&] { return client->Stats().leases == 0; }));
  absl::Status status;
  client->Fetch(call, blocks.keys(), SmallLayout().PayloadBytes(), &status);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  for (const auto& bytes : client->received) EXPECT_THAT(bytes, Each(std::byte{0xee}));
  // Nor does another session have the use of it.
  const auto other = Connect(spec);
  other->Fetch({other->session_id(), blocks.ns, match.lease_id}, blocks.keys(),
               SmallLayout().PayloadBytes(), &status);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
}

// 2: nothing goes in or out of a namespace whose layout was not agreed on.
TEST_F(PublishFetchTest, ANamespaceThatIsNotOpenIsRefused) {
  StartServer();
  const SampleBlocks blocks = MakeBlocks(SpecOf(SmallLayout()), 1);
  TestClient client(server->address());
  absl::Status status;
  client.Publish(blocks.ns, blocks.ToPublish(), &status);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  client.Fetch({0, blocks.ns}, blocks.keys(), SmallLayout().PayloadBytes(), &status);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
}

// 24: more frames than either side lets be in flight, both ways, without a deadlock.
TEST_F(PublishFetchTest, AStreamLongerThanItsWindowsGoesThrough) {
  StartServer();
  const NamespaceSpec spec = SpecOf(SmallLayout());
  const SampleBlocks blocks = MakeBlocks(spec, 3 * kPublishFramesUnanswered);
  const auto client = Connect(spec);
  EXPECT_THAT(client->Publish(blocks), Each(BlockOutcome::kOk));
  EXPECT_THAT(client->Fetch({0, blocks.ns}, blocks.keys(), SmallLayout().PayloadBytes()),
              Each(BlockOutcome::kOk));
  EXPECT_EQ(client->received, blocks.payloads);
}

// Blocks that share messages, that fill one alone, and that are sent from memory of their own.
TEST_F(PublishFetchTest, BlocksOfEachSizeGoThrough) {
  StartServer();
  for (const uint32_t half_kib : {1u, 32u, 64u, 65u, 128u, 129u}) {
    KvLayout layout = SmallLayout();
    layout.layers = 1;
    layout.kv_heads = 1;
    layout.dtype = KvDtype::kInt8;
    layout.k_dim = 32 * half_kib;
    layout.v_dim = 0;
    const NamespaceSpec spec = SpecOf(layout, absl::StrCat("half KiB ", half_kib));
    const SampleBlocks blocks = MakeBlocks(spec, half_kib == 1 ? 1'000 : 50);
    ASSERT_EQ(blocks.payloads[0].size(), 512u * half_kib);
    const auto client = Connect(spec);
    EXPECT_THAT(client->Publish(blocks), Each(BlockOutcome::kOk));
    EXPECT_THAT(client->Fetch({0, blocks.ns}, blocks.keys(), layout.PayloadBytes()),
                Each(BlockOutcome::kOk));
    EXPECT_EQ(client->received, blocks.payloads);
    EXPECT_THAT(client->Publish(blocks), Each(BlockOutcome::kPresent));
    EXPECT_TRUE(client->channel->Drop(nullptr, {}, kPatience).ok());
  }
}

// 22: a store that is full of leased blocks says so, block by block.
TEST_F(PublishFetchTest, AFullStoreRejectsByNameAndKeepsTheStream) {
  ServerOptions options = SmallServer();
  options.host_bytes_max = options.extent_bytes;  // one extent: at most two blocks of 2 MiB
  options.leased_percent_per_session_max = 100;
  StartServer(options);
  const NamespaceSpec spec = SpecOf(LargeLayout());
  const SampleBlocks blocks = MakeBlocks(spec, 4);
  const auto client = Connect(spec);
  SampleBlocks leased = MakeBlocks(spec, 2);
  EXPECT_THAT(client->Publish(leased), Each(BlockOutcome::kOk));
  ASSERT_EQ(client->Match(leased.ns, leased.keys(), /*lease=*/true).matched_count, 2u);
  EXPECT_THAT(client->Publish(blocks),
              ElementsAre(BlockOutcome::kPresent, BlockOutcome::kPresent, BlockOutcome::kRejected,
                          BlockOutcome::kRejected));
  EXPECT_NE(client->details[2], "");
}

// 24: several clients at once, with overlapping chains.
TEST_F(PublishFetchTest, ManyClientsPublishAndFetchTheSameChainsAtOnce) {
  StartServer();
  const NamespaceSpec spec = SpecOf(SmallLayout());
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      const auto client = Connect(spec);
      for (uint32_t round = 0; round < 8; ++round) {
        const SampleBlocks blocks = MakeBlocks(spec, 16, 100'000 * ((t + round) % 4));
        for (const BlockOutcome outcome : client->Publish(blocks)) {
          EXPECT_TRUE(outcome == BlockOutcome::kOk || outcome == BlockOutcome::kPresent ||
                      outcome == BlockOutcome::kPending);
        }
        const auto outcomes =
            client->Fetch({0, blocks.ns}, blocks.keys(), SmallLayout().PayloadBytes());
        for (size_t i = 0; i < outcomes.size(); ++i) {
          EXPECT_TRUE(outcomes[i] != BlockOutcome::kOk ||
                      client->received[i] == blocks.payloads[i]);
          EXPECT_NE(outcomes[i], BlockOutcome::kCorrupt);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto client = Connect(spec);
  EXPECT_TRUE(Eventually(
      [&] { return client->Stats().pinned_bytes == 0 && client->Stats().reservations == 0; }));
}

}  // namespace
}  // namespace ibid
