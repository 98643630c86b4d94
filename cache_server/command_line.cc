#include "cache_server/command_line.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace ibid {
namespace {

constexpr int kUsageExitCode = 2;

// Abseil reports errors on std::cerr, each with a line or two, and calls exit(1). While it parses,
// what it says is held back, and an exit handler makes one line and our exit code of it.
struct ParseInProgress {
  std::string program;
  std::ostringstream said;
};
ParseInProgress* in_progress = nullptr;

void OnExitWhileParsing() {
  if (in_progress == nullptr) return;
  const std::string said = in_progress->said.str();
  std::fflush(stdout);
  std::cout.flush();
  if (said.empty()) _exit(0);  // --help and --version have printed what was asked for
  absl::string_view line = absl::string_view(said).substr(0, said.find('\n'));
  absl::ConsumePrefix(&line, "ERROR: ");
  std::fprintf(stderr, "%s: %.*s (--help lists the flags)\n", in_progress->program.c_str(),
               static_cast<int>(line.size()), line.data());
  _exit(kUsageExitCode);
}

}  // namespace

void ParseCommandLine(const ProgramText& text, int argc, char** argv) {
  absl::SetProgramUsageMessage(text.usage);
  absl::FlagsUsageConfig config;
  const std::string version = absl::StrCat(text.name, " ", text.version, "\n");
  const std::string flags_file(text.flags_file);
  config.version_string = [version] { return version; };
  config.contains_help_flags = [flags_file](absl::string_view file) {
    return absl::EndsWith(file, flags_file);
  };
  config.contains_helpshort_flags = config.contains_help_flags;
  config.normalize_filename = [](absl::string_view file) {
    const size_t folder_end = file.rfind('/');
    const size_t folder_begin =
        folder_end == absl::string_view::npos ? folder_end : file.rfind('/', folder_end - 1);
    return std::string(folder_begin == absl::string_view::npos ? file
                                                               : file.substr(folder_begin + 1));
  };
  absl::SetFlagsUsageConfig(config);

  ParseInProgress parse{std::string(text.name)};
  in_progress = &parse;
  std::atexit(OnExitWhileParsing);
  std::streambuf* const terminal = std::cerr.rdbuf(parse.said.rdbuf());
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  std::cerr.rdbuf(terminal);
  in_progress = nullptr;
  if (rest.size() > 1) {
    ExitWithUsageError(text.name,
                       absl::StrCat("unexpected argument '", rest[1], "'; flags start with --"));
  }
}

void ExitWithUsageError(absl::string_view program, absl::string_view message) {
  std::fprintf(stderr, "%s: %s\n", std::string(program).c_str(), std::string(message).c_str());
  std::exit(kUsageExitCode);
}

}  // namespace ibid
