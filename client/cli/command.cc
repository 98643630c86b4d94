#include "client/cli/command.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/flags.h"
#include "client/cli/utf8.h"

namespace ibid::cli {
namespace {

const std::vector<std::string>& CommonFlags(bool is_local) {
  static const std::vector<std::string> local = {"json", "log_level"};
  static const std::vector<std::string> all = {"servers", "timeout",  "json",    "log_level",
                                               "tls_ca",  "tls_cert", "tls_key", "transport"};
  return is_local ? local : all;
}

CommandLine& TheCommandLine() {
  static CommandLine line;
  return line;
}

std::string Addresses() { return absl::StrJoin(absl::GetFlag(FLAGS_servers), ","); }

}  // namespace

CommandLineSpec SpecOf(const Command& command) {
  CommandLineSpec spec;
  spec.program = absl::StrCat("ibid ", command.name);
  spec.version = IBID_VERSION;
  spec.help = absl::StrCat(
      spec.program, ": ", command.summary, "\n\n", command.help,
      "\nExit codes: 0 done; 1 the answer is nothing; 2 wrong usage; 3 a server or worker does not "
      "answer; 4 it answered with an error.\n");
  spec.flags = command.flags;
  const std::vector<std::string>& common = CommonFlags(command.is_local);
  spec.flags.insert(spec.flags.end(), common.begin(), common.end());
  spec.takes_operands = command.takes_operands;
  return spec;
}

void ReadFlags(const Command& command, const std::vector<std::string>& arguments) {
  TheCommandLine() = ReadCommandLine(SpecOf(command), arguments);
  for (const char* name : {"prompt", "text", "stop", "salt", "adapter"}) {
    if (IsGiven(name) && !IsUtf8(absl::FindCommandLineFlag(name)->CurrentValue())) {
      std::exit(FailUsage(command, absl::StrCat("--", name, ": is not UTF-8 text")));
    }
  }
  if (const absl::Duration timeout = absl::GetFlag(FLAGS_timeout); timeout < absl::ZeroDuration()) {
    std::exit(FailUsage(command, absl::StrCat("--timeout=", absl::FormatDuration(timeout),
                                              ": use a duration as 500ms or 10s")));
  }
}

bool IsGiven(const std::string& flag) { return TheCommandLine().given.count(flag) > 0; }

const std::vector<std::string>& Operands() { return TheCommandLine().operands; }

std::string ProgramHelp(const std::vector<const Command*>& commands) {
  std::string text =
      "ibid asks and commands a store of KV blocks, and the workers that use it.\n\n  ibid COMMAND "
      "[--flag=value "
      "...]\n\n";
  for (const Command* command : commands)
    absl::StrAppendFormat(&text, "  %-10s %s\n", command->name, command->summary);
  absl::StrAppend(&text, "\n`ibid COMMAND --help` explains one of them.\n");
  return text;
}

absl::Duration TimeoutOr(absl::Duration fallback) {
  const absl::Duration timeout = absl::GetFlag(FLAGS_timeout);
  return timeout > absl::ZeroDuration() ? timeout : fallback;
}

absl::StatusOr<std::unique_ptr<Client>> ConnectClient(absl::Duration fallback) {
  const absl::Duration timeout = std::min(TimeoutOr(fallback), absl::Hours(1));
  ClientOptions options;
  const std::string transport = absl::GetFlag(FLAGS_transport);
  const std::optional<TransportChoice> choice = TransportChoiceOf(transport);
  if (!choice.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--transport=", transport, ": use auto, shm or grpc"));
  }
  options.transport = *choice;
  options.servers = absl::GetFlag(FLAGS_servers);
  options.client_name = "ibid-cli";
  // A server that refuses is known as soon as this is over; nobody waits longer for it.
  options.connect_timeout = std::min(timeout, absl::Seconds(1));
  options.match_timeout = options.fetch_timeout = options.publish_timeout = options.admin_timeout =
      timeout;
  options.tls_ca_file = absl::GetFlag(FLAGS_tls_ca);
  options.tls_certificate_file = absl::GetFlag(FLAGS_tls_cert);
  options.tls_key_file = absl::GetFlag(FLAGS_tls_key);
  return Client::Connect(std::move(options));
}

absl::StatusOr<std::unique_ptr<InferenceChannel>> ConnectWorker(const std::string& address) {
  InferenceChannelOptions options;
  options.connect_timeout = std::min(TimeoutOr(absl::Seconds(1)), absl::Seconds(1));
  options.tls_ca_file = absl::GetFlag(FLAGS_tls_ca);
  options.tls_certificate_file = absl::GetFlag(FLAGS_tls_cert);
  options.tls_key_file = absl::GetFlag(FLAGS_tls_key);
  return InferenceChannel::Create(address, options);
}

int FailUsage(const Command& command, absl::string_view text) {
  absl::FPrintF(stderr, "ibid %s: %s\n", command.name, text);
  return kExitUsage;
}

int FailServers(const Command& command) {
  absl::FPrintF(stderr,
                "ibid %s: no cache server answers at %s. Is ibid-server running there? "
                "--servers=host:port,... names others.\n",
                command.name, Addresses());
  return kExitUnreachable;
}

int FailWorker(const Command& command, absl::string_view what, absl::string_view address,
               const absl::Status& status) {
  if (absl::IsUnavailable(status)) {
    // gRPC's words for a connection that never was; all else happened to one.
    const bool is_nobody = absl::StrContains(status.message(), "failed to connect") ||
                           absl::StrContains(status.message(), "resolution failed");
    absl::FPrintF(stderr, "ibid %s: %s: %s %s: %s%s\n", command.name, what,
                  is_nobody ? "no worker answers at" : "the worker at", address, status.message(),
                  is_nobody ? ". Is ibid-worker running there?" : "");
    return kExitUnreachable;
  }
  if (absl::IsDeadlineExceeded(status)) {
    absl::FPrintF(
        stderr, "ibid %s: the worker at %s did not finish in time; --timeout=... gives it more.\n",
        command.name, address);
    return kExitUnreachable;
  }
  absl::FPrintF(stderr, "ibid %s: %s: the worker at %s: %s\n", command.name, what, address,
                status.message());
  return absl::IsInvalidArgument(status) ? kExitUsage : kExitFailed;
}

absl::StatusOr<std::vector<uint32_t>> ParseTokens(absl::string_view text) {
  std::vector<uint32_t> tokens;
  for (absl::string_view piece : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    uint32_t token = 0;
    if (!absl::SimpleAtoi(piece, &token)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--tokens: '", piece, "' is no token id; write 1,2,3"));
    }
    tokens.push_back(token);
  }
  if (tokens.empty()) return absl::InvalidArgumentError("--tokens: no token id; write 1,2,3");
  return tokens;
}

absl::StatusOr<std::vector<BlockKey>> ParseKeys(absl::string_view text) {
  std::vector<BlockKey> keys;
  for (absl::string_view piece : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const absl::StatusOr<Digest> digest = DigestFromHex(piece);
    if (!digest.ok())
      return absl::InvalidArgumentError(
          absl::StrCat("--keys: '", piece, "' has not 64 hexadecimal digits"));
    keys.push_back(BlockKey{*digest});
  }
  if (keys.empty()) return absl::InvalidArgumentError("--keys: no key");
  return keys;
}

}  // namespace ibid::cli
