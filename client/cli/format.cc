#include "client/cli/format.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ibid::cli {
namespace {

constexpr size_t kBarCells = 24;

}  // namespace

std::string Bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

// Any use shows, and only what is full looks full.
std::string Bar(uint64_t used, uint64_t max) {
  size_t cells =
      max == 0
          ? 0
          : static_cast<size_t>(static_cast<double>(used) / static_cast<double>(max) * kBarCells);
  if (used > 0) cells = std::max<size_t>(cells, 1);
  if (used < max) cells = std::min(cells, kBarCells - 1);
  cells = std::min(cells, kBarCells);
  return absl::StrCat("[", std::string(cells, '#'), std::string(kBarCells - cells, '-'), "]");
}

std::string Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? "-"
                    : absl::StrFormat(
                          "%.1f%%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

}  // namespace ibid::cli
