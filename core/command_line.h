// The command line of each of ibid's programs. Flags are defined with ABSL_FLAG, in the program's
// own source file; which of them a command line takes, and how it is read, is said here. What is
// wrong with it is one line that says what to change, and exit code 2.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ibid {

// What one program, or one command of it, accepts. A flag is typed as it was defined, without an
// underscore at its end: FLAGS_namespace_ is --namespace, which C++ could not name so.
struct CommandLineSpec {
  std::string program;             // as typed: "ibid-server", "ibid match"
  std::string version;             // what --version prints after the program
  std::string help;                // what --help prints before the flags; ends with a line's end
  std::vector<std::string> flags;  // as typed, in the order of --help
  bool takes_operands = false;     // arguments that are no flags
};

// The flags that `source_file`, a __FILE__, defines, by name.
std::vector<std::string> FlagsDefinedIn(absl::string_view source_file);

struct CommandLine {
  std::set<std::string> given;        // the flags that it sets, as typed
  std::vector<std::string> operands;  // in their order
  std::string answer;  // what --help or --version asks for; empty: the program shall run
};

// Sets the flags of `spec` from `arguments`, a later one over an earlier one. Understands
// --name=value, --name value, --name and --noname for a bool, one dash for two, --help, -h,
// --version, and --flagfile=FILE: an argument a line, # starts a comment. What follows --help or
// --version is not read. Errors: InvalidArgument: one line that says what to change; flags before
// the wrong one are set. Called from one thread.
absl::StatusOr<CommandLine> ParseCommandLine(const CommandLineSpec& spec,
                                             const std::vector<std::string>& arguments);

// For main: the same, but answers --help and --version on standard output and ends the program with
// 0; a wrong command line ends it with 2 and the line `program: what to change` on standard error.
CommandLine ReadCommandLine(const CommandLineSpec& spec, const std::vector<std::string>& arguments);

}  // namespace ibid
