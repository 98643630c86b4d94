// Client against servers and networks that fail: whatever happens, a miss within the deadline,
// never wrong data.
#include <thread>

#include "tests/client/cluster.h"

namespace ibid {
namespace {

// What a loaded machine may add to a deadline.
constexpr absl::Duration kSlack = absl::Milliseconds(400);
// min(session_ttl, lease_ttl) / 5 of the default options.
constexpr absl::Duration kHeartbeat = absl::Seconds(3);

ClientOptions QuickOptions(const Cluster& cluster) {
  ClientOptions options = cluster.Options();
  options.match_timeout = absl::Milliseconds(200);
  options.fetch_timeout = absl::Milliseconds(400);
  options.publish_timeout = absl::Milliseconds(400);
  options.admin_timeout = absl::Milliseconds(500);
  return options;
}

bool CanPublish(Client* client, const NamespaceHandle& ns, uint32_t prompt) {
  return PublishChain(client, ns, TestChain(ns.id, 4, prompt)).is_complete();
}

TEST(ClientFaultTest, NoServerIsAMissWithinTheDeadline) {
  ClientOptions options;
  int closed_port = 0;
  closed_port = FaultProxy().port();  // it is closed again
  options.servers = {"127.0.0.1:" + std::to_string(closed_port)};
  options.match_timeout = absl::Milliseconds(100);
  options.admin_timeout = absl::Milliseconds(100);
  const auto client = Cluster::Connect(options);
  absl::StatusOr<NamespaceHandle> ns;
  EXPECT_LT(TimeOf([&] { ns = client->OpenNamespace(TestSpec()); }),
            absl::Milliseconds(100) + kSlack);
  ASSERT_TRUE(ns.ok()) << "a server that is away is no error";
  const auto chain = TestChain(ns->id, 8);
  EXPECT_LT(TimeOf([&] {
              for (int i = 0; i < 100; ++i) EXPECT_EQ(client->Match(*ns, chain).blocks_count(), 0u);
            }),
            absl::Milliseconds(100) + kSlack);
  const PublishResult published = PublishChain(client.get(), *ns, chain);
  EXPECT_FALSE(published.is_complete());
  EXPECT_EQ(published.blocks, std::vector<BlockResult>(8, BlockResult::kFailed));
  EXPECT_TRUE(absl::IsUnavailable(published.status)) << published.status;
  EXPECT_FALSE(client->is_any_reachable());
  EXPECT_TRUE(absl::IsUnavailable(client->Drop(&ns->id, {}).status()));
  EXPECT_FALSE(client->Stats()[0].status.ok());
}

// 16, 18: accepts connections and never answers.
TEST(ClientFaultTest, ABlackHoleIsAMissWithinTheDeadline) {
  FaultProxy black_hole;
  ClientOptions options;
  options.servers = {black_hole.address()};
  options.connect_timeout = absl::Milliseconds(300);
  options.match_timeout = absl::Milliseconds(100);
  options.admin_timeout = absl::Milliseconds(100);
  auto client = Cluster::Connect(options);
  const NamespaceHandle ns = *client->OpenNamespace(TestSpec());
  const auto chain = TestChain(ns.id, 8);
  EXPECT_LT(TimeOf([&] {
              for (int i = 0; i < 50; ++i) EXPECT_EQ(client->Match(ns, chain).blocks_count(), 0u);
            }),
            absl::Milliseconds(100) + kSlack);
  EXPECT_LT(TimeOf([&] { PublishChain(client.get(), ns, chain); }), kSlack);
  EXPECT_LT(TimeOf([&] { client.reset(); }), absl::Seconds(1));
}

TEST(ClientFaultTest, AServerThatComesLateIsUsedOnceItIsThere) {
  Cluster cluster(1);
  cluster.Kill(0);
  const auto client = Cluster::Connect(QuickOptions(cluster));
  const NamespaceHandle ns = *client->OpenNamespace(TestSpec());
  EXPECT_FALSE(CanPublish(client.get(), ns, 0));
  cluster.Restart(0);
  EXPECT_TRUE(Eventually(kHeartbeat, [&] { return CanPublish(client.get(), ns, 0); }));
}

// 10: after a timeout nothing writes to the destinations any more.
TEST(ClientFaultTest, AStalledServerCostsItsDeadlineAndNothingIsWrittenLater) {
  Cluster cluster(1);
  const auto client = Cluster::Connect(QuickOptions(cluster));
  const NamespaceHandle ns = *client->OpenNamespace(TestSpec());
  const auto chain = TestChain(ns.id, 40);
  ASSERT_TRUE(PublishChain(client.get(), ns, chain).is_complete());
  const PrefixMatch match = client->Match(ns, chain);
  ASSERT_EQ(match.blocks_count(), 40u);

  cluster.proxy(0).Stall(true);
  Destinations into(ns, 40);
  FetchResult fetched;
  EXPECT_LT(TimeOf([&] { fetched = client->Fetch(match, 0, into.views()); }),
            absl::Milliseconds(400) + kSlack);
  EXPECT_TRUE(absl::IsDeadlineExceeded(fetched.status)) << fetched.status;
  EXPECT_LT(fetched.leading_ok, 40u);
  EXPECT_LT(TimeOf([&] { EXPECT_EQ(client->Match(ns, chain).blocks_count(), 0u); }),
            absl::Milliseconds(200) + kSlack);
  EXPECT_LT(TimeOf([&] { EXPECT_FALSE(CanPublish(client.get(), ns, 9'000)); }),
            absl::Milliseconds(400) + kSlack);

  // The breaker is open now: nobody waits any more.
  EXPECT_FALSE(client->is_any_reachable());
  EXPECT_LT(TimeOf([&] {
              for (int i = 0; i < 100; ++i) client->Match(ns, chain);
            }),
            absl::Milliseconds(100));

  const auto before = into.Copy();
  cluster.proxy(0).Stall(false);
  EXPECT_TRUE(
      Eventually(kHeartbeat, [&] { return client->Match(ns, chain).blocks_count() == 40; }));
  EXPECT_EQ(into.Copy(), before);
}

// 11, 17: leases of another incarnation are void, and nothing is written before that is known.
TEST(ClientFaultTest, ARestartVoidsLeasesAndIsNoticed) {
  Cluster cluster(1);
  const auto client = Cluster::Connect(QuickOptions(cluster));
  const NamespaceHandle ns = *client->OpenNamespace(TestSpec());
  const auto chain = TestChain(ns.id, 8);
  ASSERT_TRUE(PublishChain(client.get(), ns, chain).is_complete());
  const PrefixMatch match = client->Match(ns, chain);
  ASSERT_EQ(match.blocks_count(), 8u);

  cluster.Restart(0);
  EXPECT_TRUE(Eventually(kHeartbeat, [&] {
    return PublishChain(client.get(), ns, chain).is_complete();
  })) << "the namespace is open again at the new incarnation";
  // The new incarnation has the same blocks, but not this lease.
  Destinations into(ns, 8);
  const FetchResult fetched = client->Fetch(match, 0, into.views());
  EXPECT_EQ(fetched.blocks, std::vector<BlockResult>(8, BlockResult::kMiss));
  EXPECT_TRUE(absl::IsFailedPrecondition(fetched.status)) << fetched.status;
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(into.IsUntouched(i)) << i;
  EXPECT_EQ(client->Match(ns, chain).blocks_count(), 8u);
}

TEST(ClientFaultTest, RestartsInARowAreSurvived) {
  Cluster cluster(3);
  const auto client = Cluster::Connect(QuickOptions(cluster));
  const NamespaceHandle ns = *client->OpenNamespace(TestSpec());
  for (uint32_t round = 0; round < 4; ++round) {
    const auto chain = TestChain(ns.id, 24, round * 1'000);
    EXPECT_TRUE(Eventually(kHeartbeat, [&] {
      return PublishChain(client.get(), ns, chain).is_complete();
    })) << round;
    const PrefixMatch match = client->Match(ns, chain);
    EXPECT_EQ(match.blocks_count(), 24u);
    cluster.Restart(round % 3);
    Destinations into(ns, match.blocks_count());
    const FetchResult fetched = client->Fetch(match, 0, into.views());
    for (size_t i = 0; i < fetched.blocks.size(); ++i) {
      EXPECT_TRUE(fetched.blocks[i] != BlockResult::kOk || into.Holds(i, chain[i].key)) << i;
    }
  }
}

// 16: the server has forgotten the session (the process was suspended, say) while the connection
// stayed.
TEST(ClientFaultTest, AnUnknownSessionRegistersAgain) {
  ManualClock clock;
  Cluster cluster(1, &clock);
  const auto client = Cluster::Connect(cluster.Options());
  const NamespaceHandle ns = *client->OpenNamespace(TestSpec());
  ASSERT_TRUE(CanPublish(client.get(), ns, 0));
  const PrefixMatch match = client->Match(ns, TestChain(ns.id, 4));
  clock.Advance(absl::Minutes(10));
  cluster.server(0).store().RunMaintenance();
  EXPECT_TRUE(Eventually(kHeartbeat, [&] { return CanPublish(client.get(), ns, 1'000); }));
  // The lease expired with the session: misses, and no rubbish.
  Destinations into(ns, 4);
  EXPECT_EQ(client->Fetch(match, 0, into.views()).leading_ok, 0u);
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(into.IsUntouched(i));
  EXPECT_TRUE(Eventually(
      kHeartbeat, [&] { return client->Match(ns, TestChain(ns.id, 4)).blocks_count() == 4; }));
}

// A bit flipped on the wire inside of a payload is seen, and only that block is lost.
TEST(ClientFaultTest, AFlippedBitIsACorruptBlock) {
  Cluster cluster(1);
  const auto client = Cluster::Connect(cluster.Options());
  const NamespaceHandle ns = *client->OpenNamespace(TestSpec());
  const auto chain = TestChain(ns.id, 8);
  ASSERT_TRUE(PublishChain(client.get(), ns, chain).is_complete());
  int corrupt_count = 0;
  for (uint64_t offset = 30'000; offset < 400'000; offset += 70'001) {
    PrefixMatch match;
    ASSERT_TRUE(Eventually(kHeartbeat,
                           [&] { return (match = client->Match(ns, chain)).blocks_count() == 8; }));
    cluster.proxy(0).FlipAfter(offset);
    Destinations into(ns, 8);
    const FetchResult fetched = client->Fetch(match, 0, into.views());
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_TRUE(fetched.blocks[i] != BlockResult::kOk || into.Holds(i, chain[i].key)) << i;
      if (fetched.blocks[i] != BlockResult::kCorrupt) continue;
      ++corrupt_count;
      EXPECT_EQ(fetched.leading_ok, i);
      EXPECT_TRUE(absl::IsDataLoss(fetched.status)) << fetched.status;
    }
    EXPECT_LT(fetched.leading_ok, 8u) << offset;
    cluster.proxy(0).FlipAfter(0);
  }
  EXPECT_GE(corrupt_count, 4) << "few flips hit the framing instead";
}

// Failure 28: the server leased what it matched, and its answer came too late: nobody knows the
// lease, and heartbeats must not keep it.
TEST(ClientFaultTest, ALeaseWhoseAnswerIsLostIsGivenBack) {
  Cluster cluster(1);
  const auto client = Cluster::Connect(cluster.Options());
  const NamespaceHandle ns = *client->OpenNamespace(TestSpec());
  const auto chain = TestChain(ns.id, 8);
  ASSERT_TRUE(PublishChain(client.get(), ns, chain).is_complete());
  BlockStore& store = cluster.server(0).store();
  for (int round = 0; round < 5; ++round) {
    cluster.proxy(0).StallAnswers(true);
    std::thread matching([&] {
      const PrefixMatch match = client->Match(ns, chain, {.timeout = absl::Milliseconds(300)});
      EXPECT_EQ(match.blocks_count(), 0u);
    });
    EXPECT_TRUE(Eventually(absl::Seconds(10), [&] { return store.stats().leases == 1; }));
    matching.join();
    cluster.proxy(0).StallAnswers(false);
    EXPECT_TRUE(Eventually(absl::Seconds(10), [&] { return store.stats().leases == 0; }));
    EXPECT_EQ(store.stats().pinned_bytes, 0u);
    // The breaker may have opened meanwhile.
    EXPECT_TRUE(Eventually(absl::Seconds(10),
                           [&] { return client->Match(ns, chain).blocks_count() == 8; }));
    EXPECT_TRUE(Eventually(absl::Seconds(10), [&] { return store.stats().leases == 0; }));
  }
}

// One flipped bit in a server's memory: a miss for the one who meets it, and then nobody is sent
// the block any more.
TEST(ClientFaultTest, AFlipInTheServersMemoryIsDroppedThere) {
  Cluster cluster(1);
  const auto client = Cluster::Connect(cluster.Options());
  const NamespaceHandle ns = *client->OpenNamespace(TestSpec());
  const auto chain = TestChain(ns.id, 8);
  ASSERT_TRUE(PublishChain(client.get(), ns, chain).is_complete());
  cluster.server(0).store().Acquire(ns.id, chain[5].key, [](absl::StatusOr<BlockRef> block) {
    ASSERT_TRUE(block.ok());
    const_cast<std::byte&>(block->payload()[12'345]) ^= std::byte{0x10};
  });
  {
    const PrefixMatch match = client->Match(ns, chain);
    ASSERT_EQ(match.blocks_count(), 8u);
    Destinations into(ns, 8);
    const FetchResult fetched = client->Fetch(match, 0, into.views());
    EXPECT_EQ(fetched.leading_ok, 5u);
    EXPECT_EQ(fetched.blocks[5], BlockResult::kCorrupt);
    EXPECT_EQ(fetched.blocks[6], BlockResult::kOk);
    EXPECT_EQ(cluster.server(0).store().stats().corrupt_blocks, 1u);
    EXPECT_EQ(client->Match(ns, chain).blocks_count(), 5u);
  }
  const PublishResult again = PublishChain(client.get(), ns, chain);
  EXPECT_EQ(again.stored_count, 1u);
  EXPECT_TRUE(again.is_complete());
  Destinations into(ns, 8);
  EXPECT_EQ(client->Fetch(client->Match(ns, chain), 0, into.views()).leading_ok, 8u);
  EXPECT_TRUE(into.Holds(5, chain[5].key));
}

TEST(ClientFaultTest, ACutConnectionLeavesWholeBlocksAndMisses) {
  Cluster cluster(1);
  const auto client = Cluster::Connect(cluster.Options());
  const NamespaceHandle ns = *client->OpenNamespace(TestSpec());
  const auto chain = TestChain(ns.id, 160);
  ASSERT_TRUE(PublishChain(client.get(), ns, chain).is_complete());
  const PrefixMatch match = client->Match(ns, chain);
  // Far more than is on its way at a time: the first blocks have been taken when the end comes.
  cluster.proxy(0).CutAfter(6'000'000);
  Destinations into(ns, 160);
  const FetchResult fetched = client->Fetch(match, 0, into.views());
  EXPECT_GT(fetched.leading_ok, 0u);
  EXPECT_LT(fetched.leading_ok, 160u);
  for (size_t i = 0; i < 160; ++i) {
    EXPECT_EQ(fetched.blocks[i], i < fetched.leading_ok ? BlockResult::kOk : BlockResult::kMiss)
        << i;
    EXPECT_TRUE(i >= fetched.leading_ok || into.Holds(i, chain[i].key)) << i;
  }
  EXPECT_TRUE(
      Eventually(kHeartbeat, [&] { return client->Match(ns, chain).blocks_count() == 160; }));
}

TEST(ClientFaultTest, BlocksDroppedAfterTheMatchAreServedUnderTheLeaseOrMissed) {
  Cluster cluster(1);
  const auto client = Cluster::Connect(cluster.Options());
  const NamespaceHandle ns = *client->OpenNamespace(TestSpec());
  const auto chain = TestChain(ns.id, 8);
  ASSERT_TRUE(PublishChain(client.get(), ns, chain).is_complete());
  const PrefixMatch match = client->Match(ns, chain);
  ASSERT_TRUE(client->Drop(&ns.id, {}).ok());
  Destinations into(ns, 8);
  const FetchResult fetched = client->Fetch(match, 0, into.views());
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_TRUE(fetched.blocks[i] == BlockResult::kMiss || into.Holds(i, chain[i].key)) << i;
  }
  EXPECT_EQ(client->Match(ns, chain).blocks_count(), 0u);
}

// 20: one dead server of three slows nobody.
TEST(ClientFaultTest, OneStalledServerOfThreeDoesNotSlowTheOthers) {
  Cluster cluster(3);
  const auto client = Cluster::Connect(QuickOptions(cluster));
  const NamespaceHandle ns = *client->OpenNamespace(TestSpec());
  std::vector<std::vector<ChainLink>> chains;
  for (uint32_t i = 0; i < 60; ++i) {
    chains.push_back(TestChain(ns.id, 4, i * 1'000));  // one group: one server
    ASSERT_TRUE(PublishChain(client.get(), ns, chains.back()).is_complete());
  }
  const uint64_t on_stalled = cluster.server(1).store().stats().published_blocks / 4;
  ASSERT_GT(on_stalled, 5u);
  cluster.proxy(1).Stall(true);
  uint64_t found_count = 0;
  const absl::Duration all = TimeOf([&] {
    for (const auto& chain : chains) found_count += client->Match(ns, chain).blocks_count() == 4;
  });
  EXPECT_EQ(found_count, 60 - on_stalled);
  // Three calls run into the deadline and open the breaker; the others are as fast as ever.
  EXPECT_LT(all, 3 * absl::Milliseconds(200) + kSlack);
  EXPECT_TRUE(client->is_any_reachable());
}

TEST(ClientFaultTest, OneDeadServerOfThreeIsAMissThereAlone) {
  Cluster cluster(3);
  const auto client = Cluster::Connect(QuickOptions(cluster));
  const NamespaceHandle ns = *client->OpenNamespace(TestSpec());
  cluster.Kill(2);
  uint32_t stored_count = 0, failed_count = 0;
  for (uint32_t i = 0; i < 30; ++i) {
    CanPublish(client.get(), ns, i * 1'000) ? ++stored_count : ++failed_count;
  }
  EXPECT_GT(stored_count, 10u);
  EXPECT_GT(failed_count, 2u);
  const absl::StatusOr<uint64_t> dropped = client->Drop(nullptr, {});
  ASSERT_TRUE(absl::IsUnavailable(dropped.status()));
  EXPECT_NE(dropped.status().message().find(cluster.proxy(2).address()), std::string::npos)
      << dropped.status();
  cluster.Restart(2);
  EXPECT_TRUE(Eventually(kHeartbeat, [&] { return client->Drop(nullptr, {}).ok(); }))
      << "back in under one heartbeat";
}

// A limit that the server names is an answer: a miss, and the server is asked on.
TEST(ClientFaultTest, AMatchBeyondTheSessionsShareOfMemoryIsAMissUntilALeaseEnds) {
  Cluster cluster(1);
  const auto client = cluster.Connect(), other = cluster.Connect();
  const NamespaceHandle ns = *client->OpenNamespace(TestSpec());
  const NamespaceHandle theirs = *other->OpenNamespace(TestSpec());
  std::vector<PrefixMatch> held;
  for (uint32_t i = 0; i < 9; ++i) {  // 64 blocks, of 4 MiB, a chain: eight are half of the tier
    const auto chain = TestChain(ns.id, 64, 100'000 * i);
    ASSERT_TRUE(PublishChain(client.get(), ns, chain).is_complete());
    held.push_back(client->Match(ns, chain));
    EXPECT_EQ(held.back().blocks_count(), i < 8 ? 64u : 0u) << i;
  }
  const auto last = TestChain(ns.id, 64, 800'000);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(client->Match(ns, last).blocks_count(), 0u);
  EXPECT_TRUE(client->is_any_reachable());
  EXPECT_EQ(client->Match(ns, last, {.lease = false}).blocks_count(), 64u) << "it is there";
  EXPECT_EQ(other->Match(theirs, last).blocks_count(), 64u) << "others have it";
  held.clear();
  EXPECT_TRUE(
      Eventually(absl::Seconds(10), [&] { return client->Match(ns, last).blocks_count() == 64u; }));
}

TEST(ClientFaultTest, AClaimWithoutAnAnswerIsNoClaim) {
  Cluster cluster(1);
  const auto client = cluster.Connect();
  const NamespaceHandle ns = *client->OpenNamespace(TestSpec());
  const auto chain = TestChain(ns.id, 4);
  ASSERT_EQ(client->Match(ns, chain).is_complete(), true);
  cluster.Kill(0);
  const ClaimedPrefix claim = client->Claim(ns, chain);
  EXPECT_EQ(claim.wanted_count, 0u);
  EXPECT_EQ(claim.refusal, BlockResult::kFailed);
  EXPECT_FALSE(client->Match(ns, chain).is_complete());
  const ShardLinks shard{ns, chain};
  const std::vector<PrefixMatch> matches = client->MatchShards({&shard, 1});
  EXPECT_EQ(matches[0].blocks_count(), 0u);
  EXPECT_FALSE(matches[0].is_complete());
}

TEST(ClientFaultTest, EndingWhileAServerIsStalledIsQuick) {
  Cluster cluster(2);
  auto client = Cluster::Connect(QuickOptions(cluster));
  const NamespaceHandle ns = *client->OpenNamespace(TestSpec());
  ASSERT_TRUE(CanPublish(client.get(), ns, 0));
  cluster.proxy(0).Stall(true);
  EXPECT_LT(TimeOf([&] { client.reset(); }), absl::Seconds(1));
}

}  // namespace
}  // namespace ibid
