// A small HTTP port for Prometheus, health probes and people, by CivetWeb. It answers GET of fixed
// paths with texts; nothing else.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace ibid {

struct HttpReply {
  int code = 200;
  std::string body;
  const char* content_type = "text/plain; version=0.0.4; charset=utf-8";  // static storage
};

// Serves from Start until it dies. Thread-safe.
class HttpPort {
 public:
  // Called on threads of this port, also at the same time. Must not block.
  using Handlers = std::map<std::string, std::function<HttpReply()>>;  // by path, as "/metrics"

  // `listen` is host:port; port 0 takes any free one. Errors: InvalidArgument (`listen`),
  // Unavailable (it cannot be bound).
  static absl::StatusOr<std::unique_ptr<HttpPort>> Start(const std::string& listen,
                                                         Handlers handlers);
  virtual ~HttpPort() = default;

  virtual int port() const = 0;
};

}  // namespace ibid
