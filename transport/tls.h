// Credentials of both ends of a connection.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace ibid {

// PEM files. On a server `certificate_file` and `key_file` are its own, and `ca_file`, if given,
// makes it demand a client certificate that this authority signed. On a client `ca_file` is what
// signs servers; the other two are sent if given.
struct TlsOptions {
  std::string certificate_file;
  std::string key_file;
  std::string ca_file;
  bool is_enabled() const {
    return !certificate_file.empty() || !key_file.empty() || !ca_file.empty();
  }
};

// Plaintext credentials when TLS is not enabled. Errors: InvalidArgument (a file that cannot be
// read, by name; a certificate without its key).
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsOptions& tls);
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsOptions& tls);

}  // namespace ibid
