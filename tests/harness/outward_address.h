#pragma once

#include <string>

namespace ibid {

// An IPv4 address of this machine that is not loopback; empty when it has none.
std::string OutwardAddress();

}  // namespace ibid
