// Client against real servers that behave.
#include <algorithm>
#include <set>
#include <thread>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/limit.h"
#include "tests/client/cluster.h"
#include "transport/cache_channel.h"

namespace ibid {
namespace {

// Servers, and how block bytes travel.
class ClientStoreTest : public testing::TestWithParam<std::tuple<int, TransportChoice>> {
 protected:
  ClientStoreTest() : cluster_(std::get<int>(GetParam())) {
    ClientOptions options = cluster_.Options();
    options.transport = std::get<TransportChoice>(GetParam());
    options.metrics = &metrics_;
    client_ = Cluster::Connect(std::move(options));
    auto ns = client_->OpenNamespace(TestSpec());
    IBID_CHECK(ns.ok()) << ns.status().ToString();
    ns_ = *ns;
  }

  uint64_t Sum(uint64_t BlockStoreStats::*field) {
    uint64_t sum = 0;
    for (size_t i = 0; i < cluster_.size(); ++i) sum += cluster_.server(i).store().stats().*field;
    return sum;
  }
  bool HasMetric(const std::string& line) {
    return SerializeMetrics(metrics_).find(line + "\n") != std::string::npos;
  }

  MetricsRegistry metrics_;
  Cluster cluster_;
  std::unique_ptr<Client> client_;
  NamespaceHandle ns_;
};
INSTANTIATE_TEST_SUITE_P(ServersAndTransports, ClientStoreTest,
                         testing::Combine(testing::Values(1, 3),
                                          testing::Values(TransportChoice::kGrpc,
                                                          TransportChoice::kShm)),
                         [](const auto& info) {
                           return absl::StrCat(
                               std::get<0>(info.param), "Servers",
                               std::get<1>(info.param) == TransportChoice::kShm ? "Shm" : "Grpc");
                         });

TEST_P(ClientStoreTest, TheTransportIsTheOneAskedForAndSaysWhy) {
  const bool is_shm = std::get<TransportChoice>(GetParam()) == TransportChoice::kShm;
  for (const ServerStats& stats : client_->Stats()) {
    EXPECT_EQ(stats.transport, is_shm ? "shm" : "grpc");
    EXPECT_EQ(stats.transport_reason, is_shm ? "" : "grpc was asked for");
  }
}

TEST_P(ClientStoreTest, BlocksAreReadInPlaceWhereTheTransportIsShm) {
  const auto chain = TestChain(ns_.id, 30);
  PublishChain(client_.get(), ns_, chain);
  BlocksInPlace blocks;
  {
    const PrefixMatch match = client_->Match(ns_, chain);
    ASSERT_EQ(match.blocks_count(), 30u);
    blocks = client_->FetchInPlace(match, 10, 20);
  }
  ASSERT_EQ(blocks.size(), 20u);
  const bool is_shm = std::get<TransportChoice>(GetParam()) == TransportChoice::kShm;
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(blocks.Verify(i), is_shm);
    EXPECT_EQ(blocks.is_current(i), is_shm);
    const auto expected = TestPayload(chain[10 + i].key, ns_.layout.PayloadBytes());
    const ByteView bytes = blocks.block(i);
    EXPECT_EQ(bytes.size(), is_shm ? expected.size() : 0);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), expected.begin()));
  }
  EXPECT_EQ(Sum(&BlockStoreStats::leases) > 0, true) << "they hold the match's leases";
  blocks = {};
  EXPECT_TRUE(Eventually(absl::Seconds(20), [&] {
    return Sum(&BlockStoreStats::leases) == 0 && Sum(&BlockStoreStats::pinned_bytes) == 0;
  }));
}

TEST_P(ClientStoreTest, WhatIsPublishedIsMatchedAndFetched) {
  const auto chain = TestChain(ns_.id, 30);
  const PublishResult published = PublishChain(client_.get(), ns_, chain);
  EXPECT_TRUE(published.is_complete()) << published.status.ToString();
  EXPECT_EQ(published.stored_count, 30u);

  const PrefixMatch match = client_->Match(ns_, chain);
  ASSERT_EQ(match.blocks_count(), 30u);
  EXPECT_EQ(match.host_blocks() + match.disk_blocks(), 30u);
  Destinations into(ns_, 30);
  const FetchResult fetched = client_->Fetch(match, 0, into.views());
  EXPECT_TRUE(fetched.status.ok()) << fetched.status.ToString();
  EXPECT_EQ(fetched.leading_ok, 30u);
  EXPECT_EQ(fetched.bytes, 30 * ns_.layout.PayloadBytes());
  for (size_t i = 0; i < 30; ++i) EXPECT_TRUE(into.Holds(i, chain[i].key)) << i;
}

