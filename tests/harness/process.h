// Real ibid programs as children of a test or a benchmark.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ibid {

// A folder under the system's temporary one, removed with all it holds when this dies.
class TempFolder {
 public:
  explicit TempFolder(const std::string& prefix = "ibid-test");
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A running child. It dies with this object (SIGKILL), and with its parent.
class Process {
 public:
  // Starts `arguments[0]` (a path) with its output appended to `log_file`.
  // Errors: Internal (fork or exec failed).
  static absl::StatusOr<Process> Start(const std::vector<std::string>& arguments,
                                       const std::string& log_file);

  Process(Process&& other) noexcept { *this = std::move(other); }
  Process& operator=(Process&& other) noexcept;
  ~Process();

  pid_t pid() const { return pid_; }
  bool is_running();
  void Kill9();  // and waits
  // SIGTERM, then waits. Returns the exit code; -1 when it had to be killed after `timeout`, or
  // died by a signal.
  int Terminate(absl::Duration timeout = absl::Seconds(20));
  // Waits for it to end by itself; as above.
  int Wait(absl::Duration timeout);

 private:
  Process() = default;
  pid_t pid_ = -1;
  int exit_code_ = -1;
};

struct RunResult {
  int exit_code = -1;
  std::string out, err;
};
// Runs to its end. Errors: DeadlineExceeded (killed), Internal.
absl::StatusOr<RunResult> Run(const std::vector<std::string>& arguments,
                              absl::Duration timeout = absl::Seconds(60));

// Waits for the JSON object of port names and numbers that a program writes with --port_file.
// Errors: DeadlineExceeded, with the end of `log_file`, also when `process` ends first.
absl::StatusOr<std::map<std::string, int>> WaitForPorts(Process& process,
                                                        const std::string& port_file,
                                                        const std::string& log_file,
                                                        absl::Duration timeout = absl::Seconds(60));

std::string ReadWholeFile(const std::string& path);  // empty when it cannot be read

}  // namespace ibid
