// `ibid replay` promises what a server will do: a real server that gets the same requests, with
// small payloads, over gRPC and through the client, has the hit ratio that the replay says.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cache_server/cache_server.h"
#include "client/client.h"
#include "client/replay/replay.h"
#include "client/replay/trace.h"

namespace ibid {
namespace {

constexpr uint32_t kBlockTokens = 512;
constexpr uint64_t kSlotBytes = 4096;
constexpr double kTolerance = 0.01;

class ServerReplay {
 public:
  explicit ServerReplay(const Trace& trace, const std::string& policy, uint64_t capacity_blocks)
      : trace_(trace) {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.http_listen = "";
    options.eviction_policy = policy;
    options.extent_bytes.bytes = kSlotBytes;  // so that the tier has exactly so many slots
    options.host_bytes_max.bytes = capacity_blocks * kSlotBytes;
    auto server = CacheServer::Start(options);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    ClientOptions client_options;
    client_options.servers = {server_->address()};
    client_options.match_timeout = client_options.publish_timeout = absl::Seconds(60);
    auto client = Client::Connect(client_options);
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    NamespaceSpec spec;
    spec.model = trace.name;
    spec.engine = "replay";
    spec.layout =
        "layers=1;kv_heads=1;k_dim=1;v_dim=0;dtype=int8;block_tokens=512;order=hnd;scales=none";
    auto ns = client_->OpenNamespace(spec);
    EXPECT_TRUE(ns.ok()) << ns.status();
    ns_ = *ns;
    const absl::Time until = absl::Now() + absl::Seconds(30);
    while (!client_->is_any_reachable() && absl::Now() < until) std::this_thread::yield();
  }

  // As a worker does: what is stored is leased, the rest is computed and published.
  double TokenHitRatio() {
    uint64_t hit_tokens = 0;
    for (const TraceRequest& request : trace_.requests) {
      const std::vector<ChainLink> links = LinksOf(request);
      const PrefixMatch match = client_->Match(ns_, links);
      EXPECT_TRUE(match.is_complete());
      const uint32_t found = match.blocks_count();
      hit_tokens += std::min<uint64_t>(uint64_t{found} * kBlockTokens, request.input_tokens);
      const std::vector<ByteView> payloads(links.size() - found, ByteView(payload_));
      if (found == links.size()) continue;
      const PublishResult published =
          client_->Publish(ns_, std::span(links).subspan(found), payloads);
      EXPECT_EQ(published.stored_count + published.present_count, payloads.size())
          << published.status;
      if (::testing::Test::HasFailure()) break;
    }
    return static_cast<double>(hit_tokens) / static_cast<double>(trace_.input_tokens);
  }

 private:
  std::vector<ChainLink> LinksOf(const TraceRequest& request) const {
    std::vector<ChainLink> links;
    BlockKey parent = RootParent(ns_.id);
    const auto chain = trace_.ChainOf(request);
    for (uint32_t i = 0; i < chain.size(); ++i) {
      const BlockKey key = MakeForeignKey(
          ns_.id, absl::string_view(reinterpret_cast<const char*>(&chain[i]), sizeof(chain[i])));
      const bool is_tail = i + 1 == chain.size() && trace_.HasTail(request);
      links.push_back(
          {key, parent, is_tail ? request.input_tokens % kBlockTokens : kBlockTokens, i});
      parent = key;
    }
    return links;
  }

  const Trace& trace_;
  std::unique_ptr<CacheServer> server_;
  std::unique_ptr<Client> client_;
  NamespaceHandle ns_;
  const std::vector<std::byte> payload_ = std::vector<std::byte>(kBlockTokens, std::byte{7});
};

void ExpectServerFollowsReplay(const std::string& file, const std::string& policy,
                               double fraction) {
  const std::string path = std::string(IBID_SHARED_DATA) + "/traces/" + file;
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no trace at " << path;
  const absl::StatusOr<Trace> trace = ReadTrace(path, kBlockTokens);
  ASSERT_TRUE(trace.ok()) << trace.status();
  const uint64_t capacity = CapacityBlocks(*trace, fraction);
  const auto replayed = ReplayTrace(*trace, policy, capacity);
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  const double served = ServerReplay(*trace, policy, capacity).TokenHitRatio();
  EXPECT_NEAR(served, replayed->token_hit_ratio(), kTolerance);
  ::testing::Test::RecordProperty("served", std::to_string(served));
  ::testing::Test::RecordProperty("replayed", std::to_string(replayed->token_hit_ratio()));
  std::printf("%s at %g: server %.4f, replay %.4f\n", policy.c_str(), fraction, served,
              replayed->token_hit_ratio());
}

TEST(ServerReplay, TheLearnedPolicyHasTheSameHitRatioInAServerAsInAReplay) {
  ExpectServerFollowsReplay("mooncake_fast25_synthetic_trace.jsonl", "hazard", 0.1);
}

TEST(ServerReplay, LruHasTheSameHitRatioInAServerAsInAReplay) {
  ExpectServerFollowsReplay("mooncake_fast25_synthetic_trace.jsonl", "lru", 0.1);
}

TEST(ServerReplay, SoItIsOnTheConversationTrace) {
  ExpectServerFollowsReplay("mooncake_fast25_conversation_trace.jsonl", "hazard", 0.05);
}

}  // namespace
}  // namespace ibid
