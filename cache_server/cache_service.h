// CacheService: the gRPC face of a BlockStore. It checks what comes in, moves block bytes between
// the wire and the store's slots and says what came of it; every decision is the store's.
//
// Thread safety: gRPC calls it from many threads. No call blocks one of gRPC's threads: matches
// wait in the store without one, and drops of whole namespaces run on a thread of the service.
#pragma once

#include <grpcpp/impl/service_type.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache_server/block_store.h"
#include "cache_server/service_state.h"
#include "core/metrics.h"
#include "transport/limits.h"

namespace ibid {

struct CacheServiceOptions {
  BlockStore* store = nullptr;  // must outlive the service and all that WaitForNoHolds waits for
  const ShmListener* shm = nullptr;  // null: no shared memory; must outlive the service
  absl::Duration session_ttl = absl::Seconds(15);
  absl::Duration lease_ttl = absl::Seconds(30);
  absl::Duration wait_pending_max = kWaitPendingMax;  // of one match; tests give less
  std::string version;
  MetricsRegistry* metrics = nullptr;  // null: none are kept
};

class CacheService {
 public:
  static std::unique_ptr<CacheService> Create(const CacheServiceOptions& options);
  virtual ~CacheService() = default;

  // To be registered with one server, which this must outlive.
  virtual grpc::Service* grpc_service() = 0;

  // Refuses new sessions with Unavailable; those that are open go on.
  virtual void RefuseSessions() = 0;
  // Undoes RefuseSessions, not Drain.
  virtual void TakeSessions() = 0;
  // Ends all sessions and waits with Unavailable, and refuses new sessions: the first half of a
  // graceful stop.
  virtual void Drain() = 0;

  // What its calls share, for other services of the same server.
  virtual ServiceState* state() = 0;

  // After the server is shut down: true once nothing refers to the store any more, neither a call
  // nor bytes that gRPC was still sending; false after `timeout`.
  virtual bool WaitForNoHolds(absl::Duration timeout) = 0;
};

}  // namespace ibid