TEST_P(ClientStoreTest, BlocksAreSpreadOverAllServers) {
  for (uint32_t prompt = 0; prompt < 10; ++prompt)
    PublishChain(client_.get(), ns_, TestChain(ns_.id, 8, prompt * 1'000));
  for (size_t i = 0; i < cluster_.size(); ++i)
    EXPECT_GT(cluster_.server(i).store().stats().published_blocks, 0u) << i;
}

TEST_P(ClientStoreTest, APartOfAMatchCanBeFetched) {
  const auto chain = TestChain(ns_.id, 20);
  PublishChain(client_.get(), ns_, chain);
  const PrefixMatch match = client_->Match(ns_, chain);
  Destinations into(ns_, 5);
  const FetchResult fetched = client_->Fetch(match, 6, into.views());
  EXPECT_EQ(fetched.leading_ok, 5u);
  for (size_t i = 0; i < 5; ++i) EXPECT_TRUE(into.Holds(i, chain[6 + i].key)) << i;
}

TEST_P(ClientStoreTest, PublishingAgainSendsNothing) {
  const auto chain = TestChain(ns_.id, 12);
  PublishChain(client_.get(), ns_, chain);
  const PublishResult again = PublishChain(client_.get(), ns_, chain);
  EXPECT_TRUE(again.is_complete());
  EXPECT_EQ(again.present_count, 12u);
  EXPECT_EQ(Sum(&BlockStoreStats::published_blocks), 12u);
}

// Nobody knows yet what comes of a block that another client is storing.
TEST_P(ClientStoreTest, ABlockThatAnotherStoresIsPendingUntilItIsThere) {
  const auto chain = TestChain(ns_.id, 4);
  // The other: it offers block 2 at every server, so also where that belongs.
  std::vector<std::unique_ptr<CacheChannel>> channels;
  std::vector<std::unique_ptr<CacheSession>> sessions;
  for (size_t i = 0; i < cluster_.size(); ++i) {
    channels.push_back(*CacheChannel::Create(cluster_.server(i).address(), {}));
    sessions.push_back(*channels[i]->OpenSession("other", absl::Seconds(5), [](absl::Status) {}));
    ASSERT_TRUE(channels[i]
                    ->Offer(sessions[i]->session_id(), ns_.id, {&chain[2].key, 1}, absl::Seconds(5))
                    .ok());
  }
  const PublishResult first = PublishChain(client_.get(), ns_, chain);
  EXPECT_EQ(first.blocks[2], BlockResult::kPending);
  EXPECT_EQ(first.stored_count, 3u);
  EXPECT_EQ(first.pending_count, 1u);
  EXPECT_FALSE(first.is_complete());

  const PublishResult in_vain =
      PublishChain(client_.get(), ns_, chain, {.wait_pending = absl::Milliseconds(30)});
  EXPECT_EQ(in_vain.pending_count, 1u);

  std::thread other([&] {
    absl::SleepFor(absl::Milliseconds(30));
    const std::vector<std::byte> payload = TestPayload(chain[2].key, ns_.layout.PayloadBytes());
    for (size_t i = 0; i < channels.size(); ++i) {
      const PublishBlock block{chain[2], payload, std::nullopt, nullptr};
      EXPECT_TRUE(channels[i]
                      ->Publish({sessions[i]->session_id(), ns_.id, false}, {&block, 1},
                                absl::Seconds(5), [](const PublishBlockResult&) {})
                      .ok());
    }
  });
  const PublishResult waited =
      PublishChain(client_.get(), ns_, chain, {.wait_pending = absl::Seconds(5)});
  other.join();
  EXPECT_TRUE(waited.is_complete()) << waited.pending_count;
  EXPECT_EQ(waited.present_count, 4u);

  // One that dies leaves the block to the next.
  const auto second = TestChain(ns_.id, 1, 50'000);
  for (size_t i = 0; i < channels.size(); ++i) {
    ASSERT_TRUE(
        channels[i]
            ->Offer(sessions[i]->session_id(), ns_.id, {&second[0].key, 1}, absl::Seconds(5))
            .ok());
  }
  EXPECT_EQ(PublishChain(client_.get(), ns_, second).pending_count, 1u);
  sessions.clear();
  EXPECT_TRUE(Eventually(absl::Seconds(10),
                         [&] { return PublishChain(client_.get(), ns_, second).is_complete(); }));
}

TEST_P(ClientStoreTest, AMatchEndsAtTheFirstBlockThatIsNotStored) {
  const auto chain = TestChain(ns_.id, 24);
  // All but blocks 8..11, which are a group; then one block inside of a group goes too.
  PublishChain(client_.get(), ns_, std::span(chain).first(8));
  PublishChain(client_.get(), ns_, std::span(chain).subspan(12));
  const PrefixMatch match = client_->Match(ns_, chain);
  EXPECT_EQ(match.blocks_count(), 8u);
  EXPECT_EQ(match.host_blocks(), 8u);
  ASSERT_TRUE(client_->Drop(&ns_.id, std::vector<BlockKey>{chain[5].key}).ok());
  EXPECT_EQ(client_->Match(ns_, chain).blocks_count(), 5u);
}

TEST_P(ClientStoreTest, AnEmptyOrUnknownChainMatchesNothing) {
  EXPECT_EQ(client_->Match(ns_, {}).blocks_count(), 0u);
  EXPECT_EQ(client_->Match(ns_, TestChain(ns_.id, 9)).blocks_count(), 0u);
  EXPECT_EQ(PrefixMatch().blocks_count(), 0u);
  EXPECT_TRUE(PublishChain(client_.get(), ns_, {}).is_complete());
}

TEST_P(ClientStoreTest, AChainCanBePublishedBlockByBlock) {
  const auto chain = TestChain(ns_.id, 21);
  for (const ChainLink& link : chain)
    EXPECT_TRUE(PublishChain(client_.get(), ns_, {&link, 1}).is_complete());
  const auto other = Cluster::Connect(cluster_.Options());
  EXPECT_EQ(other->Match(*other->OpenNamespace(TestSpec()), chain).blocks_count(), 21u);
}

TEST_P(ClientStoreTest, LongChainsTravelInSeveralMessages) {
  ClientOptions options = cluster_.Options();
  options.match_keys_max = 3;
  const auto client = Cluster::Connect(std::move(options));
  const NamespaceHandle ns = *client->OpenNamespace(TestSpec());
  const auto chain = TestChain(ns.id, 30);
  EXPECT_TRUE(PublishChain(client.get(), ns, chain).is_complete());
  const PrefixMatch match = client->Match(ns, chain);
  EXPECT_EQ(match.blocks_count(), 30u);
  Destinations into(ns, 30);
  EXPECT_EQ(client->Fetch(match, 0, into.views()).leading_ok, 30u);
}

TEST_P(ClientStoreTest, NamespacesAreApart) {
  const auto chain = TestChain(ns_.id, 8);
  PublishChain(client_.get(), ns_, chain);
  const auto salted = client_->OpenNamespace(TestSpec("tenant-b"));
  ASSERT_TRUE(salted.ok());
  EXPECT_NE(salted->id, ns_.id);
  EXPECT_EQ(client_->Match(*salted, chain).blocks_count(), 0u);
  EXPECT_EQ(client_->Match(*client_->OpenNamespace(TestSpec()), chain).blocks_count(), 8u)
      << "opening is idempotent";
}

// 29: a probe changes nothing.
TEST_P(ClientStoreTest, AProbeCountsAndTakesNoLease) {
  const auto chain = TestChain(ns_.id, 10);
  PublishChain(client_.get(), ns_, std::span(chain).first(7));
  const auto scheduler = Cluster::Connect(cluster_.Options());
  const PrefixCount count = scheduler->Probe(ns_.id, chain);
  EXPECT_EQ(count.blocks, 7u);
  EXPECT_EQ(count.host_blocks, 7u);
  EXPECT_TRUE(count.is_complete);
  EXPECT_EQ(Sum(&BlockStoreStats::leases), 0u);
  const PrefixCount unknown =
      scheduler->Probe(NamespaceId{MakeBlockKey({}, std::vector<uint32_t>{1}).digest}, chain);
  EXPECT_EQ(unknown.blocks, 0u);
  EXPECT_TRUE(unknown.is_complete);
}

// 28: leases go back when their match dies.
TEST_P(ClientStoreTest, LeasesLiveAsLongAsTheirMatch) {
  const auto chain = TestChain(ns_.id, 16);
  PublishChain(client_.get(), ns_, chain);
  {
    const PrefixMatch match = client_->Match(ns_, chain);
    EXPECT_GT(Sum(&BlockStoreStats::leases), 0u);
    EXPECT_LE(Sum(&BlockStoreStats::leases), cluster_.size());
  }
  EXPECT_TRUE(Eventually(absl::Seconds(5), [&] { return Sum(&BlockStoreStats::leases) == 0; }));
  EXPECT_EQ(Sum(&BlockStoreStats::pinned_bytes), 0u);
  MatchCallOptions no_lease;
  no_lease.lease = false;
  const PrefixMatch match = client_->Match(ns_, chain, no_lease);
  EXPECT_EQ(Sum(&BlockStoreStats::leases), 0u);
  Destinations into(ns_, 16);
  EXPECT_EQ(client_->Fetch(match, 0, into.views()).leading_ok, 16u) << "by keys alone";
}

// 23: ranks whose blocks differ in residency, on one server or spread over several, get one number,
// and nothing is held beyond it.
TEST_P(ClientStoreTest, AMatchOfSeveralShardsGivesAllTheSmallestPrefix) {
  const uint32_t counts[] = {14, 9, 16, 11};
  std::vector<NamespaceHandle> handles;
  std::vector<std::vector<ChainLink>> chains;
  for (size_t i = 0; i < 4; ++i) {
    NamespaceSpec spec = TestSpec();
    spec.shard = absl::StrCat("tp=", i, "/4;pp=0/1");
    handles.push_back(*client_->OpenNamespace(spec));
    chains.push_back(TestChain(handles[i].id, 16));
    ASSERT_TRUE(PublishChain(client_.get(), handles[i], std::span(chains[i]).first(counts[i]))
                    .is_complete());
  }
  std::vector<ShardLinks> shards;
  for (size_t i = 0; i < 4; ++i) shards.push_back({handles[i], chains[i]});
  {
    const std::vector<PrefixMatch> matches = client_->MatchShards(shards);
    ASSERT_EQ(matches.size(), 4u);
    EXPECT_EQ(Sum(&BlockStoreStats::pinned_bytes), 4 * 9 * ns_.layout.PayloadBytes());
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(matches[i].blocks_count(), 9u);
      EXPECT_EQ(matches[i].host_blocks(), 9u);
      EXPECT_EQ(matches[i].pending_count(), 0u);
      EXPECT_TRUE(matches[i].is_complete());
      Destinations into(handles[i], 9);
      ASSERT_EQ(client_->Fetch(matches[i], 0, into.views()).leading_ok, 9u);
      for (size_t b = 0; b < 9; ++b) EXPECT_TRUE(into.Holds(b, chains[i][b].key));
    }
  }
  EXPECT_TRUE(
      Eventually(absl::Seconds(5), [&] { return Sum(&BlockStoreStats::pinned_bytes) == 0; }));
  const std::vector<PrefixMatch> probe = client_->MatchShards(shards, {.lease = false});
  EXPECT_EQ(probe[3].blocks_count(), 9u);
  EXPECT_EQ(Sum(&BlockStoreStats::leases), 0u);
}

// Single flight: of two clients that miss the same chain one is to compute it.
TEST_P(ClientStoreTest, OneOfTwoClientsClaimsAChainAndTheOtherIsTold) {
  const auto other = cluster_.Connect();
  const NamespaceHandle theirs = *other->OpenNamespace(TestSpec());
  const auto chain = TestChain(ns_.id, 16);
  const ClaimedPrefix mine = client_->Claim(ns_, chain);
  EXPECT_EQ(mine.wanted_count, 16u);
  EXPECT_EQ(mine.refusal, BlockResult::kOk);
  EXPECT_EQ(client_->Claim(ns_, chain).wanted_count, 16u) << "again: a new term";
  const ClaimedPrefix refused = other->Claim(theirs, chain);
  EXPECT_EQ(refused.wanted_count, 0u);
  EXPECT_EQ(refused.refusal, BlockResult::kPending);
  EXPECT_EQ(other->Match(theirs, chain).pending_count(), 16u);

  ASSERT_TRUE(PublishChain(client_.get(), ns_, std::span(chain).first(6)).is_complete());
  client_->Withdraw(ns_, chain);
  EXPECT_EQ(Sum(&BlockStoreStats::reservations), 0u);
  EXPECT_EQ(other->Claim(theirs, chain).refusal, BlockResult::kPresent);
  EXPECT_EQ(other->Claim(theirs, std::span(chain).subspan(6)).wanted_count, 10u);
}

TEST_P(ClientStoreTest, AMatchMayOutliveItsClient) {
  const auto chain = TestChain(ns_.id, 4);
  PublishChain(client_.get(), ns_, chain);
  PrefixMatch match = client_->Match(ns_, chain);
  client_.reset();
  EXPECT_EQ(match.blocks_count(), 4u);
}

TEST_P(ClientStoreTest, DropsKeysNamespacesAndEverything) {
  const auto chain = TestChain(ns_.id, 12);
  PublishChain(client_.get(), ns_, chain);
  const NamespaceHandle other = *client_->OpenNamespace(TestSpec("other"));
  const auto others = TestChain(other.id, 12);
  PublishChain(client_.get(), other, others);

  EXPECT_EQ(*client_->Drop(&ns_.id, std::vector<BlockKey>{chain[10].key, chain[11].key}), 2u);
  EXPECT_EQ(client_->Match(ns_, chain).blocks_count(), 10u);
  EXPECT_EQ(*client_->Drop(&ns_.id, {}), 10u);
  EXPECT_EQ(client_->Match(ns_, chain).blocks_count(), 0u);
  EXPECT_EQ(client_->Match(other, others).blocks_count(), 12u);
  EXPECT_EQ(*client_->Drop(nullptr, {}), 12u);
  EXPECT_EQ(client_->Drop(nullptr, std::vector<BlockKey>{chain[0].key}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(ClientStoreTest, StatsAreThoseOfTheServers) {
  PublishChain(client_.get(), ns_, TestChain(ns_.id, 12));
  uint64_t blocks = 0;
  for (const ServerStats& server : client_->Stats()) {
    ASSERT_TRUE(server.status.ok());
    EXPECT_NE(server.incarnation, 0u);
    ASSERT_FALSE(server.tiers.empty());
    blocks += server.tiers[0].blocks;
  }
  EXPECT_EQ(blocks, 12u);
  EXPECT_TRUE(client_->is_any_reachable());
}

// 43: counters against the truth.
TEST_P(ClientStoreTest, MetricsCountWhatHappened) {
  const auto chain = TestChain(ns_.id, 12);
  PublishChain(client_.get(), ns_, std::span(chain).first(8));
  PublishChain(client_.get(), ns_, std::span(chain).first(8));
  const PrefixMatch match = client_->Match(ns_, chain);
  Destinations into(ns_, 8);
  client_->Fetch(match, 0, into.views());
  EXPECT_TRUE(HasMetric("ibid_client_published_blocks_total 8"));
  EXPECT_TRUE(HasMetric("ibid_client_present_blocks_total 8"));
  EXPECT_TRUE(HasMetric("ibid_client_matched_blocks_total 8"));
  EXPECT_TRUE(HasMetric("ibid_client_unmatched_blocks_total 4"));
  EXPECT_TRUE(HasMetric("ibid_client_fetched_blocks_total 8"));
  EXPECT_TRUE(HasMetric("ibid_client_missed_blocks_total 0"));
  EXPECT_TRUE(HasMetric("ibid_client_fetched_bytes_total " +
                        std::to_string(8 * ns_.layout.PayloadBytes())));
  EXPECT_TRUE(HasMetric("ibid_client_server_up{server=\"" + cluster_.proxy(0).address() + "\"} 1"))
      << SerializeMetrics(metrics_);
}

// 2, 12: another layout is refused, and said.
TEST_P(ClientStoreTest, AServerWithAnotherLayoutIsRefusedAndNotUsed) {
  NamespaceSpec spec = TestSpec("contested");
  KvLayout foreign = *KvLayout::Parse(kTestLayout);
  foreign.layers = 1;
  ASSERT_TRUE(cluster_.server(0).store().OpenNamespace(MakeNamespaceId(spec), foreign).ok());
  const auto opened = client_->OpenNamespace(spec);
  if (cluster_.size() == 1) {
    EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition) << opened.status();
    EXPECT_NE(opened.status().message().find(cluster_.proxy(0).address()), std::string::npos);
  } else {
    // The refusal is that server's alone: what is placed elsewhere is stored and found.
    ASSERT_TRUE(opened.ok()) << opened.status();
    size_t complete_count = 0;
    for (uint32_t prompt = 0; prompt < 12; ++prompt) {
      const auto chain = TestChain(opened->id, 4, prompt * 1'000);
      const bool is_complete = PublishChain(client_.get(), *opened, chain).is_complete();
      EXPECT_EQ(client_->Match(*opened, chain).blocks_count(), is_complete ? 4u : 0u);
      complete_count += is_complete;
    }
    EXPECT_GT(complete_count, 0u);
    EXPECT_LT(complete_count, 12u);
    // All that answer refuse: an error, whoever else is away.
    cluster_.Kill(1);
    cluster_.Kill(2);
    EXPECT_TRUE(Eventually(absl::Seconds(10), [&] {
      return absl::IsFailedPrecondition(client_->OpenNamespace(spec).status());
    }));
  }

  spec.layout = "layers=two";
  EXPECT_EQ(client_->OpenNamespace(spec).status().code(), absl::StatusCode::kInvalidArgument);
}

// More than are agreed on when a server comes back: the others are with their first call.
TEST_P(ClientStoreTest, ManyNamespacesOutliveARestartUpToTheirLimit) {
  ClientOptions options = cluster_.Options();
  options.namespaces_max = 100;
  const auto client = Cluster::Connect(std::move(options));
  std::vector<NamespaceHandle> opened;
  for (int i = 0; i < 100; ++i) {
    opened.push_back(*client->OpenNamespace(TestSpec(absl::StrCat("salt-", i))));
    EXPECT_EQ(client->OpenNamespace(TestSpec(absl::StrCat("salt-", i)))->index, opened[i].index);
  }
  EXPECT_EQ(LimitOf(client->OpenNamespace(TestSpec("one more")).status()),
            (Limit{"namespaces_max", 100}));
  for (size_t i = 0; i < cluster_.size(); ++i) cluster_.Restart(i);
  for (const int i : {0, 50, 99}) {
    const auto chain = TestChain(opened[i].id, 4);
    EXPECT_TRUE(Eventually(absl::Seconds(10), [&] {
      return PublishChain(client.get(), opened[i], chain).is_complete();
    })) << i;
    EXPECT_EQ(client->Match(opened[i], chain).blocks_count(), 4u) << i;
  }
}

TEST_P(ClientStoreTest, ManyThreadsShareAClient) {
  std::vector<std::thread> threads;
  std::atomic<int> failures_count{0};
  for (uint32_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t round = 0; round < 10; ++round) {
        const auto chain = TestChain(ns_.id, 12, (t % 4) * 10'000 + round * 1'000);
        const PublishResult published = PublishChain(client_.get(), ns_, chain);
        // Another thread may be storing the same blocks.
        if (published.stored_count + published.present_count + published.pending_count != 12)
          ++failures_count;
        const PrefixMatch match = client_->Match(ns_, chain);
        Destinations into(ns_, match.blocks_count());
        if (client_->Fetch(match, 0, into.views()).leading_ok != match.blocks_count())
          ++failures_count;
        for (size_t i = 0; i < match.blocks_count(); ++i)
          failures_count += !into.Holds(i, chain[i].key);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures_count, 0);
}

TEST(ClientOptionsTest, WrongOptionsAreNamed) {
  const auto error = [](void (*change)(ClientOptions&)) {
    ClientOptions options;
    options.servers = {"127.0.0.1:7070"};
    change(options);
    const auto client = Client::Connect(std::move(options));
    EXPECT_EQ(client.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(client.status().message());
  };
  EXPECT_NE(error([](ClientOptions& o) { o.servers.clear(); }).find("servers"), std::string::npos);
  EXPECT_NE(error([](ClientOptions& o) { o.servers = {"localhost"}; }).find("host:port"),
            std::string::npos);
  EXPECT_NE(error([](ClientOptions& o) {
              o.servers = {"a:1", "a:1"};
            }).find("twice"),
            std::string::npos);
  EXPECT_NE(
      error([](ClientOptions& o) { o.match_timeout = absl::ZeroDuration(); }).find("match_timeout"),
      std::string::npos);
  EXPECT_NE(error([](ClientOptions& o) { o.breaker_failures_count = 0; }).find("breaker"),
            std::string::npos);
  EXPECT_NE(error([](ClientOptions& o) { o.match_keys_max = 1'000'000; }).find("match_keys_max"),
            std::string::npos);
  EXPECT_NE(
      error([](ClientOptions& o) { o.tls_ca_file = "/nowhere/ca.pem"; }).find("/nowhere/ca.pem"),
      std::string::npos);
}

}  // namespace
}  // namespace ibid
