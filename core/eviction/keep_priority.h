// How hard blocks are to evict: one leaves a tier only when nothing of lower priority can.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace ibid {

// kMustStay is never evicted. The numbers are those of the disk directory and the wire.
enum class KeepPriority : uint32_t { kNone = 0, kLow = 1, kHigh = 2, kMustStay = 3 };
inline constexpr std::array<absl::string_view, 4> kKeepPriorityNames = {"none", "low", "high",
                                                                        "must_stay"};

inline absl::string_view NameOf(KeepPriority priority) {
  return kKeepPriorityNames[static_cast<size_t>(priority)];
}

inline std::optional<KeepPriority> KeepPriorityOf(absl::string_view name) {
  for (size_t i = 0; i < kKeepPriorityNames.size(); ++i) {
    if (name == kKeepPriorityNames[i]) return static_cast<KeepPriority>(i);
  }
  return std::nullopt;
}

}  // namespace ibid
