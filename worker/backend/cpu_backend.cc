#include "worker/backend/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "worker/backend/kernels.h"
#include "worker/backend/panel_product.h"
#include "worker/backend/tiled_product.h"
#include "worker/backend/work_team.h"

namespace ibid {
namespace {

// Rows of one task of a row-wise operation: large enough that a task outweighs its hand-over.
constexpr size_t kRowsPerTask = 32;
// Query rows times heads of one attention task: shares each transposed key tile, and its scratch
// stays in cache.
constexpr size_t kQueriesPerTask = 96;

// True when the processor multiplies bf16 by instructions made for it, with or without tiles.
bool HasBf16Products() {
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::avx512_core_bf16:
    case dnnl::cpu_isa::avx512_core_amx:
      return true;
    default:
      return false;
  }
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(bool is_bf16, size_t threads, const Kernels& kernels)
      : kernels_(kernels),
        team_(threads, TiledMultiplier::DisableOpenMpOnThisThread),
        panels_(&kernels_, &team_),
        scratch_(threads) {
    if (is_bf16) tiles_.emplace(is_bf16, &kernels_, &team_);
  }

  absl::StatusOr<std::unique_ptr<PackedWeight>> Pack(In weight,
                                                     std::span<const float> bias) override {
    if (tiles_) return tiles_->Pack(weight, bias);
    return panels_.Pack(weight, bias);
  }

  void MatMul(Out y, In x, const PackedWeight& w) override {
    if (tiles_) {
      tiles_->Multiply(y, x, w);
    } else {
      panels_.Multiply(y, x, w);
    }
  }

  void Embed(Out x, std::span<const uint32_t> tokens, In table, std::span<const uint32_t> positions,
             In position_table) override {
    IBID_CHECK(x.rows == tokens.size() && x.columns == table.columns);
    for (size_t t = 0; t < x.rows; ++t) {
      IBID_CHECK(tokens[t] < table.rows) << "token " << tokens[t];
      std::memcpy(x.row(t), table.row(tokens[t]), x.columns * sizeof(float));
      if (positions.empty()) continue;
      IBID_CHECK(positions[t] < position_table.rows) << "position " << positions[t];
      kernels_.add(x.row(t), position_table.row(positions[t]), x.columns);
    }
  }

  void Norm(Out y, In x, const NormWeight& w) override {
    IBID_CHECK(y.rows == x.rows && y.columns == x.columns && w.gain.size() == x.columns);
    ForRows(x.rows, [&](size_t r) {
      if (w.kind == NormWeight::Kind::kRms) {
        kernels_.rms_norm(y.row(r), x.row(r), w.gain.data(), x.columns, w.epsilon);
      } else {
        kernels_.layer_norm(y.row(r), x.row(r), w.gain.data(), w.bias.data(), x.columns, w.epsilon);
      }
    });
  }

  void Rope(Out x, size_t heads, const RopeAngles& angles) override {
    const size_t half = angles.half_dim;
    IBID_CHECK(x.columns == heads * half * 2 && angles.cosine.size() >= x.rows * half);
    ForRows(x.rows, [&](size_t r) {
      for (size_t h = 0; h < heads; ++h) {
        kernels_.rope(x.row(r) + h * half * 2, &angles.cosine[r * half], &angles.sine[r * half],
                      half);
      }
    });
  }

  void WriteKv(In k, In v, std::span<const TokenSlot> slots, const KvLayout& layout,
               uint32_t layer) override {
    IBID_CHECK(k.rows == slots.size() && v.rows == slots.size());
    IBID_CHECK(k.columns == layout.kv_heads * layout.k_dim &&
               v.columns == layout.kv_heads * layout.v_dim);
    ForRows(k.rows, [&](size_t r) {
      WriteRow(k.row(r), layout.k_dim, slots[r], layout, layout.KOffset(layer));
      WriteRow(v.row(r), layout.v_dim, slots[r], layout, layout.VOffset(layer));
    });
  }

