#include "tests/harness/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/check.h"

namespace ibid {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(2);

// The child's side of fork: only async-signal-safe calls.
[[noreturn]] void Exec(const std::vector<char*>& argv, int out_fd, int err_fd, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(126);
  const int null_fd = open("/dev/null", O_RDONLY);
  dup2(null_fd, 0);
  dup2(out_fd, 1);
  dup2(err_fd, 2);
  execv(argv[0], argv.data());
  _exit(127);
}

absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& arguments, int out_fd, int err_fd) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) Exec(argv, out_fd, err_fd, parent);
  if (pid < 0) return absl::InternalError(absl::StrCat("fork: ", std::strerror(errno)));
  return pid;
}

int ExitCode(int wait_status) { return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1; }

}  // namespace

TempFolder::TempFolder(const std::string& prefix) {
  std::string pattern =
      absl::StrCat(std::filesystem::temp_directory_path().string(), "/", prefix, "-XXXXXX");
  IBID_CHECK(mkdtemp(pattern.data()) != nullptr) << pattern << ": " << std::strerror(errno);
  path_ = pattern;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

absl::StatusOr<Process> Process::Start(const std::vector<std::string>& arguments,
                                       const std::string& log_file) {
  const int log_fd = open(log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log_fd < 0) return absl::InternalError(absl::StrCat(log_file, ": ", std::strerror(errno)));
  const absl::StatusOr<pid_t> pid = Spawn(arguments, log_fd, log_fd);
  close(log_fd);
  if (!pid.ok()) return pid.status();
  Process process;
  process.pid_ = *pid;
  return process;
}

Process& Process::operator=(Process&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(exit_code_, other.exit_code_);
  return *this;
}

Process::~Process() { Kill9(); }

bool Process::is_running() {
  if (pid_ < 0) return false;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return true;
  exit_code_ = ExitCode(status);
  pid_ = -1;
  return false;
}

void Process::Kill9() {
  if (!is_running()) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

int Process::Wait(absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  while (is_running()) {
    if (absl::Now() > until) {
      Kill9();
      return -1;
    }
    absl::SleepFor(kPoll);
  }
  return exit_code_;
}

int Process::Terminate(absl::Duration timeout) {
  if (is_running()) kill(pid_, SIGTERM);
  return Wait(timeout);
}

absl::StatusOr<RunResult> Run(const std::vector<std::string>& arguments, absl::Duration timeout) {
  const TempFolder folder;
  const std::string out_path = folder / "out", err_path = folder / "err";
  const int out_fd = open(out_path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  const int err_fd = open(err_path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  const absl::StatusOr<pid_t> pid = Spawn(arguments, out_fd, err_fd);
  close(out_fd);
  close(err_fd);
  if (!pid.ok()) return pid.status();
  const absl::Time until = absl::Now() + timeout;
  int status = 0;
  while (waitpid(*pid, &status, WNOHANG) != *pid) {
    if (absl::Now() > until) {
      kill(*pid, SIGKILL);
      waitpid(*pid, &status, 0);
      return absl::DeadlineExceededError(
          absl::StrCat(arguments[0], " ran for ", absl::FormatDuration(timeout)));
    }
    absl::SleepFor(kPoll);
  }
  return RunResult{ExitCode(status), ReadWholeFile(out_path), ReadWholeFile(err_path)};
}

absl::StatusOr<std::map<std::string, int>> WaitForPorts(Process& process,
                                                        const std::string& port_file,
                                                        const std::string& log_file,
                                                        absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  while (true) {
    const auto json =
        nlohmann::json::parse(ReadWholeFile(port_file), nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) return json.get<std::map<std::string, int>>();
    if (!process.is_running() || absl::Now() > until) {
      const std::string log = ReadWholeFile(log_file);
      return absl::DeadlineExceededError(absl::StrCat(
          "no ports in ", port_file,
          "; log ends: ", log.substr(log.size() - std::min<size_t>(log.size(), 2000))));
    }
    absl::SleepFor(kPoll);
  }
}

std::string ReadWholeFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

}  // namespace ibid
