// Abseil's flags with ibid's manners: what is wrong with a command line is one line and exit
// code 2.
#pragma once

#include "absl/strings/string_view.h"

namespace ibid {

struct ProgramText {
  absl::string_view name;        // as "ibid-server"
  absl::string_view version;     // what --version prints after the name
  absl::string_view usage;       // what --help prints first
  absl::string_view flags_file;  // source file whose flags --help lists, as "server_flags.cc"
};

// Parses all flags, also those in --flagfile files. --help and --version print and end the program
// with 0; an unknown flag, a malformed value or an argument that is no flag end it with 2 and one
// line that says what to change. Called once.
void ParseCommandLine(const ProgramText& text, int argc, char** argv);

// Prints `message` as that one line and ends the program with 2.
[[noreturn]] void ExitWithUsageError(absl::string_view program, absl::string_view message);

}  // namespace ibid
