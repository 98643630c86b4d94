#include "transport/tls.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/text_file.h"

namespace ibid {
namespace {

constexpr size_t kPemBytesMax = size_t{1} << 20;

// The text of `path`, which the flag or option `name` gave; empty for an empty path.
absl::StatusOr<std::string> ReadPem(absl::string_view name, const std::string& path) {
  if (path.empty()) return std::string();
  absl::StatusOr<std::string> text = ReadTextFile(path, kPemBytesMax);
  if (text.ok() && text->empty()) text = absl::InvalidArgumentError("is empty");
  if (!text.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("TLS: ", name, "=", path, ": ", text.status().message(), "; give a PEM file"));
  }
  return text;
}

absl::Status CheckPair(const TlsOptions& tls) {
  if (tls.certificate_file.empty() == tls.key_file.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("TLS: a certificate needs its key, and a key its certificate");
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsOptions& tls) {
  if (!tls.is_enabled()) return grpc::InsecureChannelCredentials();
  IBID_RETURN_IF_ERROR(CheckPair(tls));
  grpc::SslCredentialsOptions options;
  IBID_ASSIGN_OR_RETURN(options.pem_root_certs, ReadPem("tls_ca", tls.ca_file));
  IBID_ASSIGN_OR_RETURN(options.pem_cert_chain, ReadPem("tls_cert", tls.certificate_file));
  IBID_ASSIGN_OR_RETURN(options.pem_private_key, ReadPem("tls_key", tls.key_file));
  return grpc::SslCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsOptions& tls) {
  if (!tls.is_enabled()) return grpc::InsecureServerCredentials();
  IBID_RETURN_IF_ERROR(CheckPair(tls));
  if (tls.certificate_file.empty()) {
    return absl::InvalidArgumentError("TLS: a server needs a certificate and its key");
  }
  grpc::SslServerCredentialsOptions options(
      tls.ca_file.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                          : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  grpc::SslServerCredentialsOptions::PemKeyCertPair pair;
  IBID_ASSIGN_OR_RETURN(pair.private_key, ReadPem("tls_key", tls.key_file));
  IBID_ASSIGN_OR_RETURN(pair.cert_chain, ReadPem("tls_cert", tls.certificate_file));
  options.pem_key_cert_pairs.push_back(std::move(pair));
  IBID_ASSIGN_OR_RETURN(options.pem_root_certs, ReadPem("tls_ca", tls.ca_file));
  return grpc::SslServerCredentials(options);
}

}  // namespace ibid
