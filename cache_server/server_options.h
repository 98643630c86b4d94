// All settings of ibid-server: a field is a flag of the same name.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cache_server/block_store.h"
#include "transport/server_setup.h"

namespace ibid {

// A number of bytes; as text `4096`, `64MiB`, `4GiB` (KiB, MiB, GiB, TiB).
struct ByteCount {
  uint64_t bytes = 0;
};
bool AbslParseFlag(absl::string_view text, ByteCount* value, std::string* error);
std::string AbslUnparseFlag(ByteCount value);

struct ServerOptions {
  std::string listen = "127.0.0.1:7070";
  std::string http_listen = "127.0.0.1:7071";  // empty: no HTTP port
  ByteCount host_bytes_max{uint64_t{1} << 30};
  ByteCount gpu_bytes_max{0};       // 0: no gpu tier
  std::string gpu_device = "host";  // the only one so far: a stand-in in host memory
  std::string disk_dir;             // empty: no disk tier
  ByteCount disk_bytes_max{uint64_t{16} << 30};
  ByteCount disk_directory_bytes_reserve{uint64_t{64} << 20};
  std::string disk_write = "through";  // or on_demotion, on_second_use
  std::string eviction_policy = "hazard";
  uint32_t must_stay_percent_max = 50;
  uint32_t leased_percent_per_session_max = 50;
  std::string tenants_file;  // quotas; empty: none
  ByteCount extent_bytes{uint64_t{64} << 20};
  std::string transport = "auto";  // ways for block bytes besides gRPC: auto, shm, or grpc (none)
  std::string shm_socket;          // empty: an abstract one of the server's own
  std::string shm_uids;            // besides the server's own user
  absl::Duration lease_ttl = absl::Seconds(30);
  absl::Duration session_ttl = absl::Seconds(15);
  absl::Duration reservation_ttl = absl::Seconds(30);
  uint32_t io_threads = 4;
  uint32_t event_log_max = 262'144;
  std::string tls_cert;
  std::string tls_key;
  std::string tls_ca;
  absl::Duration shutdown_timeout = absl::Seconds(10);  // from the signal to the end of the process
  std::string log_level = "info";
  std::string port_file;  // gets {"port":N,"http_port":N} once both are bound

  // Errors: InvalidArgument that names the flag and says what to do.
  absl::Status Validate() const;

  BlockStoreOptions StoreOptions() const;
  ServerSetup GrpcSetup() const;

  // Whether clients on this host may have the arena, and of which users.
  bool SharesMemory() const;
  // Errors: InvalidArgument (--shm_uids).
  absl::StatusOr<std::vector<uid_t>> ShmUids() const;
};

}  // namespace ibid
