// ibid-server: a cache server as a process.
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache_server/cache_server.h"
#include "cache_server/command_line.h"
#include "cache_server/server_flags.h"
#include "core/log.h"
#include "transport/grpc_log.h"
#include "transport/receive_memory.h"

namespace {

constexpr char kProgram[] = "ibid-server";
constexpr char kUsage[] =
    "A distributed, tiered store for the attention KV cache of large language models: one cache "
    "server.\n"
    "Example: ibid-server --listen=0.0.0.0:7070 --host_bytes_max=64GiB --disk_dir=/var/lib/ibid "
    "--disk_bytes_max=1TiB";
// What the stop may take beyond --shutdown_timeout before the process ends itself.
constexpr int kShutdownExtraSeconds = 15;

// Blocks the signals that end the process, in this thread and all that it starts; WaitForStop
// receives them.
sigset_t BlockStopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

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

// Readers see the whole file or none.
absl::Status WritePortFile(const std::string& path, const ibid::CacheServer& server) {
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  {
    std::ofstream file(temporary, std::ios::trunc);
    file << "{\"port\":" << server.port() << ",\"http_port\":" << server.http_port() << "}\n";
    file.flush();
    if (!file)
      return absl::UnavailableError(
          absl::StrCat("--port_file=", path, ": cannot write ", temporary));
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    std::remove(temporary.c_str());
    return absl::UnavailableError(absl::StrCat("--port_file=", path, ": cannot be renamed to"));
  }
  return absl::OkStatus();
}

// A stop that hangs must not outlive what an operator was promised.
void EndProcessAfter(absl::Duration limit) {
  alarm(static_cast<unsigned>(absl::ToInt64Seconds(limit)) + kShutdownExtraSeconds);
}

}  // namespace

int main(int argc, char** argv) {
  ibid::ParseCommandLine({kProgram, IBID_VERSION, kUsage, "server_flags.cc"}, argc, argv);
  const ibid::ServerOptions options = ibid::ServerOptionsFromFlags();
  if (const absl::Status status = options.Validate(); !status.ok()) {
    ibid::ExitWithUsageError(kProgram, status.message());
  }
  if (const absl::Status status = ibid::InitLog(kProgram, options.log_level); !status.ok()) {
    ibid::ExitWithUsageError(kProgram, status.message());
  }
  if (const absl::Status status = RaiseOpenFilesLimit(options); !status.ok()) {
    ibid::ExitWithUsageError(kProgram, status.message());
  }
  ibid::TakeOverGrpcLog();
  ibid::KeepReceiveMemory();
  const sigset_t signals = BlockStopSignals();

  absl::StatusOr<std::unique_ptr<ibid::CacheServer>> server = ibid::CacheServer::Start(options);
  if (!server.ok()) {
    std::fprintf(stderr, "%s: %s\n", kProgram, std::string(server.status().message()).c_str());
    return absl::IsInvalidArgument(server.status()) ? 2 : 1;
  }
  if (!options.port_file.empty()) {
    if (const absl::Status status = WritePortFile(options.port_file, **server); !status.ok()) {
      ibid::ExitWithUsageError(kProgram, status.message());
    }
  }
  IBID_LOG(info, "serving on {}, HTTP port {}, {} of memory, disk {}", (*server)->address(),
           (*server)->http_port(), AbslUnparseFlag(options.host_bytes_max),
           options.disk_dir.empty() ? "off" : options.disk_dir);

  int received = 0;
  sigwait(&signals, &received);
  IBID_LOG(info, "{}: stopping", received == SIGINT ? "SIGINT" : "SIGTERM");
  EndProcessAfter(options.shutdown_timeout);
  (*server)->Shutdown(options.shutdown_timeout);
  IBID_LOG(info, "stopped");
  return 0;
}
