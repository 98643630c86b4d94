// kill -9 of a real server, or of its client, at random moments under load: every block whose
// durable publish was answered reads back right, every other one reads back right or is absent, and
// neither space nor a key is lost. docs/testing.md 3, 27, 28, 34, 35.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "tests/harness/process.h"

namespace ibid {
namespace {

constexpr char kLayout[] =
    "layers=2;kv_heads=2;k_dim=64;v_dim=64;dtype=bf16;block_tokens=16;order=hnd;scales=none";
constexpr uint32_t kBlockTokens = 16;
constexpr uint32_t kChainBlocks = 12;
constexpr int kWriters = 3;
constexpr int kRounds = 6;
constexpr int kClientRounds = 8;
constexpr uint32_t kSeed = 20260131;
// Tells the child of StartPublisher where to publish, and what.
constexpr char kPublishTo[] = "IBID_TEST_PUBLISH_TO";

// One chain of a writer, with all bytes made from its number.
struct Chain {
  uint32_t number = 0;
  std::vector<ChainLink> links;
  std::vector<std::vector<std::byte>> bytes;
};

Chain MakeNumberedChain(const NamespaceHandle& ns, uint32_t number) {
  Chain chain;
  chain.number = number;
  std::mt19937_64 random(number);
  std::vector<uint32_t> tokens(kChainBlocks * kBlockTokens);
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(random() % 50'000);
  chain.links = MakeChain(ns.id, tokens, kBlockTokens, false);
  for (uint32_t i = 0; i < kChainBlocks; ++i) {
    std::vector<std::byte> payload(ns.layout.PayloadBytes());
    for (size_t at = 0; at + 8 <= payload.size(); at += 8) {
      const uint64_t word = random();
      std::memcpy(&payload[at], &word, 8);
    }
    chain.bytes.push_back(std::move(payload));
  }
  return chain;
}

class Cluster {
 public:
  // Starts the server, on the port that it had before if any.
  void StartServer() {
    std::remove((folder_ / "ports").c_str());
    auto process = Process::Start(
        {std::string(IBID_BIN_DIR) + "/ibid-server", absl::StrCat("--listen=127.0.0.1:", port_),
         "--http_listen=127.0.0.1:0", "--host_bytes_max=32MiB", "--extent_bytes=1MiB",
         "--disk_dir=" + (folder_ / "disk"), "--disk_bytes_max=2GiB",
         "--port_file=" + (folder_ / "ports")},
        folder_ / "log");
    ASSERT_TRUE(process.ok()) << process.status();
    server_.emplace(std::move(*process));
    const auto ports = WaitForPorts(*server_, folder_ / "ports", folder_ / "log");
    ASSERT_TRUE(ports.ok()) << ports.status();
    port_ = ports->at("port");
  }
  void KillServer() { server_->Kill9(); }

  // This program again, as a client that publishes chains from `first_number` on until it is
  // killed.
  absl::StatusOr<Process> StartPublisher(uint32_t first_number) {
    setenv(kPublishTo, absl::StrCat("127.0.0.1:", port_, " ", first_number).c_str(), 1);
    return Process::Start({"/proc/self/exe", "--gtest_also_run_disabled_tests",
                           "--gtest_filter=Publisher.DISABLED_PublishesUntilItIsKilled"},
                          folder_ / "publisher.log");
  }

  std::unique_ptr<Client> Connect() {
    ClientOptions options;
    options.servers = {absl::StrCat("127.0.0.1:", port_)};
    options.publish_timeout = absl::Seconds(20);
    options.fetch_timeout = absl::Seconds(20);
    options.match_timeout = absl::Seconds(20);
    auto client = Client::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status();
    for (int i = 0; i < 1500 && !(*client)->is_any_reachable(); ++i)
      absl::SleepFor(absl::Milliseconds(10));
    EXPECT_TRUE((*client)->is_any_reachable()) << ReadWholeFile(folder_ / "log");
    return *std::move(client);
  }

 private:
  TempFolder folder_{"ibid-crash"};
  int port_ = 0;
  std::optional<Process> server_;
};

NamespaceHandle OpenDemo(Client& client) {
  NamespaceSpec spec;
  spec.model = "crash_test";
  spec.layout = kLayout;
  auto ns = client.OpenNamespace(spec);
  EXPECT_TRUE(ns.ok()) << ns.status();
  return *ns;
}

PublishResult PublishChain(Client& client, const NamespaceHandle& ns, const Chain& chain,
                           const PublishCallOptions& options = {}) {
  return client.Publish(ns, chain.links,
                        std::vector<ByteView>(chain.bytes.begin(), chain.bytes.end()), options);
}

// Publishes chains until told to stop; remembers how far each got.
struct Written {
  uint32_t number;
  std::vector<BlockResult> results;
};
std::vector<Written> WriteUntil(const std::atomic<bool>& stop, Cluster& cluster,
                                std::atomic<uint32_t>& next) {
  std::vector<Written> written;
  auto client = cluster.Connect();
  const NamespaceHandle ns = OpenDemo(*client);
  while (!stop.load()) {
    const Chain chain = MakeNumberedChain(ns, next.fetch_add(1));
    const PublishResult result = PublishChain(
        *client, ns, chain, {.durable = chain.number % 2 == 0, .timeout = absl::Seconds(5)});
    written.push_back({chain.number, result.blocks});
  }
  return written;
}

// Reads every block of the chain that the server still has. Returns how many leading blocks those
// are.
uint32_t CheckChain(Client& client, const NamespaceHandle& ns, const Chain& chain) {
  const PrefixMatch match = client.Match(ns, chain.links);
  std::vector<std::vector<std::byte>> got(match.blocks_count(),
                                          std::vector<std::byte>(ns.layout.PayloadBytes()));
  const std::vector<MutableByteView> into(got.begin(), got.end());
  const FetchResult fetched = client.Fetch(match, 0, into);
  for (uint32_t i = 0; i < fetched.blocks.size(); ++i) {
    EXPECT_NE(fetched.blocks[i], BlockResult::kCorrupt)
        << "chain " << chain.number << " block " << i;
    if (fetched.blocks[i] == BlockResult::kOk) {
      EXPECT_EQ(got[i], chain.bytes[i])
          << "chain " << chain.number << " block " << i << " has other bytes";
    }
  }
  return fetched.leading_ok;
}

void OneRound(Cluster& cluster, std::mt19937& random, std::atomic<uint32_t>& next,
              std::vector<Written>* all) {
  std::atomic<bool> stop = false;
  std::vector<std::vector<Written>> written(kWriters);
  std::vector<std::thread> threads;
  for (int i = 0; i < kWriters; ++i) {
    threads.emplace_back([&, i] { written[i] = WriteUntil(stop, cluster, next); });
  }
  absl::SleepFor(absl::Milliseconds(200 + random() % 700));
  cluster.KillServer();
  stop = true;
  for (std::thread& thread : threads) thread.join();
  for (const auto& of_thread : written) all->insert(all->end(), of_thread.begin(), of_thread.end());
  cluster.StartServer();
}

TEST(Crash, CommittedBlocksReadBackRightOrAreAbsentAfterKill9) {
  Cluster cluster;
  cluster.StartServer();
  std::mt19937 random(kSeed);
  std::atomic<uint32_t> next = 0;
  std::vector<Written> all;
  size_t durable_chains = 0;
  for (int round = 0; round < kRounds && !testing::Test::HasFailure(); ++round) {
    OneRound(cluster, random, next, &all);
    auto client = cluster.Connect();
    const NamespaceHandle ns = OpenDemo(*client);
    durable_chains = 0;
    for (const Written& written : all) {
      const Chain chain = MakeNumberedChain(ns, written.number);
      const uint32_t read = CheckChain(*client, ns, chain);
      uint32_t stored = 0;
      while (stored < written.results.size() && written.results[stored] == BlockResult::kOk)
        ++stored;
      if (written.number % 2 == 0) {
        EXPECT_GE(read, stored) << "chain " << written.number << ": " << stored
                                << " blocks were durable (seed " << kSeed << ")";
        durable_chains += stored == kChainBlocks;
      }
    }
  }
  EXPECT_GE(durable_chains, 10u) << "too little was written for the test to say anything";

  // No space is lost: once all is dropped, and the background has freed it, nothing counts as used.
  auto client = cluster.Connect();
  ASSERT_TRUE(client->Drop(nullptr, {}).ok());
  std::vector<ServerStats::Tier> tiers;
  for (int i = 0; i < 1000; ++i) {
    tiers = client->Stats().at(0).tiers;
    if (std::all_of(tiers.begin(), tiers.end(),
                    [](const auto& tier) { return tier.used_bytes == 0; }))
      break;
    absl::SleepFor(absl::Milliseconds(10));
  }
  ASSERT_EQ(tiers.size(), 2u);
  for (const auto& tier : tiers) {
    EXPECT_EQ(tier.used_bytes, 0u) << tier.tier;
    EXPECT_EQ(tier.blocks, 0u) << tier.tier;
  }
}

// Not a test: the child that the next one kills.
TEST(Publisher, DISABLED_PublishesUntilItIsKilled) {
  const char* where = getenv(kPublishTo);
  ASSERT_NE(where, nullptr);
  const std::vector<std::string> words = absl::StrSplit(where, ' ');
  uint32_t number = 0;
  ASSERT_TRUE(words.size() == 2 && absl::SimpleAtoi(words[1], &number)) << where;
  ClientOptions options;
  options.servers = {words[0]};
  const auto client = *Client::Connect(options);
  const NamespaceHandle ns = OpenDemo(*client);
  for (; number < 4'000'000'000; ++number) {
    const Chain chain = MakeNumberedChain(ns, number);
    PublishChain(*client, ns, chain);
    // A lease too, which dies with it.
    const PrefixMatch match = client->Match(ns, chain.links);
  }
}

TEST(Crash, AClientKilledInItsPublishLeavesWholeBlocksAndFreeKeys) {
  Cluster cluster;
  cluster.StartServer();
  auto client = cluster.Connect();
  const NamespaceHandle ns = OpenDemo(*client);
  std::mt19937 random(kSeed);
  for (uint32_t round = 0; round < kClientRounds && !testing::Test::HasFailure(); ++round) {
    const uint64_t before = client->Stats().at(0).published_blocks;
    const uint32_t first_number = 1'000'000 * (round + 1);
    auto publisher = cluster.StartPublisher(first_number);
    ASSERT_TRUE(publisher.ok()) << publisher.status();
    for (int i = 0; i < 3000 && client->Stats().at(0).published_blocks < before + 50; ++i)
      absl::SleepFor(absl::Milliseconds(5));
    absl::SleepFor(absl::Microseconds(random() % 30'000));
    publisher->Kill9();

    // What it held goes with its session: the heartbeat is 3 s, a closed connection is seen sooner.
    ServerStats stats;
    for (int i = 0; i < 2000; ++i) {
      stats = client->Stats().at(0);
      if (stats.sessions == 1 && stats.reservations == 0 && stats.pinned_bytes == 0) break;
      absl::SleepFor(absl::Milliseconds(5));
    }
    EXPECT_EQ(stats.sessions, 1u);
    EXPECT_EQ(stats.reservations, 0u);
    EXPECT_EQ(stats.pinned_bytes, 0u);
    EXPECT_GE(stats.published_blocks, before + 50);

    // Where it stopped, another goes on.
    uint32_t number = first_number;
    while (CheckChain(*client, ns, MakeNumberedChain(ns, number)) == kChainBlocks) ++number;
    const Chain broken = MakeNumberedChain(ns, number);
    const PublishResult result = PublishChain(*client, ns, broken);
    EXPECT_TRUE(result.is_complete()) << result.status << ", pending " << result.pending_count;
    EXPECT_EQ(CheckChain(*client, ns, broken), kChainBlocks);
  }
}

TEST(Crash, WhatWasDroppedStaysAwayAfterKill9) {
  Cluster cluster;
  cluster.StartServer();
  auto client = cluster.Connect();
  NamespaceHandle ns = OpenDemo(*client);
  std::vector<Chain> chains;
  for (uint32_t number = 0; number < 10; ++number) {
    chains.push_back(MakeNumberedChain(ns, number));
    ASSERT_TRUE(PublishChain(*client, ns, chains.back(), {.durable = true}).is_complete());
  }
  std::vector<BlockKey> keys;
  for (uint32_t number = 0; number < 5; ++number) {
    for (const ChainLink& link : chains[number].links) keys.push_back(link.key);
  }
  EXPECT_EQ(*client->Drop(&ns.id, keys), keys.size());
  cluster.KillServer();
  cluster.StartServer();
  client = cluster.Connect();
  ns = OpenDemo(*client);
  for (const Chain& chain : chains)
    EXPECT_EQ(CheckChain(*client, ns, chain), chain.number < 5 ? 0u : kChainBlocks) << chain.number;
}

}  // namespace
}  // namespace ibid
