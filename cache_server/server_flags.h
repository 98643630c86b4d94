// The command line of ibid-server.
#pragma once

#include "cache_server/server_options.h"
#include "core/command_line.h"

namespace ibid {

CommandLineSpec ServerCommandLine();

// The options that the flags hold, not yet validated.
ServerOptions ServerOptionsFromFlags();

}  // namespace ibid
