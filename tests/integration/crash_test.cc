// kill -9 of a real server at random moments under load: every block whose durable publish was
// answered reads back right, every other one reads back right or is absent, and no space is lost.
// failures.md 3, 34, 35.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
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
constexpr uint32_t kSeed = 20260131;

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
    std::vector<ByteView> views(chain.bytes.begin(), chain.bytes.end());
    const PublishResult result = client->Publish(
        ns, chain.links, views, /*durable=*/chain.number % 2 == 0, absl::Seconds(5));
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

}  // namespace
}  // namespace ibid
