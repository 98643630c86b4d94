// What a test of workers with a store is made of: a cache server that can be stopped and started
// again, a proxy in front of it that fails on request, and workers, each with its own client and
// engine.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache_server/cache_server.h"
#include "client/client.h"
#include "tests/client/fault_proxy.h"
#include "tests/harness/process.h"
#include "tests/worker/engine/small_model.h"
#include "worker/engine/engine.h"

namespace ibid {

// One cache server behind a proxy, at one address for all its lives.
class StoreRig {
 public:
  explicit StoreRig(bool has_disk = false, uint64_t extent_bytes = uint64_t{4} << 20)
      : has_disk_(has_disk), extent_bytes_(extent_bytes) {
    StartServer();
  }

  void StartServer() {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.http_listen = "";
    options.host_bytes_max = {uint64_t{64} << 20};
    options.extent_bytes = {extent_bytes_};
    options.disk_bytes_max = {uint64_t{256} << 20};
    if (has_disk_) options.disk_dir = folder_ / "disk";
    auto server = CacheServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    proxy_.SetTarget(server_->port());
  }
  void StopServer() {
    if (server_ != nullptr) server_->Shutdown(absl::Seconds(2));
    server_.reset();
  }
  void RestartServer() {
    StopServer();
    StartServer();
    proxy_.CutAll();
  }

  // From the next start on.
  void SetExtentBytes(uint64_t extent_bytes) { extent_bytes_ = extent_bytes; }

  CacheServer& server() { return *server_; }
  FaultProxy& proxy() { return proxy_; }
  std::string address() const { return proxy_.address(); }

 private:
  const bool has_disk_;
  uint64_t extent_bytes_;
  TempFolder folder_;
  FaultProxy proxy_;
  std::unique_ptr<CacheServer> server_;
};

// How block bytes travel in this run of the tests: IBID_TEST_TRANSPORT, else grpc, which the proxy
// sees.
inline TransportChoice TransportOfTests() {
  const char* const name = std::getenv("IBID_TEST_TRANSPORT");
  return TransportChoiceOf(name == nullptr ? "grpc" : name).value();
}

struct WorkerSetup {
  std::string model = IBID_SOURCE_DIR "/tests/golden/tiny_llama_gqa";
  KvDtype kv_dtype = KvDtype::kBf16;
  uint32_t block_tokens = 16;
  std::vector<std::string> servers;  // empty: no store
  absl::Duration fetch_timeout = absl::Seconds(5);
  absl::Duration match_timeout = absl::Milliseconds(500);
  EngineOptions engine = SmallEngineOptions(256);
  bool waits_until_connected = true;
  MetricsRegistry* client_metrics = nullptr;
};

class Worker {
 public:
  explicit Worker(WorkerSetup setup) {
    ModelOptions options;
    options.kv_dtype = setup.kv_dtype;
    options.block_tokens = setup.block_tokens;
    options.threads = 1;
    auto model = Model::Load(setup.model, options);
    if (!model.ok()) ADD_FAILURE() << model.status();
    if (!setup.servers.empty()) {
      ClientOptions client;
      client.servers = setup.servers;
      client.transport = TransportOfTests();
      client.metrics = setup.client_metrics;
      client.fetch_timeout = setup.fetch_timeout;
      client.match_timeout = std::min(setup.match_timeout, setup.fetch_timeout);
      auto connected = Client::Connect(client);
      if (!connected.ok()) ADD_FAILURE() << connected.status();
      client_ = *std::move(connected);
      if (setup.waits_until_connected) AwaitReachable();
    }
    setup.engine.store.fetch_timeout = setup.fetch_timeout;
    setup.engine.store.match_timeout = std::min(setup.match_timeout, setup.fetch_timeout);
    engine_ = StartEngine(setup.engine, *std::move(model), client_.get());
  }

  Engine& engine() { return *engine_; }
  Client& client() { return *client_; }
  Outcome Run(GenerateRequest request) { return Generate(*engine_, std::move(request)); }
  // Nothing runs, everything computed is published, all pages are back.
  void AwaitRest() { ExpectAtRest(*engine_); }
  void AwaitReachable() {
    const absl::Time until = absl::Now() + absl::Seconds(20);
    while (!client_->is_any_reachable()) {
      ASSERT_LT(absl::Now(), until) << "no server is reachable";
      absl::SleepFor(absl::Milliseconds(2));
    }
  }

 private:
  std::unique_ptr<Client> client_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace ibid
