#include "worker/backend/tiled_product.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/checksum.h"
#include "core/log.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "worker/backend/row_tiles.h"

namespace ibid {
namespace {

using dnnl::memory;

// Columns of one packed panel: small enough that a panel stays in the second-level cache while rows
// pass by.
constexpr size_t kTilePanelColumns = 128;

// oneDNN runs on the calling thread alone while this lives; WorkTeam is what makes it parallel.
class SerialOpenMp {
 public:
  SerialOpenMp() : threads_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~SerialOpenMp() { omp_set_num_threads(threads_); }

 private:
  const int threads_;
};

memory::desc RowMajor(size_t rows, size_t columns, size_t stride, memory::data_type type) {
  return memory::desc({static_cast<memory::dim>(rows), static_cast<memory::dim>(columns)}, type,
                      memory::dims{static_cast<memory::dim>(stride), 1});
}

// A reproducible sequence of numbers in [-1, 1).
class Noise {
 public:
  float Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<int32_t>(state_ >> 32)) * (1.0f / 2147483648.0f);
  }

 private:
  uint64_t state_ = 1;
};

// A product of (rows, inner) by (inner, columns).
dnnl::matmul::primitive_desc MakeDescriptor(const dnnl::engine& engine, const memory::desc& rows,
                                            const memory::desc& weights, const memory::desc& result,
                                            const dnnl::primitive_attr& attributes) {
#if DNNL_VERSION_MAJOR >= 3  // Ubuntu 24.04
  return {engine, rows, weights, result, attributes};
#else
  return {{rows, weights, result}, attributes, engine};
#endif
}

}  // namespace

struct TiledMultiplier::Panel {
  size_t first = 0;  // column of y
  size_t columns = 0;
  memory weights;
};

struct TiledMultiplier::Weight : PackedWeight {
  using PackedWeight::PackedWeight;
  std::vector<Panel> panels;
  std::vector<float> bias;
  std::vector<size_t> tiles;  // ascending
  // By (tile, panel columns): at most tiles x 2.
  std::map<std::pair<size_t, size_t>, dnnl::matmul> primitives;
  std::map<std::pair<size_t, size_t>, dnnl::matmul::primitive_desc> descriptors;
};

struct TiledMultiplier::Runtime {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::vector<dnnl::stream> streams;            // one a thread
  std::vector<std::vector<std::byte>> scratch;  // one a thread
  size_t scratch_bytes = 0;                     // what every primitive so far is content with
  std::vector<uint16_t> x_bf16;                 // all rows of the product, padded
  std::vector<float> x_rest, y_rest;            // the padded group
  std::map<std::array<size_t, 3>, std::vector<size_t>> checked;  // (N, K, panel columns) -> tiles
};

TiledMultiplier::TiledMultiplier(bool is_bf16, const Kernels* kernels, WorkTeam* team)
    : is_bf16_(is_bf16), kernels_(kernels), team_(team), runtime_(std::make_unique<Runtime>()) {
  for (size_t i = 0; i < team->threads(); ++i) runtime_->streams.emplace_back(runtime_->engine);
  runtime_->scratch.resize(team->threads());
}

TiledMultiplier::~TiledMultiplier() = default;

void TiledMultiplier::DisableOpenMpOnThisThread() { omp_set_num_threads(1); }

absl::StatusOr<std::unique_ptr<PackedWeight>> TiledMultiplier::Pack(In weight,
                                                                    std::span<const float> bias) {
  IBID_CHECK(bias.empty() || bias.size() == weight.rows) << "bias of " << bias.size();
  const SerialOpenMp serial;
  auto packed = std::make_unique<Weight>(weight.rows, weight.columns);
  packed->bias.assign(bias.begin(), bias.end());
  try {
    PackPanels(weight, packed.get());
  } catch (const dnnl::error& error) {
    return absl::InternalError(absl::StrCat("packing a weight of shape (", weight.rows, ", ",
                                            weight.columns, ") with oneDNN: ", error.what()));
  }
  return packed;
}

