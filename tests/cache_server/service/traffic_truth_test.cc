// 43: what a server counts over the wire, against what a client of it saw.
#include <random>

#include "tests/cache_server/service/server_fixture.h"
#include "tests/harness/http.h"
#include "tests/harness/process.h"

namespace ibid {
namespace {

struct Truth {
  uint64_t fetched = 0, missed = 0, published = 0, asked = 0, matched = 0;
};

class TrafficTruthTest : public ServerFixture {
 protected:
  // A random trace of readers: match, fetch what was found and one more, publish the rest.
  void Replay(TestClient& client, int requests, uint32_t prompts = 5) {
    for (int i = 0; i < requests; ++i) {
      const SampleBlocks blocks =
          MakeBlocks(spec_, 1 + random_() % 6, (random_() % prompts) * 1'000);
      const auto keys = blocks.keys();
      const MatchReply match = client.Match(blocks.ns, keys, /*lease=*/true);
      truth_.asked += keys.size();
      truth_.matched += match.matched_count;
      const size_t count = std::min<size_t>(keys.size(), match.matched_count + 1);
      const auto outcomes =
          client.Fetch({client.session_id(), blocks.ns}, std::span(keys).first(count),
                       SmallLayout().PayloadBytes());
      for (const BlockOutcome outcome : outcomes) {
        ++(outcome == BlockOutcome::kOk ? truth_.fetched : truth_.missed);
      }
      for (const BlockOutcome outcome : client.Publish(blocks)) {
        truth_.published += outcome == BlockOutcome::kOk ? 1 : 0;
      }
    }
  }

  double Metric(const std::string& line) {
    const std::string text = HttpGet(server->http_port(), "/metrics");
    const size_t at = text.find("\n" + line + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + line.size() + 2));
  }

  void ExpectTruth(TestClient& client) {
    const CacheStats stats = client.Stats();
    uint64_t hits = 0;
    double exported_hits = 0;
    for (const CacheStats::Tier& tier : stats.tiers) {
      hits += tier.hits;
      exported_hits += Metric("ibid_store_hits_total{tier=\"" + tier.tier + "\"}");
    }
    EXPECT_EQ(hits, truth_.fetched);
    EXPECT_EQ(exported_hits, truth_.fetched);
    EXPECT_EQ(stats.missed_blocks, truth_.missed);
    EXPECT_EQ(Metric("ibid_store_misses_total"), truth_.missed);
    EXPECT_EQ(stats.requested_blocks, truth_.fetched + truth_.missed);
    EXPECT_EQ(stats.published_blocks, truth_.published);
    EXPECT_EQ(stats.asked_keys, truth_.asked);
    EXPECT_EQ(stats.matched_keys, truth_.matched);
    EXPECT_GT(truth_.missed, 0u);
    EXPECT_GT(truth_.fetched, 0u);
  }

  const NamespaceSpec spec_ = SpecOf(SmallLayout());
  std::mt19937 random_{11};
  Truth truth_;
};

TEST_F(TrafficTruthTest, HitsAndMissesOfAHostTierAreThoseThatTheClientSaw) {
  StartServer();
  const auto client = Connect(spec_);
  Replay(*client, 60);
  ExpectTruth(*client);
  bool has_match = false;
  for (const CacheStats::Method& method : client->Stats().methods) {
    if (method.method != "Match") continue;
    has_match = true;
    EXPECT_EQ(method.calls, 60u);
    EXPECT_EQ(method.errors, 0u);
    EXPECT_EQ(method.calls_in_progress, 0u);
    uint64_t observed = 0;
    for (const uint64_t count : method.latency_counts) observed += count;
    EXPECT_EQ(observed, 60u);
    EXPECT_GT(method.latency_seconds_sum, 0);
  }
  EXPECT_TRUE(has_match);
  EXPECT_EQ(Metric("ibid_cache_service_calls_in_progress{method=\"Session\"}"), 1);
}

TEST_F(TrafficTruthTest, AfterARestartTheSameBlocksAreHitsOfTheDiskTier) {
  const TempFolder folder;
  ServerOptions options = SmallServer();
  options.disk_dir = folder / "disk";
  options.disk_bytes_max = ByteCount{uint64_t{128} << 20};
  StartServer(options);
  {
    const auto client = Connect(spec_);
    Replay(*client, 40);
    ExpectTruth(*client);
  }
  server->Shutdown(kPatience);
  server.reset();
  StartServer(options);
  truth_ = Truth{};
  const auto client = Connect(spec_);
  Replay(*client, 40, /*prompts=*/8);
  ExpectTruth(*client);
  EXPECT_GT(Metric("ibid_store_hits_total{tier=\"disk\"}"), 0);
  EXPECT_GT(Metric("ibid_store_hits_total{tier=\"host\"}"), 0) << "promoted by the first read";
}

}  // namespace
}  // namespace ibid
