// How numbers look to people.
#pragma once

#include <cstdint>
#include <string>

namespace ibid::cli {

std::string Bytes(uint64_t bytes);                 // "1.5 GiB"
std::string Bar(uint64_t used, uint64_t max);      // "[######------]"
std::string Share(uint64_t part, uint64_t whole);  // "12.5%"; "-" of nothing

}  // namespace ibid::cli
