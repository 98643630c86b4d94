// The matrix product of rows with one packed panel of 16 columns: the inner loop of
// worker/backend/panel_product.h.
//
// Every element of y is one chain of fused sums over k, from 0 up, whatever the number of rows
// taken together and whatever the width of the registers: its bits are those of the plain loop with
// fmaf.
#pragma once

#include "worker/backend/kernels.h"
#include "worker/backend/simd.h"

namespace ibid {
namespace {

constexpr size_t kPanelVecs = kPanelColumns / kLanes;
// Rows taken together: as many chains as leave registers for a row of the panel and one value of x.
constexpr size_t kPanelRows = kLanes == 16 ? 12 : (kLanes == 8 ? 6 : 2);

// The panel's row k, widened if it is bf16.
inline void LoadPanelRow(Vec (&w)[kPanelVecs], const float* panel, size_t k) {
  for (size_t i = 0; i < kPanelVecs; ++i) w[i] = Load(panel + k * kPanelColumns + i * kLanes);
}
inline void LoadPanelRow(Vec (&w)[kPanelVecs], const uint16_t* panel, size_t k) {
  typedef uint16_t Narrow __attribute__((vector_size(kLanes * 2)));
  typedef uint16_t NarrowAnywhere __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));
  for (size_t i = 0; i < kPanelVecs; ++i) {
    const Narrow bits =
        *reinterpret_cast<const NarrowAnywhere*>(panel + k * kPanelColumns + i * kLanes);
    w[i] = (Vec)(__builtin_convertvector(bits, IntVec) << 16);
  }
}

template <size_t Rows, typename Weight>
inline void MultiplyRows(const PanelTask& task, const Weight* panel, size_t first_row) {
  Vec sums[Rows][kPanelVecs] = {};
  const float* x[Rows];
  for (size_t r = 0; r < Rows; ++r) x[r] = task.x + (first_row + r) * task.x_stride;
  for (size_t k = 0; k < task.k; ++k) {
    Vec w[kPanelVecs];
    LoadPanelRow(w, panel, k);
    for (size_t r = 0; r < Rows; ++r) {
      const Vec value = Splat(x[r][k]);
      for (size_t i = 0; i < kPanelVecs; ++i) sums[r][i] = Fma(value, w[i], sums[r][i]);
    }
  }
  for (size_t r = 0; r < Rows; ++r) {
    float* y = task.y + (first_row + r) * task.y_stride;
    float columns[kPanelColumns];
    for (size_t i = 0; i < kPanelVecs; ++i) {
      if (task.bias != nullptr) sums[r][i] += Load(task.bias + i * kLanes);
      Store((task.columns == kPanelColumns ? y : columns) + i * kLanes, sums[r][i]);
    }
    if (task.columns < kPanelColumns) __builtin_memcpy(y, columns, task.columns * sizeof(float));
  }
}

// The last rows, fewer than kPanelRows.
template <size_t Rows, typename Weight>
inline void MultiplyRest(const PanelTask& task, const Weight* panel, size_t first_row) {
  if constexpr (Rows > 0) {
    if (task.rows - first_row == Rows) {
      MultiplyRows<Rows>(task, panel, first_row);
    } else {
      MultiplyRest<Rows - 1>(task, panel, first_row);
    }
  }
}

template <typename Weight>
inline void MultiplyAllRows(const PanelTask& task, const Weight* panel) {
  size_t row = 0;
  for (; row + kPanelRows <= task.rows; row += kPanelRows)
    MultiplyRows<kPanelRows>(task, panel, row);
  MultiplyRest<kPanelRows - 1>(task, panel, row);
}

void MultiplyPanel(const PanelTask& task) {
  const uint16_t* narrow = static_cast<const uint16_t*>(task.panel);
  if (!task.is_bf16) {
    MultiplyAllRows(task, static_cast<const float*>(task.panel));
  } else if (task.rows < 2 * kPanelRows) {
    MultiplyAllRows(task, narrow);
  } else {  // widened once for all rows
    for (size_t k = 0; k < task.k; ++k) {
      Vec w[kPanelVecs];
      LoadPanelRow(w, narrow, k);
      for (size_t i = 0; i < kPanelVecs; ++i)
        Store(task.scratch + k * kPanelColumns + i * kLanes, w[i]);
    }
    MultiplyAllRows(task, static_cast<const float*>(task.scratch));
  }
}

}  // namespace
}  // namespace ibid
