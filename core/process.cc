#include "core/process.h"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"

namespace ibid {
namespace {

absl::Status CannotWrite(const std::string& path) {
  return absl::InvalidArgumentError(absl::StrCat("--port_file=", path,
                                                 ": cannot be written: ", std::strerror(errno),
                                                 "; give a file in a folder that exists"));
}

}  // namespace

StopSignals::StopSignals() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  IBID_CHECK(pthread_sigmask(SIG_BLOCK, &signals_, nullptr) == 0);
}

absl::string_view StopSignals::Wait() const {
  int received = 0;
  IBID_CHECK(sigwait(&signals_, &received) == 0);
  return received == SIGINT ? "SIGINT" : "SIGTERM";
}

absl::Status WritePortFile(const std::string& path, int port, int http_port) {
  if (path.empty()) return absl::OkStatus();
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  {
    std::ofstream file(temporary, std::ios::trunc);
    file << "{\"port\":" << port;
    if (http_port != 0) file << ",\"http_port\":" << http_port;
    file << "}\n";
    if (!file.flush()) return CannotWrite(path);
  }
  if (std::rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  absl::Status status = CannotWrite(path);  // before errno changes
  std::remove(temporary.c_str());
  return status;
}

int FailProgram(absl::string_view program, const absl::Status& status) {
  absl::FPrintF(stderr, "%s: %s\n", program, status.message());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace ibid