  void PagedAttention(Out o, In q, const AttentionBatch& batch, const KvLayout& layout,
                      uint32_t layer) override;

  void Activate(Out y, In x, Activation activation) override {
    const bool is_gated = activation == Activation::kSwiGlu;
    IBID_CHECK(y.rows == x.rows && x.columns == y.columns * (is_gated ? 2 : 1));
    ForRows(x.rows, [&](size_t r) {
      if (is_gated) {
        kernels_.swiglu(y.row(r), x.row(r), x.row(r) + y.columns, y.columns);
      } else {
        kernels_.gelu_tanh(y.row(r), x.row(r), y.columns);
      }
    });
  }

  void AddResidual(Out x, In delta) override {
    IBID_CHECK(x.rows == delta.rows && x.columns == delta.columns);
    ForRows(x.rows, [&](size_t r) { kernels_.add(x.row(r), delta.row(r), x.columns); });
  }

  void CopyPages(std::span<const std::pair<const std::byte*, std::byte*>> copies,
                 size_t bytes) override {
    for (const auto& [from, to] : copies) std::memcpy(to, from, bytes);
  }

  std::string NumericsId() const override {
    std::string id =
        absl::StrCat("ibid-cpu-1;isa=", kernels_.isa, ";compute=", tiles_ ? "bf16" : "f32");
    // What oneDNN's products come to may differ between its versions and between processors of one
    // instruction set.
    if (tiles_) absl::StrAppend(&id, ";probe=", absl::Hex(tiles_->probe(), absl::kZeroPad16));
    return id;
  }

 private:
  void MakeTasks(Out o, In q, const AttentionBatch& batch, const KvLayout& layout, uint32_t layer);

  template <typename F>
  void ForRows(size_t rows, F do_row) {
    team_.Run((rows + kRowsPerTask - 1) / kRowsPerTask, [&](size_t index, size_t) {
      const size_t end = std::min(rows, (index + 1) * kRowsPerTask);
      for (size_t r = index * kRowsPerTask; r < end; ++r) do_row(r);
    });
  }

  // One token's heads, `dim` wide, to [kv_heads][S][dim] at `offset` of its page.
  void WriteRow(const float* from, size_t dim, const TokenSlot& slot, const KvLayout& layout,
                size_t offset) {
    const size_t element = DtypeBytes(layout.dtype);
    for (size_t g = 0; g < layout.kv_heads; ++g) {
      std::byte* to = slot.page + offset + (g * layout.block_tokens + slot.index) * dim * element;
      if (layout.dtype == KvDtype::kBf16) {
        kernels_.to_bf16(reinterpret_cast<uint16_t*>(to), from + g * dim, dim);
      } else {
        std::memcpy(to, from + g * dim, dim * sizeof(float));
      }
    }
  }

