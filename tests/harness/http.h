// Plain HTTP over loopback.
#pragma once

#include <string>

namespace ibid {

// The whole answer to `request` of the server at `port`, head and body; empty when there is no
// connection.
std::string HttpExchange(int port, const std::string& request);
// The same for GET of `path`.
std::string HttpGet(int port, const std::string& path);

}  // namespace ibid
