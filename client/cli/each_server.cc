#include "client/cli/each_server.h"

#include "absl/strings/str_format.h"

namespace ibid::cli {

absl::StatusOr<std::unique_ptr<AdminChannel>> ConnectAdmin(const std::string& address) {
  ChannelOptions options;
  options.connect_timeout = absl::Seconds(1);
  options.tls = TlsOptions{absl::GetFlag(FLAGS_tls_cert), absl::GetFlag(FLAGS_tls_key),
                           absl::GetFlag(FLAGS_tls_ca)};
  return AdminChannel::Create(address, options);
}

int FailServer(const Command& command, const std::string& address, const absl::Status& status) {
  absl::FPrintF(stderr, "ibid %s: server %s: %s\n", command.name, address, status.message());
  const bool is_silent = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  return is_silent ? kExitUnreachable : kExitFailed;
}

}  // namespace ibid::cli
