// CacheServer: a whole cache server in one object: store, gRPC port and HTTP port. ibid-server is
// this and a main function; tests run it in their own process.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache_server/admin_service.h"
#include "cache_server/block_store.h"
#include "cache_server/cache_service.h"
#include "cache_server/server_options.h"
#include "core/metrics.h"
#include "core/mutex.h"
#include "transport/http_port.h"
#include "transport/server_setup.h"

namespace ibid {

// Thread-safe, but Shutdown and the destructor are called by one thread.
class CacheServer {
 public:
  // Serves once this returns; blocks of the disk tier appear as they are indexed. `clock` null: the
  // steady clock. Errors: those of ServerOptions::Validate, BlockStore::Open and the two ports.
  static absl::StatusOr<std::unique_ptr<CacheServer>> Start(const ServerOptions& options,
                                                            const Clock* clock = nullptr);
  ~CacheServer();  // Shutdown without grace

  int port() const { return grpc_server_->port(); }
  int http_port() const { return http_port_ == nullptr ? 0 : http_port_->port(); }
  std::string address() const;  // host:port of the gRPC port
  // REQUIRES: not after Shutdown.
  BlockStore& store() { return *store_; }
  MetricsRegistry& metrics() { return *metrics_; }

  // Prepares the end: not healthy any more, no new sessions, no new blocks; then KeepOnDisk with
  // the same arguments. Sessions that are open go on reading. May be called again. REQUIRES: not
  // after Shutdown.
  KeepResult Drain(absl::Duration timeout, const std::function<bool()>& is_stopped = nullptr);
  // The server is healthy again and takes sessions and blocks. A Drain that still runs writes on.
  // Errors: Unavailable (it is shutting down).
  absl::Status Undrain();
  bool is_draining() const { return is_draining_; }

  // Stops in order: says so in health, ends sessions, waits for running calls (half of `timeout` at
  // most), writes to disk what only memory has. All of it within `timeout` and a few seconds; calls
  // that still run are then cancelled. Idempotent.
  void Shutdown(absl::Duration timeout);

 private:
  explicit CacheServer(const ServerOptions& options);
  absl::Status Open(const Clock* clock);
  // From --tenants_file; errors leave the quotas as they are.
  absl::Status ReloadQuotas();
  // No error when memory cannot be shared: clients then use gRPC.
  void ShareMemory();
  HttpReply Health() const;
  std::string Status() const;  // /stats.json
  void KeepBlocks(absl::Duration timeout);
  void SetDraining(bool is_draining) IBID_REQUIRES(draining_mutex_);

  const ServerOptions options_;
  const SteadyClock steady_clock_;
  const absl::Time began_ = steady_clock_.Now();
  const Clock* clock_ = nullptr;  // the store's
  // In the order of construction; Shutdown takes them down from the last to the first.
  std::unique_ptr<MetricsRegistry> metrics_;
  std::unique_ptr<BlockStore> store_;
  std::unique_ptr<ShmListener> shm_;  // null: no memory is shared
  std::unique_ptr<CacheService> service_;
  std::unique_ptr<AdminService> admin_;
  std::unique_ptr<GrpcServer> grpc_server_;
  std::unique_ptr<HttpPort> http_port_;
  // Makes what a drain turns off, in three places, one step. The locks of those places are taken
  // under it; nothing else is.
  Mutex draining_mutex_;
  std::atomic<bool> is_draining_{false};
  std::atomic<bool> is_stopping_{false};
};

}  // namespace ibid