void TiledMultiplier::PackPanels(In weight, Weight* packed) {
  const size_t n = weight.rows, k = weight.columns;
  const memory::data_type type = is_bf16_ ? memory::data_type::bf16 : memory::data_type::f32;
  const auto k_dim = static_cast<memory::dim>(k);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  std::map<size_t, memory::desc> forms;  // of a panel, by its columns
  std::vector<size_t> candidates(std::begin(kRowTiles), std::end(kRowTiles));
  candidates.push_back(1);
  for (size_t first = 0; first < n; first += kTilePanelColumns) {
    const size_t columns = std::min(kTilePanelColumns, n - first);
    const memory::dims shape = {k_dim, static_cast<memory::dim>(columns)};
    if (!forms.contains(columns)) {
      // The form is chosen once, for a middling number of rows, and then given to all tiles.
      const dnnl::matmul::primitive_desc probe =
          MakeDescriptor(runtime_->engine, RowMajor(48, k, k, type),
                         memory::desc(shape, type, memory::format_tag::any),
                         RowMajor(48, columns, n, memory::data_type::f32), attributes);
      memory::desc form = probe.weights_desc();
      const memory::desc transposed(shape, type, memory::format_tag::ba);
      if (form == transposed)
        form = memory::desc(shape, type, memory::format_tag::ab);  // 2x faster for few rows
      forms[columns] = form;
      for (size_t tile : candidates) {
        const dnnl::matmul::primitive_desc descriptor =
            MakeDescriptor(runtime_->engine, RowMajor(tile, k, k, type), form,
                           RowMajor(tile, columns, n, memory::data_type::f32), attributes);
        runtime_->scratch_bytes =
            std::max(runtime_->scratch_bytes, descriptor.scratchpad_desc().get_size());
        packed->descriptors.emplace(std::pair(tile, columns), descriptor);
        packed->primitives.emplace(std::pair(tile, columns), dnnl::matmul(descriptor));
      }
    }
    // The panel's rows of (N, K) are its columns of (K, N).
    memory from(memory::desc(shape, memory::data_type::f32,
                             memory::dims{1, static_cast<memory::dim>(weight.stride)}),
                runtime_->engine, const_cast<float*>(weight.row(first)));
    Panel panel{first, columns, memory(forms[columns], runtime_->engine)};
    dnnl::reorder(from, panel.weights).execute(runtime_->streams[0], from, panel.weights);
    runtime_->streams[0].wait();
    packed->panels.push_back(std::move(panel));
  }
  for (std::vector<std::byte>& scratch : runtime_->scratch) scratch.resize(runtime_->scratch_bytes);
  for (const auto& [columns, form] : forms) CheckTiles(packed, columns);
}

// Multiplies noise by the first panel of that width in every tile and at every place, and keeps the
// tiles that agree.
void TiledMultiplier::CheckTiles(Weight* packed, size_t panel_columns) {
  std::vector<size_t>& tiles = runtime_->checked[{packed->n(), packed->k(), panel_columns}];
  if (tiles.empty()) {
    const auto panel = std::find_if(packed->panels.begin(), packed->panels.end(),
                                    [&](const Panel& p) { return p.columns == panel_columns; });
    std::vector<float> x(kRowTileMax * packed->k());
    Noise noise;
    for (float& value : x) value = noise.Next();
    std::vector<float> result(2 * kRowTileMax * packed->n());  // rows as far apart as in use
    const auto multiply = [&](size_t tile, size_t shift, float* y) {
      const size_t calls = (kRowTileMax + shift + tile - 1) / tile;
      std::vector<float> placed(calls * tile * packed->k());
      std::copy(x.begin(), x.end(), placed.begin() + shift * packed->k());
      std::vector<uint16_t> narrow(is_bf16_ ? placed.size() : 0);
      kernels_->to_bf16(narrow.data(), placed.data(), narrow.size());
      for (size_t call = 0; call < calls; ++call) {
        const size_t at = call * tile * packed->k();
        RunCall(*packed, *panel, is_bf16_ ? static_cast<const void*>(&narrow[at]) : &placed[at],
                &result[call * tile * packed->n()], tile, 0);
      }
      for (size_t r = 0; r < kRowTileMax; ++r) {
        std::memcpy(y + r * panel_columns, &result[(r + shift) * packed->n()],
                    panel_columns * sizeof(float));
      }
      if (shift == 0)
        probe_ = Checksum(std::as_bytes(std::span(y, kRowTileMax * panel_columns))) + probe_ * 31;
    };
    tiles = ChooseRowTiles(kRowTiles, panel_columns, multiply);
    if (tiles.size() < std::size(kRowTiles)) {
      IBID_LOG(warn,
               "oneDNN products (K={}, N={}) are batch-invariant only in row tiles of {}: slower",
               packed->k(), panel_columns, absl::StrJoin(tiles, ", "));
    }
  }
  if (packed->tiles.empty()) {
    packed->tiles = tiles;
  } else {  // the narrower last panel: use what suits both
    std::vector<size_t> both;
    std::set_intersection(packed->tiles.begin(), packed->tiles.end(), tiles.begin(), tiles.end(),
                          std::back_inserter(both));
    packed->tiles = both.empty() ? std::vector<size_t>{1} : both;
  }
}

