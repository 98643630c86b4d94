// Files that people write: flags, quotas, certificates.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace ibid {

// The whole of a file, which may be anything that has a path. Errors: InvalidArgument, to be put
// behind the name of whatever gave the path: it cannot be read (as a folder), or has more than
// `bytes_max` bytes (as one without end).
absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t bytes_max);

}  // namespace ibid
