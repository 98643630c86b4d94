// Which numbers of rows a matrix product may be computed in so that no row's bits depend on its
// neighbours.
//
// A library's product is not batch-invariant by itself: oneDNN 2.6 on AVX2 takes rows six at a
// time, and a rest of one to three rows by other code whose sums have another order. So products
// are computed in tiles of fixed row counts only, padded with zero rows, and only tiles that were
// seen to agree bit for bit are used beside each other.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"

namespace ibid {

// What is tried, smallest first. Multiples of six suit the AVX2 kernels.
inline constexpr size_t kRowTiles[] = {6, 48, 192};
inline constexpr size_t kRowTileMax = 192;

// multiply(tile, shift, y) computes the product of kRowTileMax fixed rows, `tile` rows a call,
// after `shift` zero rows, so that row i is at place (i + shift) % tile of its call; y is
// (kRowTileMax, columns). Returns the tiles of `candidates` (ascending) that agree in all bits
// wherever a row is placed; {1} if the smallest does not even agree with itself.
std::vector<size_t> ChooseRowTiles(
    std::span<const size_t> candidates, size_t columns,
    absl::FunctionRef<void(size_t tile, size_t shift, float* y)> multiply);

struct RowGroup {
  size_t first;  // row
  size_t rows;   // real rows: tile, or fewer when the group is padded
  size_t tile;
};

// Cuts `rows` into groups, largest tiles first; only the last group may be padded. `groups_min`
// asks for at least so many groups where smaller tiles allow it (for threads); it changes no bits.
// REQUIRES: tiles ascending, not empty.
std::vector<RowGroup> CutRows(size_t rows, std::span<const size_t> tiles, size_t groups_min);

}  // namespace ibid
