// What the commands of `ibid` have in common: flags, exit codes, and how a failure is said.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/inference_channel.h"
#include "core/command_line.h"

namespace ibid::cli {

enum ExitCode : int {
  kExitOk = 0,
  kExitNothing = 1,      // the answer is "nothing": no block matched
  kExitUsage = 2,        // the command line cannot be meant so
  kExitUnreachable = 3,  // a server or worker does not answer
  kExitFailed = 4,       // it answered with an error
};

struct Command {
  const char* name;
  const char* summary;             // one line
  const char* help;                // what it does, and an example
  std::vector<std::string> flags;  // besides those of every command
  int (*run)(const Command& command);
  bool is_local = false;        // it asks no server, and takes no flag about them
  bool takes_operands = false;  // see Operands
};

extern const Command kStatusCommand, kStatsCommand, kMatchCommand, kGenerateCommand, kDropCommand,
    kVerifyCommand, kTopCommand, kFlushCommand, kDrainCommand, kPinCommand, kUnpinCommand,
    kQuotaCommand, kWatchCommand, kReplayCommand;

CommandLineSpec SpecOf(const Command& command);
// Sets the flags from `arguments` (what follows the command's name), or ends the program. Texts are
// UTF-8 after it.
void ReadFlags(const Command& command, const std::vector<std::string>& arguments);
// The flag was on the command line.
bool IsGiven(const std::string& flag);
// What the command line has besides flags, in its order.
const std::vector<std::string>& Operands();
std::string ProgramHelp(const std::vector<const Command*>& commands);

// By the flags --servers, --worker, --timeout and --tls_*. `fallback`: the timeout where none was
// given.
absl::StatusOr<std::unique_ptr<Client>> ConnectClient(absl::Duration fallback);
absl::StatusOr<std::unique_ptr<InferenceChannel>> ConnectWorker(const std::string& address);
absl::Duration TimeoutOr(absl::Duration fallback);

// Print one line on standard error, `ibid <command>: <text>`, and return the exit code.
int FailUsage(const Command& command, absl::string_view text);
int FailServers(const Command& command);
// `what` was tried on the worker at `address`.
int FailWorker(const Command& command, absl::string_view what, absl::string_view address,
               const absl::Status& status);

// Comma-separated unsigned numbers. Errors: InvalidArgument.
absl::StatusOr<std::vector<uint32_t>> ParseTokens(absl::string_view text);
// Comma-separated keys of 64 hexadecimal digits. Errors: InvalidArgument.
absl::StatusOr<std::vector<BlockKey>> ParseKeys(absl::string_view text);

}  // namespace ibid::cli
