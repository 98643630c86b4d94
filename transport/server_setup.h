// The server's end: a gRPC server with health and reflection services and the limits that all of
// ibid uses.
#pragma once

#include <grpcpp/server.h>

#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "transport/tls.h"

namespace ibid {

struct ServerSetup {
  std::string listen = "127.0.0.1:0";  // host:port; port 0: any free one
  TlsOptions tls;
  absl::Duration keepalive_interval = absl::Seconds(10);
  absl::Duration keepalive_timeout = absl::Seconds(5);
};

// A running server. Serves, and is healthy, from Start to Shutdown. Thread-safe.
class GrpcServer {
 public:
  // `services` must outlive the server. Errors: InvalidArgument (TLS files), Unavailable (the
  // address cannot be bound).
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(
      const ServerSetup& setup, std::span<grpc::Service* const> services);
  ~GrpcServer();  // Shutdown without grace

  int port() const { return port_; }

  // What the health service answers.
  void SetServing(bool is_serving);
  // Takes no more calls, waits at most `grace` for those that run, then cancels them. Idempotent.
  void Shutdown(absl::Duration grace);

 private:
  GrpcServer(std::unique_ptr<grpc::Server> server, int port)
      : server_(std::move(server)), port_(port) {}

  std::unique_ptr<grpc::Server> server_;
  const int port_;
};

}  // namespace ibid
