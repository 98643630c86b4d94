// ibid-server: a cache server as a process.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cache_server/cache_server.h"
#include "cache_server/server_flags.h"
#include "core/log.h"
#include "core/process.h"
#include "transport/grpc_log.h"
#include "transport/receive_memory.h"

namespace {

constexpr char kProgram[] = "ibid-server";
// What the stop may take beyond --shutdown_timeout before the process ends itself.
constexpr int kShutdownExtraSeconds = 15;

// Each extent of the disk tier keeps a file open: as many descriptors as the system lets this
// process have. Errors: InvalidArgument when that is too few, before anything is opened.
absl::Status RaiseOpenFilesLimit(const ibid::ServerOptions& options) {
  constexpr uint64_t kOtherFiles = 512;  // connections, RocksDB, logs
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::OkStatus();
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
  if (options.disk_dir.empty()) return absl::OkStatus();
  const uint64_t extents_count = options.disk_bytes_max.bytes / options.extent_bytes.bytes;
  if (extents_count + kOtherFiles <= limit.rlim_max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--disk_bytes_max in pieces of --extent_bytes is ", extents_count,
                   " files, but this process may open only ", limit.rlim_max,
                   " (ulimit -n): use a larger --extent_bytes, as 1GiB, or raise the limit"));
}

// A stop that hangs must not outlive what an operator was promised.
void EndProcessAfter(absl::Duration limit) {
  alarm(static_cast<unsigned>(absl::ToInt64Seconds(limit)) + kShutdownExtraSeconds);
}

}  // namespace

int main(int argc, char** argv) {
  ibid::ReadCommandLine(ibid::ServerCommandLine(), {argv + 1, argv + argc});
  const ibid::ServerOptions options = ibid::ServerOptionsFromFlags();
  if (const absl::Status status = options.Validate(); !status.ok()) {
    return ibid::FailProgram(kProgram, status);
  }
  if (const absl::Status status = ibid::InitLog(kProgram, options.log_level); !status.ok()) {
    return ibid::FailProgram(kProgram, status);
  }
  if (const absl::Status status = RaiseOpenFilesLimit(options); !status.ok()) {
    return ibid::FailProgram(kProgram, status);
  }
  ibid::TakeOverGrpcLog();
  ibid::KeepReceiveMemory();
  const ibid::StopSignals signals;

  absl::StatusOr<std::unique_ptr<ibid::CacheServer>> server = ibid::CacheServer::Start(options);
  if (!server.ok()) return ibid::FailProgram(kProgram, server.status());
  if (const absl::Status status =
          ibid::WritePortFile(options.port_file, (*server)->port(), (*server)->http_port());
      !status.ok()) {
    return ibid::FailProgram(kProgram, status);
  }
  IBID_LOG(info, "serving on {}, HTTP port {}, {} of memory, disk {}", (*server)->address(),
           (*server)->http_port(), AbslUnparseFlag(options.host_bytes_max),
           options.disk_dir.empty() ? "off" : options.disk_dir);

  const absl::string_view signal = signals.Wait();
  IBID_LOG(info, "{}: stopping", signal);
  EndProcessAfter(options.shutdown_timeout);
  (*server)->Shutdown(options.shutdown_timeout);
  IBID_LOG(info, "stopped");
  return 0;
}
