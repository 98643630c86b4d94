// Cache servers in the test's own process, each behind a FaultProxy whose address stays when its
// server is replaced.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cache_server/cache_server.h"
#include "client/client.h"
#include "core/check.h"
#include "core/clock.h"
#include "gtest/gtest.h"
#include "tests/client/fault_proxy.h"
#include "tests/harness/eventually.h"

namespace ibid {

// 64 KiB a block: far more payload than framing on the wire.
inline constexpr const char* kTestLayout =
    "layers=2;kv_heads=4;k_dim=128;v_dim=128;dtype=f32;block_tokens=8;order=hnd;scales=none";
inline constexpr uint32_t kTestBlockTokens = 8;

inline NamespaceSpec TestSpec(const std::string& salt = "") {
  NamespaceSpec spec;
  spec.model = "test";
  spec.engine = "test-1";
  spec.layout = kTestLayout;
  spec.salt = salt;
  return spec;
}

// A chain of `blocks_count` full blocks; `first_token` makes it another prompt.
inline std::vector<ChainLink> TestChain(const NamespaceId& ns, uint32_t blocks_count,
                                        uint32_t first_token = 0) {
  std::vector<uint32_t> tokens(blocks_count * kTestBlockTokens);
  for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = first_token + i;
  return MakeChain(ns, tokens, kTestBlockTokens, false);
}

// Bytes that depend on the key alone.
inline std::vector<std::byte> TestPayload(const BlockKey& key, size_t bytes) {
  uint64_t seed = 0;
  std::memcpy(&seed, key.digest.data(), sizeof seed);
  std::mt19937_64 random(seed);
  std::vector<std::byte> payload(bytes);
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    const uint64_t word = random();
    std::memcpy(&payload[i], &word, 8);
  }
  return payload;
}

class Cluster {
 public:
  explicit Cluster(size_t servers_count, const Clock* clock = nullptr)
      : clock_(clock), servers_(servers_count) {
    for (size_t i = 0; i < servers_count; ++i) {
      servers_[i] = StartServer();
      proxies_.push_back(std::make_unique<FaultProxy>(servers_[i]->port()));
    }
  }

  CacheServer& server(size_t i) { return *servers_[i]; }
  FaultProxy& proxy(size_t i) { return *proxies_[i]; }
  size_t size() const { return servers_.size(); }

  // The server dies: its connections are reset, and new ones refused.
  void Kill(size_t i) {
    proxies_[i]->Refuse(true);
    proxies_[i]->CutAll();
    servers_[i].reset();
  }
  // An empty server, another incarnation, at the same address; the one before it dies if it is
  // alive.
  void Restart(size_t i) {
    std::unique_ptr<CacheServer> fresh = StartServer();
    proxies_[i]->SetTarget(fresh->port());
    proxies_[i]->Refuse(false);
    proxies_[i]->CutAll();
    servers_[i] = std::move(fresh);
  }

  ClientOptions Options() const {
    ClientOptions options;
    for (const auto& proxy : proxies_) options.servers.push_back(proxy->address());
    options.placement_group_blocks = 4;
    options.transport = TransportChoice::kGrpc;  // past the proxies no byte of a block goes
    return options;
  }
  std::unique_ptr<Client> Connect() const { return Connect(Options()); }
  static std::unique_ptr<Client> Connect(ClientOptions options) {
    auto client = Client::Connect(std::move(options));
    IBID_CHECK(client.ok()) << client.status().ToString();
    return *std::move(client);
  }

 private:
  std::unique_ptr<CacheServer> StartServer() const {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.http_listen = "";
    options.host_bytes_max = {uint64_t{64} << 20};
    options.extent_bytes = {uint64_t{1} << 20};
    auto server = CacheServer::Start(options, clock_);
    IBID_CHECK(server.ok()) << server.status().ToString();
    return *std::move(server);
  }

  const Clock* const clock_;
  std::vector<std::unique_ptr<FaultProxy>> proxies_;
  std::vector<std::unique_ptr<CacheServer>> servers_;
};

inline PublishResult PublishChain(Client* client, const NamespaceHandle& ns,
                                  std::span<const ChainLink> links,
                                  const PublishCallOptions& options = {}) {
  std::vector<std::vector<std::byte>> payloads;
  for (const ChainLink& link : links)
    payloads.push_back(TestPayload(link.key, ns.layout.PayloadBytes()));
  return client->Publish(ns, links, std::vector<ByteView>(payloads.begin(), payloads.end()),
                         options);
}

inline constexpr std::byte kUntouched{0xA5};

// Destinations of a fetch.
class Destinations {
 public:
  Destinations(const NamespaceHandle& ns, size_t count)
      : memory_(count, std::vector<std::byte>(ns.layout.PayloadBytes(), kUntouched)) {
    for (auto& block : memory_) views_.push_back(block);
  }
  std::span<const MutableByteView> views() const { return views_; }
  bool Holds(size_t i, const BlockKey& key) const {
    return memory_[i] == TestPayload(key, memory_[i].size());
  }
  bool IsUntouched(size_t i) const {
    return memory_[i] == std::vector<std::byte>(memory_[i].size(), kUntouched);
  }
  std::vector<std::vector<std::byte>> Copy() const { return memory_; }

 private:
  std::vector<std::vector<std::byte>> memory_;
  std::vector<MutableByteView> views_;
};

inline absl::Duration TimeOf(const std::function<void()>& work) {
  const SteadyClock clock;
  const absl::Time began = clock.Now();
  work();
  return clock.Now() - began;
}

}  // namespace ibid
