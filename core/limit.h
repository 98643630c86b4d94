// Reaching a limit is an error that names it, for people in its text and for programs beside it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ibid {

struct Limit {
  std::string name;    // of the flag, option or constant that sets it
  uint64_t value = 0;  // in the unit that the name says
  bool operator==(const Limit&) const = default;
};

// ResourceExhausted: "<what>: <name>=<value>".
absl::Status LimitReached(absl::string_view what, absl::string_view name, uint64_t value);

// The limit that an error is about; nothing for other errors.
std::optional<Limit> LimitOf(const absl::Status& status);
// Makes LimitOf(*status) be `limit`. REQUIRES: `status` is an error.
void SetLimit(const Limit& limit, absl::Status* status);

}  // namespace ibid
