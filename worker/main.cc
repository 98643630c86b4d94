// ibid-worker: one model, served by gRPC, with its KV in a store. Construction order is lifetime
// order, top to bottom.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/log.h"
#include "core/metrics.h"
#include "transport/server_setup.h"
#include "worker/inference_service.h"
#include "worker/worker_options.h"

namespace ibid {
namespace {

constexpr int kUsageExitCode = 2;

// SIGTERM and SIGINT arrive at WaitForStop alone: blocked before any thread starts.
sigset_t BlockStopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

absl::Status WritePortFile(const std::string& path, int port) {
  if (path.empty()) return absl::OkStatus();
  // Renamed into place, so that a reader sees all of it or nothing.
  const std::string unfinished = path + ".new";
  {
    std::ofstream file(unfinished);
    file << "{\"port\":" << port << "}\n";
    if (!file.flush())
      return absl::UnavailableError(absl::StrCat("--port_file: cannot write ", unfinished));
  }
  if (std::rename(unfinished.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(
        absl::StrCat("--port_file: cannot rename ", unfinished, " to ", path));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& directory) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(directory);
  if (!absl::IsNotFound(tokenizer.status())) return tokenizer;
  IBID_LOG(warn, "{} has no tokenizer: prompts must be token ids", directory);
  return std::unique_ptr<Tokenizer>();
}

absl::Status RunWorker(const WorkerOptions& options, const sigset_t& stop_signals) {
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
  EngineOptions engine_options = options.ToEngineOptions(model->layout());
  engine_options.metrics = &metrics;
  IBID_ASSIGN_OR_RETURN(
      const std::unique_ptr<Engine> engine,
      Engine::Start(engine_options, std::move(model), tokenizer.get(), store.get()));
  InferenceService service(engine.get(), tokenizer.get(), {.version = IBID_VERSION});

  ServerSetup setup;
  setup.listen = options.listen;
  setup.tls = {options.tls_cert, options.tls_key, options.tls_ca};
  grpc::Service* const services[] = {&service.grpc_service()};
  IBID_ASSIGN_OR_RETURN(const std::unique_ptr<GrpcServer> server,
                        GrpcServer::Start(setup, services));
  IBID_RETURN_IF_ERROR(WritePortFile(options.port_file, server->port()));
  IBID_LOG(info, "serving {} on port {}: {} pages of {} tokens, store {}", options.model,
           server->port(), engine_options.pages_count, options.block_tokens,
           options.servers.empty() ? "none" : options.servers);

  int signal = 0;
  sigwait(&stop_signals, &signal);
  IBID_LOG(info, "signal {}: finishing what runs, for at most {}", signal,
           absl::FormatDuration(options.shutdown_timeout));
  server->SetServing(false);
  const bool is_drained = engine->Drain(options.shutdown_timeout);
  server->Shutdown(absl::Seconds(1));
  IBID_LOG(info, "stopped{}", is_drained ? "" : "; some requests were cut off");
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  const sigset_t stop_signals = BlockStopSignals();
  const absl::StatusOr<WorkerCommand> command =
      ParseWorkerFlags(std::vector<std::string>(argv + 1, argv + argc));
  if (!command.ok()) {
    std::fprintf(stderr, "ibid-worker: %s\n", std::string(command.status().message()).c_str());
    return kUsageExitCode;
  }
  if (command->kind == WorkerCommand::Kind::kPrint) {
    std::fputs(command->text.c_str(), stdout);
    return EXIT_SUCCESS;
  }
  IBID_CHECK(InitLog("ibid-worker", command->options.log_level).ok());
  const absl::Status status = RunWorker(command->options, stop_signals);
  if (status.ok()) return EXIT_SUCCESS;
  std::fprintf(stderr, "ibid-worker: %s\n", std::string(status.message()).c_str());
  return EXIT_FAILURE;
}

}  // namespace
}  // namespace ibid

int main(int argc, char** argv) { return ibid::Main(argc, argv); }
