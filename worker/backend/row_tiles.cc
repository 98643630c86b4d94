#include "worker/backend/row_tiles.h"

#include <cstring>

#include "core/check.h"

namespace ibid {

std::vector<size_t> ChooseRowTiles(std::span<const size_t> candidates, size_t columns,
                                   absl::FunctionRef<void(size_t, size_t, float*)> multiply) {
  IBID_CHECK(!candidates.empty());
  std::vector<float> first(kRowTileMax * columns), other(first.size());
  const auto agrees = [&](size_t tile, size_t shift) {
    multiply(tile, shift, other.data());
    return std::memcmp(first.data(), other.data(), first.size() * sizeof(float)) == 0;
  };
  const size_t smallest = candidates[0];
  multiply(smallest, 0, first.data());
  for (size_t shift = 1; shift < smallest; ++shift) {
    if (!agrees(smallest, shift)) return {1};
  }
  std::vector<size_t> tiles = {smallest};
  for (size_t tile : candidates.subspan(1)) {
    if (agrees(tile, 0) && agrees(tile, tile / 2 + 1)) tiles.push_back(tile);
  }
  return tiles;
}

std::vector<RowGroup> CutRows(size_t rows, std::span<const size_t> tiles, size_t groups_min) {
  IBID_CHECK(!tiles.empty());
  std::vector<RowGroup> groups;
  size_t first = 0;
  for (size_t i = tiles.size(); i-- > 0;) {
    const size_t tile = tiles[i];
    if (i > 0 && rows / tile < groups_min) continue;
    while (rows - first >= tile) {
      groups.push_back({first, tile, tile});
      first += tile;
    }
  }
  if (first < rows) groups.push_back({first, rows - first, tiles[0]});
  return groups;
}

}  // namespace ibid
