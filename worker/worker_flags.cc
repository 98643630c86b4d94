// The flags of ibid-worker, and a reader of command lines whose errors are one line each.
#include <fstream>
#include <map>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "core/check.h"
#include "worker/worker_options.h"

ABSL_FLAG(std::string, model, "",
          "folder of a Hugging Face model: config.json, *.safetensors, tokenizer.json");
ABSL_FLAG(std::string, listen, "127.0.0.1:7080",
          "host:port of the gRPC port; port 0: any free one");
ABSL_FLAG(std::string, port_file, "",
          "file that the port is written to, as JSON, once the worker serves");
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
ABSL_FLAG(absl::Duration, publish_timeout, absl::Seconds(10), "for one publication");
ABSL_FLAG(absl::Duration, shutdown_timeout, absl::Seconds(10),
          "for running requests after SIGTERM or SIGINT");
ABSL_FLAG(std::string, tls_cert, "", "PEM certificate of this worker's port");
ABSL_FLAG(std::string, tls_key, "", "its PEM key");
ABSL_FLAG(std::string, tls_ca, "", "PEM authority that clients' certificates must be signed by");
ABSL_FLAG(std::string, store_tls_ca, "",
          "PEM authority that signed the cache servers' certificates");
ABSL_FLAG(std::string, store_tls_cert, "",
          "PEM certificate of this worker towards the cache servers");
ABSL_FLAG(std::string, store_tls_key, "", "its PEM key");
ABSL_FLAG(std::string, log_level, "info", "debug, info, warn, error, off");

namespace ibid {
namespace {

constexpr int kFlagFilesDepthMax = 4;

absl::Status Usage(absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(problem, " (--help lists the flags)"));
}

bool IsOurs(const absl::CommandLineFlag& flag) {
  return absl::EndsWith(flag.Filename(), "worker/worker_flags.cc");
}

absl::CommandLineFlag* Find(absl::string_view name) {
  absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
  return flag != nullptr && IsOurs(*flag) ? flag : nullptr;
}

std::string HelpText() {
  std::string text =
      "ibid-worker: serves a language model, and keeps its KV cache in a store of cache servers.\n";
  std::map<std::string, std::string> lines;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (!IsOurs(*flag)) continue;
    lines[std::string(name)] =
        absl::StrFormat("  --%s=%s\n      %s\n", name, flag->DefaultValue(), flag->Help());
  }
  for (const auto& [name, line] : lines) absl::StrAppend(&text, line);
  return text + "  --flagfile=FILE\n      further flags, one a line\n  --version\n";
}

// Sets flags from one list of arguments after another.
class FlagReader {
 public:
  absl::Status Read(const std::vector<std::string>& arguments, int depth = 0) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      absl::string_view argument = arguments[i];
      if (!absl::ConsumePrefix(&argument, "--") && !absl::ConsumePrefix(&argument, "-")) {
        return Usage(absl::StrCat("unexpected argument '", argument, "': flags start with --"));
      }
      const size_t equals = argument.find('=');
      const absl::string_view name = argument.substr(0, equals);
      if (equals != absl::string_view::npos) {
        IBID_RETURN_IF_ERROR(Set(name, argument.substr(equals + 1), depth));
        continue;
      }
      if (name == "help" || name == "version") {
        asked_for_ = std::string(name);
        continue;
      }
      const auto is_switch = [](absl::CommandLineFlag* flag) {
        return flag != nullptr && flag->IsOfType<bool>();
      };
      if (is_switch(Find(name))) {
        IBID_RETURN_IF_ERROR(Set(name, "true", depth));
      } else if (absl::StartsWith(name, "no") && is_switch(Find(name.substr(2)))) {
        IBID_RETURN_IF_ERROR(Set(name.substr(2), "false", depth));
      } else if (i + 1 < arguments.size()) {
        IBID_RETURN_IF_ERROR(Set(name, arguments[++i], depth));
      } else {
        return Find(name) == nullptr
                   ? Usage(absl::StrCat("unknown flag --", name))
                   : Usage(absl::StrCat("--", name, " has no value: use --", name, "=..."));
      }
    }
    return absl::OkStatus();
  }

  const std::string& asked_for() const { return asked_for_; }

 private:
  absl::Status Set(absl::string_view name, absl::string_view value, int depth) {
    if (name == "flagfile") return ReadFile(std::string(value), depth + 1);
    absl::CommandLineFlag* flag = Find(name);
    if (flag == nullptr) return Usage(absl::StrCat("unknown flag --", name));
    std::string error;
    if (flag->ParseFrom(value, &error)) return absl::OkStatus();
    return Usage(absl::StrCat("--", name, "=", value,
                              ": not a value of this flag, whose default is ",
                              flag->DefaultValue().empty() ? "empty" : flag->DefaultValue()));
  }

  absl::Status ReadFile(const std::string& path, int depth) {
    if (depth > kFlagFilesDepthMax)
      return Usage(absl::StrCat("--flagfile=", path, ": too many files inside of files"));
    std::ifstream file(path);
    if (!file) return Usage(absl::StrCat("--flagfile=", path, ": cannot be read"));
    std::vector<std::string> arguments;
    for (std::string line; std::getline(file, line);) {
      const absl::string_view argument = absl::StripAsciiWhitespace(line);
      if (!argument.empty() && argument[0] != '#') arguments.emplace_back(argument);
    }
    return Read(arguments, depth);
  }

  std::string asked_for_;
};

WorkerOptions OptionsFromFlags() {
  WorkerOptions options;
  options.model = absl::GetFlag(FLAGS_model);
  options.listen = absl::GetFlag(FLAGS_listen);
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
  options.publish_timeout = absl::GetFlag(FLAGS_publish_timeout);
  options.shutdown_timeout = absl::GetFlag(FLAGS_shutdown_timeout);
  options.tls_cert = absl::GetFlag(FLAGS_tls_cert);
  options.tls_key = absl::GetFlag(FLAGS_tls_key);
  options.tls_ca = absl::GetFlag(FLAGS_tls_ca);
  options.store_tls_ca = absl::GetFlag(FLAGS_store_tls_ca);
  options.store_tls_cert = absl::GetFlag(FLAGS_store_tls_cert);
  options.store_tls_key = absl::GetFlag(FLAGS_store_tls_key);
  options.log_level = absl::GetFlag(FLAGS_log_level);
  return options;
}

}  // namespace

absl::StatusOr<WorkerCommand> ParseWorkerFlags(const std::vector<std::string>& arguments) {
  FlagReader reader;
  IBID_RETURN_IF_ERROR(reader.Read(arguments));
  WorkerCommand command;
  if (!reader.asked_for().empty()) {
    command.kind = WorkerCommand::Kind::kPrint;
    command.text = reader.asked_for() == "help" ? HelpText() : "ibid-worker " IBID_VERSION "\n";
    return command;
  }
  command.options = OptionsFromFlags();
  IBID_RETURN_IF_ERROR(command.options.Validate());
  return command;
}

}  // namespace ibid
