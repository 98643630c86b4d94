// ibid-worker: one model, served by gRPC, with its KV in a store. Construction order is lifetime
// order, top to bottom.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/process.h"
#include "transport/grpc_log.h"
#include "transport/http_port.h"
#include "transport/receive_memory.h"
#include "transport/server_setup.h"
#include "worker/inference_service.h"
#include "worker/worker_flags.h"

namespace ibid {
namespace {

constexpr char kProgram[] = "ibid-worker";

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& directory) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(directory);
  if (absl::IsInvalidArgument(tokenizer.status())) {
    return absl::InvalidArgumentError(
        absl::StrCat("--model=", directory, ": ", tokenizer.status().message(),
                     "; a folder without tokenizer files serves prompts of token ids"));
  }
  if (!absl::IsNotFound(tokenizer.status())) return tokenizer;
  IBID_LOG(warn, "{} has no tokenizer: prompts must be token ids", directory);
  return std::unique_ptr<Tokenizer>();
}

// What Prometheus and probes ask. Requests are served well without a store, so its absence is said,
// but is no reason to send them elsewhere. Null without an address.
absl::StatusOr<std::unique_ptr<HttpPort>> StartHttpPort(const WorkerOptions& options,
                                                        const MetricsRegistry& metrics,
                                                        const Engine& engine,
                                                        const std::atomic<bool>& is_stopping) {
  if (options.http_listen.empty()) return std::unique_ptr<HttpPort>();
  HttpPort::Handlers handlers;
  handlers["/metrics"] = [&metrics] { return HttpReply{200, SerializeMetrics(metrics)}; };
  handlers["/healthz"] = [&engine, &is_stopping, has_store = !options.servers.empty()] {
    if (is_stopping) return HttpReply{503, "stopping\n"};
    const bool is_alone = has_store && !engine.stats().is_store_reachable;
    return HttpReply{200, is_alone ? "ok\nstore: unreachable\n" : "ok\n"};
  };
  return HttpPort::Start(options.http_listen, std::move(handlers));
}

absl::Status RunWorker(const WorkerOptions& options, const StopSignals& signals) {
  MetricsRegistry metrics;
  IBID_ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                        Model::Load(options.model, options.ToModelOptions()));
  IBID_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(options.model));
  std::unique_ptr<Client> store;
  if (!options.servers.empty()) {
    ClientOptions client = options.ToClientOptions();
    client.metrics = &metrics;
    IBID_ASSIGN_OR_RETURN(store, Client::Connect(std::move(client)));
  }
  IBID_ASSIGN_OR_RETURN(EngineOptions engine_options, options.ToEngineOptions(model->layout()));
  engine_options.metrics = &metrics;
  absl::StatusOr<std::unique_ptr<Engine>> started =
      Engine::Start(engine_options, std::move(model), tokenizer.get(), store.get());
  if (absl::IsResourceExhausted(started.status())) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options.pages > 0 ? absl::StrCat("--pages=", options.pages)
                                       : absl::StrCat("--kv_bytes_max=", options.kv_bytes_max),
                     ": ", started.status().message(), "; use less than the machine has"));
  }
  IBID_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, std::move(started));
  InferenceService service(engine.get(), tokenizer.get(), {.version = IBID_VERSION});

  ServerSetup setup;
  setup.listen = options.listen;
  setup.tls = {options.tls_cert, options.tls_key, options.tls_ca};
  grpc::Service* const services[] = {&service.grpc_service()};
  IBID_ASSIGN_OR_RETURN(const std::unique_ptr<GrpcServer> server,
                        GrpcServer::Start(setup, services));
  std::atomic<bool> is_stopping{false};
  IBID_ASSIGN_OR_RETURN(const std::unique_ptr<HttpPort> http,
                        StartHttpPort(options, metrics, *engine, is_stopping));
  const int http_port = http == nullptr ? 0 : http->port();
  IBID_RETURN_IF_ERROR(WritePortFile(options.port_file, server->port(), http_port));
  IBID_LOG(info, "serving {} on port {}, HTTP port {}: {} pages of {} tokens, store {}",
           options.model, server->port(), http_port, engine_options.pages_count,
           options.block_tokens, options.servers.empty() ? "none" : options.servers);

  const absl::string_view signal = signals.Wait();
  IBID_LOG(info, "{}: finishing what runs, for at most {}", signal,
           absl::FormatDuration(options.shutdown_timeout));
  is_stopping = true;
  server->SetServing(false);
  const bool is_drained = engine->Drain(options.shutdown_timeout);
  server->Shutdown(absl::Seconds(1));
  IBID_LOG(info, "stopped{}", is_drained ? "" : "; some requests were cut off");
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  ReadCommandLine(WorkerCommandLine(), {argv + 1, argv + argc});
  const WorkerOptions options = WorkerOptionsFromFlags();
  if (const absl::Status status = options.Validate(); !status.ok()) {
    return FailProgram(kProgram, status);
  }
  IBID_CHECK(InitLog(kProgram, options.log_level).ok());
  TakeOverGrpcLog();
  KeepReceiveMemory();
  const StopSignals signals;
  const absl::Status status = RunWorker(options, signals);
  return status.ok() ? EXIT_SUCCESS : FailProgram(kProgram, status);
}

}  // namespace
}  // namespace ibid

int main(int argc, char** argv) { return ibid::Main(argc, argv); }
