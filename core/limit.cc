#include "core/limit.h"

#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ibid {
namespace {

constexpr char kPayloadType[] = "ibid.limit";  // its value is "name=value"

}  // namespace

absl::Status LimitReached(absl::string_view what, absl::string_view name, uint64_t value) {
  absl::Status status = absl::ResourceExhaustedError(absl::StrCat(what, ": ", name, "=", value));
  SetLimit({std::string(name), value}, &status);
  return status;
}

std::optional<Limit> LimitOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayloadType);
  if (!payload.has_value()) return std::nullopt;
  const std::vector<std::string> parts =
      absl::StrSplit(std::string(*payload), absl::MaxSplits('=', 1));
  Limit limit{parts[0]};
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[1], &limit.value)) return std::nullopt;
  return limit;
}

void SetLimit(const Limit& limit, absl::Status* status) {
  status->SetPayload(kPayloadType, absl::Cord(absl::StrCat(limit.name, "=", limit.value)));
}

}  // namespace ibid
