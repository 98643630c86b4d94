#include "worker/backend/panel_product.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/check.h"

namespace ibid {
namespace {

// Rows of one task: with K in the thousands they fit the second-level cache beside a panel; a
// multiple of 6 and of 12.
constexpr size_t kRowsPerTask = 96;
// Panels of one task when there are many rows.
constexpr size_t kPanelsPerTask = 8;

struct PanelWeight : PackedWeight {
  using PackedWeight::PackedWeight;
  size_t panels() const { return (n() + kPanelColumns - 1) / kPanelColumns; }
  const void* panel(size_t p) const {
    const size_t at = p * k() * kPanelColumns;
    return narrow.empty() ? static_cast<const void*>(&wide[at]) : &narrow[at];
  }
  std::vector<float> wide;       // one of the two
  std::vector<uint16_t> narrow;  // bf16
  std::vector<float> bias;       // padded to whole panels; empty without
};

bool IsBf16(In weight) {
  for (size_t n = 0; n < weight.rows; ++n) {
    for (size_t k = 0; k < weight.columns; ++k) {
      if ((std::bit_cast<uint32_t>(weight.row(n)[k]) & 0xffffu) != 0) return false;
    }
  }
  return true;
}

}  // namespace

std::unique_ptr<PackedWeight> PanelMultiplier::Pack(In weight, std::span<const float> bias) {
  IBID_CHECK(bias.empty() || bias.size() == weight.rows) << "bias of " << bias.size();
  auto packed = std::make_unique<PanelWeight>(weight.rows, weight.columns);
  const size_t k_count = weight.columns, values = packed->panels() * k_count * kPanelColumns;
  const bool is_bf16 = IsBf16(weight);
  if (is_bf16) {
    packed->narrow.resize(values);
  } else {
    packed->wide.resize(values);
  }
  for (size_t n = 0; n < weight.rows; ++n) {
    const size_t at = n / kPanelColumns * k_count * kPanelColumns + n % kPanelColumns;
    const float* row = weight.row(n);
    for (size_t k = 0; k < k_count; ++k) {
      if (is_bf16) {
        packed->narrow[at + k * kPanelColumns] =
            static_cast<uint16_t>(std::bit_cast<uint32_t>(row[k]) >> 16);
      } else {
        packed->wide[at + k * kPanelColumns] = row[k];
      }
    }
  }
  if (!bias.empty()) {
    packed->bias.assign(bias.begin(), bias.end());
    packed->bias.resize(packed->panels() * kPanelColumns);
  }
  return packed;
}

void PanelMultiplier::Multiply(Out y, In x, const PackedWeight& packed) {
  const PanelWeight& w = static_cast<const PanelWeight&>(packed);
  IBID_CHECK(x.columns == w.k() && y.columns == w.n() && x.rows == y.rows)
      << "product of (" << x.rows << ", " << x.columns << ") with weight (" << w.n() << ", "
      << w.k() << ")";
  if (x.rows == 0) return;
  const size_t row_tasks = (x.rows + kRowsPerTask - 1) / kRowsPerTask;
  // A few tasks a thread even it out; more only cost.
  const size_t wanted = (4 * team_->threads() + row_tasks - 1) / row_tasks;
  const size_t panels_per_task =
      team_->threads() == 1
          ? w.panels()
          : std::max(std::min(kPanelsPerTask, w.panels()), (w.panels() + wanted - 1) / wanted);
  const size_t column_tasks = (w.panels() + panels_per_task - 1) / panels_per_task;
  team_->Run(row_tasks * column_tasks, [&](size_t index, size_t thread) {
    const size_t first_row = index / column_tasks * kRowsPerTask;
    const size_t first_panel = index % column_tasks * panels_per_task;
    std::vector<float>& scratch = scratch_[thread];
    scratch.resize(std::max(scratch.size(), w.k() * kPanelColumns));
    PanelTask task = {};
    task.x = x.row(first_row);
    task.x_stride = x.stride;
    task.y_stride = y.stride;
    task.rows = std::min(kRowsPerTask, x.rows - first_row);
    task.k = w.k();
    task.is_bf16 = !w.narrow.empty();
    task.scratch = scratch.data();
    for (size_t p = first_panel; p < std::min(first_panel + panels_per_task, w.panels()); ++p) {
      task.y = y.row(first_row) + p * kPanelColumns;
      task.columns = std::min<size_t>(kPanelColumns, w.n() - p * kPanelColumns);
      task.panel = w.panel(p);
      task.bias = w.bias.empty() ? nullptr : &w.bias[p * kPanelColumns];
      kernels_->multiply_panel(task);
    }
  });
}

}  // namespace ibid
