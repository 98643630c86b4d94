#include "core/command_line.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "core/check.h"
#include "core/process.h"
#include "core/text_file.h"

namespace ibid {
namespace {

constexpr int kFlagFilesDepthMax = 4;
constexpr size_t kFlagFileBytesMax = size_t{1} << 20;

absl::CommandLineFlag* FindFlag(const CommandLineSpec& spec, absl::string_view name) {
  if (std::find(spec.flags.begin(), spec.flags.end(), name) == spec.flags.end()) return nullptr;
  absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
  if (flag == nullptr) flag = absl::FindCommandLineFlag(absl::StrCat(name, "_"));
  IBID_CHECK(flag != nullptr) << "--" << name << " is defined nowhere";
  return flag;
}

bool IsSwitch(const absl::CommandLineFlag* flag) {
  return flag != nullptr && flag->IsOfType<bool>();
}

// What to write instead of `value`. `error` is Abseil's: its own words, then those of the flag's
// type if that has any.
std::string Remedy(const absl::CommandLineFlag& flag, absl::string_view value,
                   absl::string_view error) {
  if (absl::ConsumePrefix(&error, absl::StrCat("Illegal value '", value, "' specified for flag '",
                                               flag.Name(), "'; "))) {
    return std::string(error);
  }
  if (flag.IsOfType<bool>()) return "use true or false";
  if (flag.IsOfType<absl::Duration>()) return "use a duration as 500ms or 10s";
  if (flag.IsOfType<uint32_t>()) return absl::StrCat("use a whole number from 0 to ", UINT32_MAX);
  if (flag.IsOfType<uint64_t>()) return absl::StrCat("use a whole number from 0 to ", UINT64_MAX);
  if (flag.IsOfType<double>()) return "use a number";
  return absl::StrCat("use a value as its default, ", flag.DefaultValue());
}

std::string HelpText(const CommandLineSpec& spec) {
  std::string text = absl::StrCat(spec.help, "\nFlags:\n");
  for (const std::string& name : spec.flags) {
    const absl::CommandLineFlag* flag = FindFlag(spec, name);
    absl::StrAppendFormat(&text, "  --%s=%s\n      %s\n", name, flag->DefaultValue(), flag->Help());
  }
  absl::StrAppend(&text,
                  "  --flagfile=FILE\n      further flags, one a line\n"
                  "  --help, --version\n");
  return text;
}

// Sets flags from one list of arguments after another.
class Reader {
 public:
  explicit Reader(const CommandLineSpec& spec) : spec_(spec) {}

  // `place` says where the arguments stand: empty for the command line itself.
  absl::Status Read(const std::vector<std::string>& arguments, absl::string_view place, int depth) {
    for (auto it = arguments.begin(); it != arguments.end() && result_.answer.empty(); ++it) {
      const std::string* next = it + 1 == arguments.end() ? nullptr : &*(it + 1);
      bool takes_next = false;
      const absl::Status status = ReadOne(*it, next, depth, &takes_next);
      if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat(place, status.message()));
      if (takes_next) ++it;
    }
    return absl::OkStatus();
  }

  CommandLine TakeResult() { return std::move(result_); }

 private:
  absl::Status ReadOne(absl::string_view argument, const std::string* next, int depth,
                       bool* takes_next) {
    absl::string_view name = argument;
    if ((!absl::ConsumePrefix(&name, "--") && !absl::ConsumePrefix(&name, "-")) || name.empty()) {
      if (spec_.takes_operands && name == argument && !name.empty()) {
        result_.operands.emplace_back(argument);
        return absl::OkStatus();
      }
      return Usage(absl::StrCat("unexpected argument '", argument, "': flags start with --"));
    }
    if (const size_t equals = name.find('='); equals != absl::string_view::npos) {
      return Set(name.substr(0, equals), name.substr(equals + 1), depth);
    }
    if (name == "help" || name == "h") {
      result_.answer = HelpText(spec_);
      return absl::OkStatus();
    }
    if (name == "version") {
      result_.answer = absl::StrCat(spec_.program, " ", spec_.version, "\n");
      return absl::OkStatus();
    }
    if (IsSwitch(FindFlag(spec_, name))) return Set(name, "true", depth);
    if (absl::StartsWith(name, "no") && IsSwitch(FindFlag(spec_, name.substr(2)))) {
      return Set(name.substr(2), "false", depth);
    }
    if (name != "flagfile" && FindFlag(spec_, name) == nullptr) return Unknown(name);
    if (next == nullptr) {
      return Usage(absl::StrCat("--", name, " has no value: use --", name, "=..."));
    }
    *takes_next = true;
    return Set(name, *next, depth);
  }

  absl::Status Set(absl::string_view name, absl::string_view value, int depth) {
    if (name == "flagfile") return ReadFile(std::string(value), depth + 1);
    absl::CommandLineFlag* flag = FindFlag(spec_, name);
    if (flag == nullptr) return Unknown(name);
    std::string error;
    if (!flag->ParseFrom(value, &error)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, "=", value, ": ", Remedy(*flag, value, error)));
    }
    result_.given.emplace(name);
    return absl::OkStatus();
  }

  absl::Status ReadFile(const std::string& path, int depth) {
    if (depth > kFlagFilesDepthMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("--flagfile=", path, ": too many files inside of files"));
    }
    const absl::StatusOr<std::string> text = ReadTextFile(path, kFlagFileBytesMax);
    if (!text.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--flagfile=", path, ": ", text.status().message(), ": give a file with a flag a line"));
    }
    std::vector<std::string> arguments;
    for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
      const absl::string_view argument = absl::StripAsciiWhitespace(line);
      if (!argument.empty() && argument[0] != '#') arguments.emplace_back(argument);
    }
    return Read(arguments, absl::StrCat(path, ": "), depth);
  }

  absl::Status Usage(absl::string_view problem) const {
    return absl::InvalidArgumentError(
        absl::StrCat(problem, " (", spec_.program, " --help lists the flags)"));
  }
  absl::Status Unknown(absl::string_view name) const {
    return Usage(absl::StrCat("unknown flag --", name));
  }

  const CommandLineSpec& spec_;
  CommandLine result_;
};

}  // namespace

std::vector<std::string> FlagsDefinedIn(absl::string_view source_file) {
  std::vector<std::string> names;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    // Abseil leaves out the slash that an absolute path begins with.
    if (absl::EndsWith(source_file, flag->Filename()))
      names.emplace_back(absl::StripSuffix(name, "_"));
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<CommandLine> ParseCommandLine(const CommandLineSpec& spec,
                                             const std::vector<std::string>& arguments) {
  Reader reader(spec);
  IBID_RETURN_IF_ERROR(reader.Read(arguments, /*place=*/"", /*depth=*/0));
  return reader.TakeResult();
}

CommandLine ReadCommandLine(const CommandLineSpec& spec,
                            const std::vector<std::string>& arguments) {
  absl::StatusOr<CommandLine> line = ParseCommandLine(spec, arguments);
  if (!line.ok()) std::exit(FailProgram(spec.program, line.status()));
  if (!line->answer.empty()) {
    std::fputs(line->answer.c_str(), stdout);
    std::exit(EXIT_SUCCESS);
  }
  return *std::move(line);
}

}  // namespace ibid
