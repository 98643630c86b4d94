// A CacheServer in this process, clients of it over loopback, and blocks to move.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache_server/cache_server.h"
#include "core/clock.h"
#include "core/kv_layout.h"
#include "ibid/v1/cache.grpc.pb.h"
#include "tests/harness/eventually.h"
#include "transport/cache_channel.h"
#include "transport/key_bytes.h"

namespace ibid {

constexpr absl::Duration kPatience = absl::Seconds(20);  // only a broken test waits this long

inline bool Eventually(const std::function<bool()>& condition) {
  return Eventually(kPatience, condition);
}

inline KvLayout SmallLayout() {
  KvLayout layout;
  layout.layers = 3;
  layout.kv_heads = 2;
  layout.k_dim = 64;
  layout.v_dim = 64;
  layout.dtype = KvDtype::kBf16;
  return layout;
}

// 2 MiB a block, as models of 8 billion parameters have.
inline KvLayout LargeLayout() {
  KvLayout layout = SmallLayout();
  layout.layers = 32;
  layout.kv_heads = 8;
  layout.k_dim = 128;
  layout.v_dim = 128;
  return layout;
}

inline NamespaceSpec SpecOf(const KvLayout& layout, const std::string& model = "demo") {
  NamespaceSpec spec;
  spec.model = model;
  spec.engine = "ibid-cpu-1";
  spec.layout = layout.ToString();
  return spec;
}

// Blocks of one chain with bytes that differ from block to block.
struct SampleBlocks {
  NamespaceId ns;
  std::vector<ChainLink> links;
  std::vector<std::vector<std::byte>> payloads;

  std::vector<BlockKey> keys() const {
    std::vector<BlockKey> keys;
    for (const ChainLink& link : links) keys.push_back(link.key);
    return keys;
  }
  std::vector<PublishBlock> ToPublish() const {
    std::vector<PublishBlock> blocks;
    for (size_t i = 0; i < links.size(); ++i)
      blocks.push_back({links[i], payloads[i], std::nullopt, nullptr});
    return blocks;
  }
};

inline SampleBlocks MakeBlocks(const NamespaceSpec& spec, size_t count, uint32_t first_token = 0) {
  SampleBlocks blocks;
  blocks.ns = MakeNamespaceId(spec);
  const KvLayout layout = *KvLayout::Parse(spec.layout);
  std::vector<uint32_t> tokens(count * layout.block_tokens);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = first_token + static_cast<uint32_t>(i);
  blocks.links = MakeChain(blocks.ns, tokens, layout.block_tokens, false);
  for (size_t b = 0; b < count; ++b) {
    std::vector<std::byte> payload(layout.PayloadBytes());
    for (size_t i = 0; i < payload.size(); ++i)
      payload[i] = static_cast<std::byte>((i * 7 + (i >> 9) + b * 31 + first_token));
    blocks.payloads.push_back(std::move(payload));
  }
  return blocks;
}

// One client of the server: channel, session, and calls that must succeed.
class TestClient {
 public:
  explicit TestClient(const std::string& address) {
    channel = *CacheChannel::Create(address, {});
    auto opened = channel->OpenSession("test", kPatience,
                                       [this](absl::Status) { broken_count.fetch_add(1); });
    EXPECT_TRUE(opened.ok()) << opened.status();
    if (opened.ok()) session = *std::move(opened);
  }

  uint64_t session_id() const { return session->session_id(); }

  // The outcome of each block, by its index.
  std::vector<BlockOutcome> Publish(const NamespaceId& ns, const std::vector<PublishBlock>& blocks,
                                    absl::Status* status = nullptr) {
    std::vector<BlockOutcome> outcomes(blocks.size());
    details.assign(blocks.size(), "");
    const auto result = channel->Publish({session_id(), ns, false}, blocks, kPatience,
                                         [&](const PublishBlockResult& r) {
                                           outcomes.at(r.index) = r.outcome;
                                           details.at(r.index) = r.detail;
                                         });
    if (status != nullptr) {
      *status = result.status();
    } else {
      EXPECT_TRUE(result.ok()) << result.status();
    }
    return outcomes;
  }
  std::vector<BlockOutcome> Publish(const SampleBlocks& blocks) {
    return Publish(blocks.ns, blocks.ToPublish());
  }

  // Fetches into `received`, of `block_bytes` each.
  std::vector<BlockOutcome> Fetch(const FetchCall& call, std::span<const BlockKey> keys,
                                  size_t block_bytes, absl::Status* status = nullptr) {
    received.assign(keys.size(), std::vector<std::byte>(block_bytes, std::byte{0xee}));
    const std::vector<MutableByteView> into(received.begin(), received.end());
    std::vector<BlockOutcome> outcomes(keys.size());
    const auto result =
        channel->Fetch(call, keys, into, kPatience,
                       [&](uint32_t i, BlockOutcome outcome) { outcomes.at(i) = outcome; });
    if (status != nullptr) {
      *status = result.status();
    } else {
      EXPECT_TRUE(result.ok()) << result.status();
    }
    return outcomes;
  }

  MatchReply Match(const NamespaceId& ns, std::span<const BlockKey> keys, bool lease = false) {
    MatchCall call{session_id(), ns, lease};
    auto reply = channel->Match(call, keys, kPatience);
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.value_or(MatchReply{});
  }

  CacheStats Stats() {
    auto stats = channel->GetStats(kPatience);
    EXPECT_TRUE(stats.ok()) << stats.status();
    return stats.value_or(CacheStats{});
  }

  std::atomic<int> broken_count{0};
  std::unique_ptr<CacheChannel> channel;
  std::unique_ptr<CacheSession> session;
  std::vector<std::vector<std::byte>> received;
  std::vector<std::string> details;  // of the last Publish
};

class ServerFixture : public ::testing::Test {
 protected:
  static ServerOptions SmallServer() {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.http_listen = "127.0.0.1:0";
    options.host_bytes_max = ByteCount{uint64_t{64} << 20};
    options.extent_bytes = ByteCount{uint64_t{4} << 20};
    return options;
  }

  void StartServer(const ServerOptions& options = SmallServer()) {
    auto started = CacheServer::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
  }

  // A client that has made the handshake for `spec`.
  std::unique_ptr<TestClient> Connect(const NamespaceSpec& spec) {
    auto client = std::make_unique<TestClient>(server->address());
    const auto opened = client->channel->OpenNamespace(spec, kPatience);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return client;
  }

  std::unique_ptr<v1::CacheService::Stub> PlainStub() {
    return v1::CacheService::NewStub(*MakeChannel(server->address(), {}));
  }

  std::unique_ptr<CacheServer> server;
};

}  // namespace ibid
