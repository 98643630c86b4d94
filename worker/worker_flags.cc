// The flags of ibid-worker.
#include "worker/worker_flags.h"

#include "absl/flags/flag.h"

ABSL_FLAG(std::string, model, "",
          "folder of a Hugging Face model: config.json, *.safetensors, tokenizer.json");
ABSL_FLAG(std::string, listen, "127.0.0.1:7080",
          "host:port of the gRPC port; port 0: any free one");
ABSL_FLAG(
    std::string, http_listen, "",
    "host:port of the HTTP port with /metrics and /healthz; port 0: any free one; empty: none");
ABSL_FLAG(std::string, port_file, "",
          "file that the ports are written to, as JSON, once the worker serves");
ABSL_FLAG(std::string, servers, "",
          "cache servers, host:port with commas between; empty: no store");
ABSL_FLAG(std::string, kv_dtype, "bf16", "number format of KV: bf16, f32");
ABSL_FLAG(std::string, compute, "auto", "number format of products: auto, f32, bf16");
ABSL_FLAG(uint32_t, block_tokens, 16, "tokens of a block; workers share KV only with the same");
ABSL_FLAG(uint32_t, pages, 0,
          "blocks of KV that this worker holds; 0: as many as kv_bytes_max has room for");
ABSL_FLAG(std::string, kv_bytes_max, "1GiB", "memory for KV, as 512MiB or 4GiB");
ABSL_FLAG(uint32_t, threads, 0, "threads of the model; 0: one per hardware thread");
ABSL_FLAG(uint32_t, max_batch_tokens, 512, "tokens of one step");
ABSL_FLAG(uint32_t, max_running_requests, 64, "requests that run at a time");
ABSL_FLAG(uint32_t, max_waiting_requests, 256, "requests that wait; further ones are refused");
ABSL_FLAG(uint32_t, max_prompt_tokens, 1u << 20, "tokens of one prompt");
ABSL_FLAG(uint32_t, max_output_tokens, 1u << 16, "tokens of one output");
ABSL_FLAG(bool, publish, true, "publish computed blocks to the store");
ABSL_FLAG(absl::Duration, connect_timeout, absl::Seconds(2), "for a connection to a cache server");
ABSL_FLAG(absl::Duration, match_timeout, absl::Milliseconds(500),
          "for one match; then the prompt is computed");
ABSL_FLAG(absl::Duration, fetch_timeout, absl::Seconds(5),
          "for the store in all; then the rest is computed");
ABSL_FLAG(std::string, tenant, "", "tenant at the store, whose quotas hold for what is published");
ABSL_FLAG(absl::Duration, publish_timeout, absl::Seconds(10), "for one publication");
ABSL_FLAG(absl::Duration, single_flight_wait, absl::Seconds(10),
          "the longest that a prompt waits for blocks which other workers compute; 0: never");
ABSL_FLAG(absl::Duration, shutdown_timeout, absl::Seconds(10),
          "for running requests after SIGTERM or SIGINT");
ABSL_FLAG(std::string, tls_cert, "", "PEM certificate of this worker's port");
ABSL_FLAG(std::string, tls_key, "", "its PEM key");
ABSL_FLAG(std::string, tls_ca, "", "PEM authority that clients' certificates must be signed by");
ABSL_FLAG(std::string, transport, ibid::WorkerOptions().transport,
          "how block bytes travel: auto, shm (cache servers on this host) or grpc");
ABSL_FLAG(std::string, store_tls_ca, "",
          "PEM authority that signed the cache servers' certificates");
ABSL_FLAG(std::string, store_tls_cert, "",
          "PEM certificate of this worker towards the cache servers");
ABSL_FLAG(std::string, store_tls_key, "", "its PEM key");
ABSL_FLAG(std::string, log_level, "info", "debug, info, warn, error, off");

namespace ibid {

CommandLineSpec WorkerCommandLine() {
  return {"ibid-worker", IBID_VERSION,
          "ibid-worker: serves a language model, and keeps its KV cache in a store of cache "
          "servers.\n\n"
          "  ibid-worker --model=models/demo --servers=10.0.0.1:7070,10.0.0.2:7070\n",
          FlagsDefinedIn(__FILE__)};
}

WorkerOptions WorkerOptionsFromFlags() {
  WorkerOptions options;
  options.model = absl::GetFlag(FLAGS_model);
  options.listen = absl::GetFlag(FLAGS_listen);
  options.http_listen = absl::GetFlag(FLAGS_http_listen);
  options.port_file = absl::GetFlag(FLAGS_port_file);
  options.servers = absl::GetFlag(FLAGS_servers);
  options.kv_dtype = absl::GetFlag(FLAGS_kv_dtype);
  options.compute = absl::GetFlag(FLAGS_compute);
  options.block_tokens = absl::GetFlag(FLAGS_block_tokens);
  options.pages = absl::GetFlag(FLAGS_pages);
  options.kv_bytes_max = absl::GetFlag(FLAGS_kv_bytes_max);
  options.threads = absl::GetFlag(FLAGS_threads);
  options.max_batch_tokens = absl::GetFlag(FLAGS_max_batch_tokens);
  options.max_running_requests = absl::GetFlag(FLAGS_max_running_requests);
  options.max_waiting_requests = absl::GetFlag(FLAGS_max_waiting_requests);
  options.max_prompt_tokens = absl::GetFlag(FLAGS_max_prompt_tokens);
  options.max_output_tokens = absl::GetFlag(FLAGS_max_output_tokens);
  options.publish = absl::GetFlag(FLAGS_publish);
  options.connect_timeout = absl::GetFlag(FLAGS_connect_timeout);
  options.match_timeout = absl::GetFlag(FLAGS_match_timeout);
  options.fetch_timeout = absl::GetFlag(FLAGS_fetch_timeout);
  options.tenant = absl::GetFlag(FLAGS_tenant);
  options.publish_timeout = absl::GetFlag(FLAGS_publish_timeout);
  options.single_flight_wait = absl::GetFlag(FLAGS_single_flight_wait);
  options.shutdown_timeout = absl::GetFlag(FLAGS_shutdown_timeout);
  options.tls_cert = absl::GetFlag(FLAGS_tls_cert);
  options.tls_key = absl::GetFlag(FLAGS_tls_key);
  options.tls_ca = absl::GetFlag(FLAGS_tls_ca);
  options.transport = absl::GetFlag(FLAGS_transport);
  options.store_tls_ca = absl::GetFlag(FLAGS_store_tls_ca);
  options.store_tls_cert = absl::GetFlag(FLAGS_store_tls_cert);
  options.store_tls_key = absl::GetFlag(FLAGS_store_tls_key);
  options.log_level = absl::GetFlag(FLAGS_log_level);
  return options;
}

}  // namespace ibid
