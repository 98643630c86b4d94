// WorkerOptions is all that can be set on ibid-worker: field = flag = row in docs/operations.md.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "core/kv_layout.h"
#include "worker/engine/engine.h"
#include "worker/model/model.h"

namespace ibid {

struct WorkerOptions {
  std::string model;                      // folder of a Hugging Face model; required
  std::string listen = "127.0.0.1:7080";  // host:port; port 0: any free one
  std::string http_listen;                // host:port of /metrics and /healthz; empty: no HTTP port
  std::string port_file;          // gets {"port":N}, or {"port":N,"http_port":N}; empty: nowhere
  std::string servers;            // cache servers, host:port with commas between; empty: no store
  std::string kv_dtype = "bf16";  // bf16, f32
  std::string compute = "auto";   // auto, f32, bf16
  uint32_t block_tokens = 16;
  uint32_t pages = 0;  // blocks of KV held by this worker; 0: as many as kv_bytes_max has room for
  std::string kv_bytes_max = "1GiB";  // memory for them
  uint32_t threads = 0;               // of the model; 0: one per hardware thread
  uint32_t max_batch_tokens = 512;
  uint32_t max_running_requests = 64;
  uint32_t max_waiting_requests = 256;
  uint32_t max_prompt_tokens = 1u << 20;
  uint32_t max_output_tokens = 1u << 16;
  std::string tenant;   // at the store, for its quotas
  bool publish = true;  // false: nothing that this worker computes goes to the store
  absl::Duration connect_timeout = absl::Seconds(2);
  absl::Duration match_timeout = absl::Milliseconds(500);
  absl::Duration fetch_timeout = absl::Seconds(5);
  absl::Duration publish_timeout = absl::Seconds(10);
  absl::Duration single_flight_wait = absl::Seconds(10);    // for other workers; 0: never
  absl::Duration shutdown_timeout = absl::Seconds(10);      // for running requests, after SIGTERM
  std::string tls_cert, tls_key, tls_ca;                    // of this worker's port
  std::string transport = "auto";                           // of block bytes: auto, shm or grpc
  std::string store_tls_ca, store_tls_cert, store_tls_key;  // towards the cache servers
  std::string log_level = "info";

  // Errors: InvalidArgument: one line that names the flag, its value and what to write instead.
  absl::Status Validate() const;

  // REQUIRES of these: Validate() is OK.
  ModelOptions ToModelOptions() const;
  // Errors: InvalidArgument: kv_bytes_max has room for no block, or for more than there can be.
  absl::StatusOr<EngineOptions> ToEngineOptions(const KvLayout& layout) const;
  ClientOptions ToClientOptions() const;
};

// A number of bytes as 4096, 64MiB or 1.5GiB (KiB, MiB, GiB, TiB). Errors: InvalidArgument.
absl::StatusOr<uint64_t> ParseMemorySize(absl::string_view text);

}  // namespace ibid