  const Kernels& kernels_;
  WorkTeam team_;
  PanelMultiplier panels_;                   // f32
  std::optional<TiledMultiplier> tiles_;     // bf16: oneDNN
  std::vector<std::vector<float>> scratch_;  // of attention, one a thread
  std::vector<AttendTask> tasks_;
};

// Cuts the batch into tasks_, each some rows and heads of one sequence that share a KV head.
void CpuBackend::MakeTasks(Out o, In q, const AttentionBatch& batch, const KvLayout& layout,
                           uint32_t layer) {
  const size_t group = batch.heads / layout.kv_heads;
  size_t tasks_of_whole_groups = 0;
  for (const AttentionSequence& s : batch.sequences) {
    tasks_of_whole_groups +=
        layout.kv_heads * ((s.rows * group + kQueriesPerTask - 1) / kQueriesPerTask);
  }
  AttendTask task = {};
  // Heads of one group share key tiles, unless that would leave threads idle.
  task.heads = tasks_of_whole_groups < team_.threads() ? 1 : group;
  task.q_stride = q.stride;
  task.o_stride = o.stride;
  task.block_tokens = layout.block_tokens;
  task.k_dim = layout.k_dim;
  task.v_dim = layout.v_dim;
  task.is_bf16 = layout.dtype == KvDtype::kBf16;
  task.scale = batch.scale;
  task.window = batch.window;
  const size_t rows_per_task = std::max<size_t>(1, kQueriesPerTask / task.heads);
  const size_t head_bytes = layout.block_tokens * DtypeBytes(layout.dtype);
  tasks_.clear();
  for (const AttentionSequence& s : batch.sequences) {
    IBID_CHECK(s.first_row + s.rows <= q.rows && o.rows == q.rows);
    IBID_CHECK(s.pages.size() * layout.block_tokens >= s.first_position + s.rows)
        << "pages " << s.pages.size();
    task.pages = reinterpret_cast<const void* const*>(s.pages.data());
    for (size_t r = 0; r < s.rows; r += rows_per_task) {
      task.rows = std::min(rows_per_task, s.rows - r);
      task.first_position = s.first_position + r;
      for (size_t h = 0; h < batch.heads; h += task.heads) {
        task.q = q.row(s.first_row + r) + h * layout.k_dim;
        task.o = o.row(s.first_row + r) + h * layout.v_dim;
        task.k_offset = layout.KOffset(layer) + h / group * head_bytes * layout.k_dim;
        task.v_offset = layout.VOffset(layer) + h / group * head_bytes * layout.v_dim;
        tasks_.push_back(task);
      }
    }
  }
}

void CpuBackend::PagedAttention(Out o, In q, const AttentionBatch& batch, const KvLayout& layout,
                                uint32_t layer) {
  IBID_CHECK(batch.heads % layout.kv_heads == 0 && q.columns == batch.heads * layout.k_dim &&
             o.columns == batch.heads * layout.v_dim && layout.k_dim > 0);
  IBID_CHECK(layout.dtype == KvDtype::kF32 || layout.dtype == KvDtype::kBf16);
  MakeTasks(o, q, batch, layout, layer);
  team_.Run(tasks_.size(), [&](size_t index, size_t thread) {
    // The last rows have the most keys: start with them.
    AttendTask& task = tasks_[tasks_.size() - 1 - index];
    std::vector<float>& scratch = scratch_[thread];
    scratch.resize(std::max(scratch.size(), kernels_.attend_scratch_floats(task)));
    task.scratch = scratch.data();
    kernels_.attend(task);
  });
}

}  // namespace

absl::StatusOr<ComputeDtype> ParseComputeDtype(absl::string_view name) {
  if (name == "auto") return ComputeDtype::kAuto;
  if (name == "f32") return ComputeDtype::kF32;
  if (name == "bf16") return ComputeDtype::kBf16;
  return absl::InvalidArgumentError(
      absl::StrCat("compute dtype '", name, "': use auto, f32 or bf16"));
}

absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const CpuBackendOptions& options) {
  if (options.compute == ComputeDtype::kBf16 && !HasBf16Products()) {
    return absl::InvalidArgumentError(
        "compute dtype bf16: this processor has no bf16 products (needs avx512_core_bf16); use "
        "auto or f32");
  }
  const size_t threads =
      options.threads > 0 ? options.threads : std::max(1u, std::thread::hardware_concurrency());
  if (threads > kBackendThreadsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "CPU backend with ", threads, " threads: kBackendThreadsMax is ", kBackendThreadsMax));
  }
  const bool is_bf16 =
      options.compute == ComputeDtype::kBf16 ||
      (options.compute == ComputeDtype::kAuto && options.has_bf16_weights && HasBf16Products());
  const Kernels* kernels =
      options.isa == "auto" ? &KernelsOfThisProcessor() : FindKernels(options.isa.c_str());
  if (kernels == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("isa '", options.isa,
                                                   "': use auto, or one of sse2, avx2, avx512 that "
                                                   "this processor has; its best is ",
                                                   KernelsOfThisProcessor().isa));
  }
  return std::make_unique<CpuBackend>(is_bf16, threads, *kernels);
}

}  // namespace ibid
