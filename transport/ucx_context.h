// UCX's context and worker as ibid sets them up, and its statuses and addresses as ibid's.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/checksum.h"
#include "transport/ucx_port.h"

namespace ibid {

// What a message of a pipe to a peer that is gone ends with is Unavailable, as every other error of
// the network.
absl::Status FromUcxStatus(absl::string_view what, ucs_status_t status);

struct UcxAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
};
// Of "host:port" or "[v6]:port". Asks the resolver. Errors: InvalidArgument, Unavailable.
absl::StatusOr<UcxAddress> ResolveUcxAddress(const std::string& address);

// Owned by the thread that calls it, except that any one thread may create and destroy it.
class UcxContext {
 public:
  static absl::StatusOr<std::unique_ptr<UcxContext>> Create(const UcxPortOptions& options);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  ucp_worker_h worker() const { return worker_; }
  int event_fd() const { return event_fd_; }

  absl::Status Map(MutableByteView region);
  // Of the mapped region that holds all of `bytes`; else null.
  ucp_mem_h HandleOf(ByteView bytes) const;

 private:
  UcxContext() = default;

  struct Region {
    ByteView bytes;
    ucp_mem_h handle;
  };
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  std::vector<Region> regions_;
};

}  // namespace ibid
