// What the servers among ibid's programs do as processes, besides serving.
#pragma once

#include <signal.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ibid {

// SIGTERM and SIGINT, blocked in the thread that makes this and in all that it starts from then on:
// make it before any thread. Owned by that thread.
class StopSignals {
 public:
  StopSignals();
  // Waits for one of them and returns its name.
  absl::string_view Wait() const;

 private:
  sigset_t signals_;
};

// Writes {"port":N,"http_port":N} and a line's end to `path`, without "http_port" when that is 0.
// Readers see the whole file or none of it. `path` empty: does nothing. Errors: InvalidArgument
// that names --port_file.
absl::Status WritePortFile(const std::string& path, int port, int http_port);

// Says `program: message of status` in one line on standard error. Returns the exit code for main:
// 2 when the command line is to blame (InvalidArgument), else 1.
int FailProgram(absl::string_view program, const absl::Status& status);

}  // namespace ibid
