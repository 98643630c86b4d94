// The flags of ibid-server. Of the program only: a library that defines flags could not be linked
// beside another.
#include "cache_server/server_flags.h"

#include "absl/flags/flag.h"

ABSL_FLAG(std::string, listen, ibid::ServerOptions().listen,
          "Address of the gRPC port; port 0 takes any free one.");
ABSL_FLAG(
    std::string, http_listen, ibid::ServerOptions().http_listen,
    "Address of the HTTP port with /metrics and /healthz; port 0 takes any free one; empty: none.");
ABSL_FLAG(ibid::ByteCount, host_bytes_max, ibid::ServerOptions().host_bytes_max,
          "Memory for blocks, reserved at start, as 4GiB.");
ABSL_FLAG(ibid::ByteCount, gpu_bytes_max, ibid::ServerOptions().gpu_bytes_max,
          "Device memory for blocks, as 16GiB; 0: no gpu tier.");
ABSL_FLAG(std::string, gpu_device, ibid::ServerOptions().gpu_device,
          "Where the gpu tier is: host (a stand-in in host memory, to try its logic).");
ABSL_FLAG(std::string, disk_dir, ibid::ServerOptions().disk_dir,
          "Directory of the disk tier; empty: no disk tier.");
ABSL_FLAG(ibid::ByteCount, disk_bytes_max, ibid::ServerOptions().disk_bytes_max,
          "Budget of the disk tier, as 100GiB; real allocation counts, the directory's too.");
ABSL_FLAG(ibid::ByteCount, disk_directory_bytes_reserve,
          ibid::ServerOptions().disk_directory_bytes_reserve,
          "Of --disk_bytes_max, for the directory; where it needs more, extent files make room.");
ABSL_FLAG(std::string, disk_write, ibid::ServerOptions().disk_write,
          "When blocks go to disk: through (in the background after each publish), on_demotion, or "
          "on_second_use.");
ABSL_FLAG(std::string, eviction_policy, ibid::ServerOptions().eviction_policy,
          "Which block leaves a full tier: hazard (learned), lru, arc, s3fifo-10 or s3fifo-60.");
ABSL_FLAG(std::string, tenants_file, "",
          "JSON file with the quotas of tenants; empty: no quotas at the start.");
ABSL_FLAG(uint32_t, must_stay_percent_max, ibid::ServerOptions().must_stay_percent_max,
          "How much of each tier, in percent, blocks may take that are pinned to stay.");
ABSL_FLAG(
    uint32_t, leased_percent_per_session_max, ibid::ServerOptions().leased_percent_per_session_max,
    "How much of the host tier, in percent, the leases of one session may hold; a block counts "
    "for the session that held it first, if it was in memory then.");
ABSL_FLAG(
    ibid::ByteCount, extent_bytes, ibid::ServerOptions().extent_bytes,
    "Size of the pieces that memory and disk files are cut into, each for blocks of one size.");
ABSL_FLAG(
    std::string, transport, ibid::ServerOptions().transport,
    "How block bytes may travel: auto (all ways there are), shm (memory shared with clients on "
    "this host) or grpc (nothing else). With TLS it is grpc.");
ABSL_FLAG(std::string, shm_socket, "",
          "Unix socket at which clients on this host get the memory of blocks; with '@' in front "
          "abstract; empty: an abstract one of this process.");
ABSL_FLAG(
    std::string, shm_uids, "",
    "Numbers of the Unix users, besides the server's own, that may map that memory and so see "
    "all blocks in it, as 1000,1001.");
ABSL_FLAG(absl::Duration, lease_ttl, ibid::ServerOptions().lease_ttl,
          "How long a lease lasts without renewal, as 30s.");
ABSL_FLAG(absl::Duration, session_ttl, ibid::ServerOptions().session_ttl,
          "How long a session lasts without a message from its client, as 15s.");
ABSL_FLAG(absl::Duration, reservation_ttl, ibid::ServerOptions().reservation_ttl,
          "How long room for a block is kept for a client that never fills it, as 30s.");