void TiledMultiplier::RunCall(const Weight& w, const Panel& panel, const void* x, float* y,
                              size_t tile, size_t thread) {
  const std::pair<size_t, size_t> key(tile, panel.columns);
  const dnnl::matmul::primitive_desc& descriptor = w.descriptors.find(key)->second;
  const dnnl::engine& engine = runtime_->engine;
  memory source(descriptor.src_desc(), engine, const_cast<void*>(x));
  memory target(descriptor.dst_desc(), engine, y);
  memory scratchpad(descriptor.scratchpad_desc(), engine, runtime_->scratch[thread].data());
  w.primitives.find(key)->second.execute(runtime_->streams[thread],
                                         {{DNNL_ARG_SRC, source},
                                          {DNNL_ARG_WEIGHTS, panel.weights},
                                          {DNNL_ARG_DST, target},
                                          {DNNL_ARG_SCRATCHPAD, scratchpad}});
}

void TiledMultiplier::Multiply(Out y, In x, const PackedWeight& packed) {
  const Weight& w = static_cast<const Weight&>(packed);
  const size_t n = w.n(), k = w.k();
  IBID_CHECK(x.columns == k && y.columns == n && x.rows == y.rows && x.stride == k && y.stride == n)
      << "product of (" << x.rows << ", " << x.columns << ") with weight (" << n << ", " << k
      << ")";
  if (x.rows == 0) return;
  const SerialOpenMp serial;
  const size_t calls_wanted = team_->threads() > 1 ? team_->threads() * 2 : 1;
  const std::vector<RowGroup> groups =
      CutRows(x.rows, w.tiles, (calls_wanted + w.panels.size() - 1) / w.panels.size());
  const RowGroup rest = groups.back();
  const bool is_padded = rest.rows < rest.tile;
  if (is_padded) {
    runtime_->x_rest.assign(rest.tile * k, 0.0f);
    std::copy(x.row(rest.first), x.row(rest.first) + rest.rows * k, runtime_->x_rest.begin());
    runtime_->y_rest.resize(std::max(runtime_->y_rest.size(), rest.tile * n));
  }
  if (is_bf16_) {
    const size_t whole = is_padded ? rest.first : x.rows;
    runtime_->x_bf16.resize(std::max(runtime_->x_bf16.size(), (x.rows + rest.tile) * k));
    kernels_->to_bf16(runtime_->x_bf16.data(), x.data, whole * k);
    if (is_padded)
      kernels_->to_bf16(&runtime_->x_bf16[whole * k], runtime_->x_rest.data(), rest.tile * k);
  }
  team_->Run(groups.size() * w.panels.size(), [&](size_t index, size_t thread) {
    const RowGroup& group = groups[index / w.panels.size()];
    const Panel& panel = w.panels[index % w.panels.size()];
    const bool is_rest = group.rows < group.tile;
    const void* from = is_bf16_ ? static_cast<const void*>(&runtime_->x_bf16[group.first * k])
                                : (is_rest ? runtime_->x_rest.data() : x.row(group.first));
    float* to = (is_rest ? runtime_->y_rest.data() : y.row(group.first)) + panel.first;
    RunCall(w, panel, from, to, group.tile, thread);
    for (size_t r = 0; r < group.rows; ++r) {
      float* row = y.row(group.first + r) + panel.first;
      if (is_rest) std::memcpy(row, to + r * n, panel.columns * sizeof(float));
      if (!w.bias.empty()) kernels_->add(row, &w.bias[panel.first], panel.columns);
    }
  });
}

}  // namespace ibid
