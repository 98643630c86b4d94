// AdminService: what an operator asks of a server. It decides who may ask; what is done is the
// store's and the server's.
//
// Thread safety: gRPC calls it from many threads. No call blocks one of them: the work runs on
// threads of the service.
#pragma once

#include <grpcpp/impl/service_type.h>

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache_server/block_store.h"
#include "cache_server/service_state.h"

namespace ibid {

struct AdminServiceOptions {
  ServiceState* state = nullptr;  // must outlive the service
  // Only peers of this machine may ask. False when the server demands client certificates: then
  // whoever got that far has one.
  bool is_loopback_only = true;
  // Makes the server drain, as KeepOnDisk with the same arguments.
  std::function<KeepResult(absl::Duration timeout, const std::function<bool()>& is_stopped)> drain;
  std::function<absl::Status()> undrain;  // see CacheServer; does not block
  // Reads the quotas of tenants again from where the server has them. May block for a file.
  std::function<absl::Status()> reload_quotas;
};

class AdminService {
 public:
  static std::unique_ptr<AdminService> Create(const AdminServiceOptions& options);
  virtual ~AdminService() = default;

  // To be registered with one server, which this must outlive.
  virtual grpc::Service* grpc_service() = 0;

  // Ends what runs, soon, and refuses what comes: else a server that shuts down would wait for it.
  virtual void Stop() = 0;
};

}  // namespace ibid