ABSL_FLAG(uint32_t, io_threads, ibid::ServerOptions().io_threads,
          "Threads that read and write the disk tier.");
ABSL_FLAG(
    uint32_t, event_log_max, ibid::ServerOptions().event_log_max,
    "Events kept for watchers, 80 bytes each while there are any: how far one may fall behind.");
ABSL_FLAG(std::string, tls_cert, "",
          "PEM file with the server's certificate; with --tls_key it turns TLS on.");
ABSL_FLAG(std::string, tls_key, "", "PEM file with the key of --tls_cert.");
ABSL_FLAG(
    std::string, tls_ca, "",
    "PEM file with the authority that client certificates must come from; empty: none needed.");
ABSL_FLAG(absl::Duration, shutdown_timeout, ibid::ServerOptions().shutdown_timeout,
          "The longest that SIGTERM waits for calls that run and for writes to disk, as 10s.");
ABSL_FLAG(std::string, log_level, ibid::ServerOptions().log_level,
          "debug, info, warn, error or off.");
ABSL_FLAG(std::string, port_file, "",
          "File that gets the chosen ports as JSON once the server serves.");

namespace ibid {

CommandLineSpec ServerCommandLine() {
  return {"ibid-server", IBID_VERSION,
          "ibid-server: a distributed, tiered store for the attention KV cache of large language "
          "models; one cache server.\n\n"
          "  ibid-server --listen=0.0.0.0:7070 --host_bytes_max=64GiB --disk_dir=/var/lib/ibid "
          "--disk_bytes_max=1TiB\n",
          FlagsDefinedIn(__FILE__)};
}

ServerOptions ServerOptionsFromFlags() {
  ServerOptions options;
  options.listen = absl::GetFlag(FLAGS_listen);
  options.http_listen = absl::GetFlag(FLAGS_http_listen);
  options.host_bytes_max = absl::GetFlag(FLAGS_host_bytes_max);
  options.gpu_bytes_max = absl::GetFlag(FLAGS_gpu_bytes_max);
  options.gpu_device = absl::GetFlag(FLAGS_gpu_device);
  options.disk_dir = absl::GetFlag(FLAGS_disk_dir);
  options.disk_bytes_max = absl::GetFlag(FLAGS_disk_bytes_max);
  options.disk_directory_bytes_reserve = absl::GetFlag(FLAGS_disk_directory_bytes_reserve);
  options.disk_write = absl::GetFlag(FLAGS_disk_write);
  options.eviction_policy = absl::GetFlag(FLAGS_eviction_policy);
  options.tenants_file = absl::GetFlag(FLAGS_tenants_file);
  options.must_stay_percent_max = absl::GetFlag(FLAGS_must_stay_percent_max);
  options.leased_percent_per_session_max = absl::GetFlag(FLAGS_leased_percent_per_session_max);
  options.extent_bytes = absl::GetFlag(FLAGS_extent_bytes);
  options.transport = absl::GetFlag(FLAGS_transport);
  options.shm_socket = absl::GetFlag(FLAGS_shm_socket);
  options.shm_uids = absl::GetFlag(FLAGS_shm_uids);
  options.lease_ttl = absl::GetFlag(FLAGS_lease_ttl);
  options.session_ttl = absl::GetFlag(FLAGS_session_ttl);
  options.reservation_ttl = absl::GetFlag(FLAGS_reservation_ttl);
  options.io_threads = absl::GetFlag(FLAGS_io_threads);
  options.event_log_max = absl::GetFlag(FLAGS_event_log_max);
  options.tls_cert = absl::GetFlag(FLAGS_tls_cert);
  options.tls_key = absl::GetFlag(FLAGS_tls_key);
  options.tls_ca = absl::GetFlag(FLAGS_tls_ca);
  options.shutdown_timeout = absl::GetFlag(FLAGS_shutdown_timeout);
  options.log_level = absl::GetFlag(FLAGS_log_level);
  options.port_file = absl::GetFlag(FLAGS_port_file);
  return options;
}

}  // namespace ibid
