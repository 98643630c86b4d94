// The command line of ibid-worker.
#pragma once

#include "core/command_line.h"
#include "worker/worker_options.h"

namespace ibid {

CommandLineSpec WorkerCommandLine();

// The options that the flags hold, not yet validated.
WorkerOptions WorkerOptionsFromFlags();

}  // namespace ibid
