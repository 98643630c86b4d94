// ibid: the operators' command line.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "client/cli/command.h"
#include "client/cli/flags.h"
#include "core/log.h"

namespace ibid::cli {
namespace {

bool IsHelp(const std::string& word) { return word == "--help" || word == "-h" || word == "help"; }

int Main(const std::vector<std::string>& words) {
  const std::vector<const Command*> commands = {
      &kStatusCommand, &kTopCommand,    &kStatsCommand, &kMatchCommand, &kGenerateCommand,
      &kDropCommand,   &kVerifyCommand, &kFlushCommand, &kDrainCommand, &kPinCommand,
      &kUnpinCommand,  &kQuotaCommand,  &kWatchCommand, &kReplayCommand};
  if (words.empty()) {
    std::fputs(ProgramHelp(commands).c_str(), stderr);
    return kExitUsage;
  }
  if (words[0] == "--version" || words[0] == "version") {
    std::puts("ibid " IBID_VERSION);
    return kExitOk;
  }
  for (const Command* command : commands) {
    if (words[0] != command->name &&
        !(IsHelp(words[0]) && words.size() > 1 && words[1] == command->name))
      continue;
    std::vector<std::string> arguments(words.begin() + 1, words.end());
    if (IsHelp(words[0])) arguments = {"--help"};
    ReadFlags(*command, arguments);
    if (const absl::Status status = InitLog("ibid", absl::GetFlag(FLAGS_log_level)); !status.ok()) {
      return FailUsage(*command, status.message());
    }
    return command->run(*command);
  }
  if (IsHelp(words[0])) {
    std::fputs(ProgramHelp(commands).c_str(), stdout);
    return kExitOk;
  }
  std::fprintf(stderr, "ibid: unknown command '%s'; `ibid --help` lists them\n", words[0].c_str());
  return kExitUsage;
}

}  // namespace
}  // namespace ibid::cli

int main(int argc, char** argv) {
  return ibid::cli::Main(std::vector<std::string>(argv + 1, argv + argc));
}
