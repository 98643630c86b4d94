// The command line of ibid-server.
#pragma once

#include "cache_server/server_options.h"

namespace ibid {

// The options that the flags hold. REQUIRES: they were parsed (command_line.h).
ServerOptions ServerOptionsFromFlags();

}  // namespace ibid
