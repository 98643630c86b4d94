// Ids that nobody can guess.
#pragma once

#include <sys/random.h>

#include <cstdint>

#include "core/check.h"

namespace ibid {

// From the system's generator; not 0.
inline uint64_t RandomId() {
  uint64_t id = 0;
  while (id == 0) {
    IBID_CHECK(getrandom(&id, sizeof(id), 0) == sizeof(id)) << "the system gives no random bytes";
  }
  return id;
}

}  // namespace ibid
