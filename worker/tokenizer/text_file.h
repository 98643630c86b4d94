// A whole small file.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace ibid {

// Errors: NotFound, ResourceExhausted (longer than `bytes_max`), DataLoss (a read failed); each
// names the file.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t bytes_max);

}  // namespace ibid
