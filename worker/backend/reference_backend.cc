// Each operation as its formula, in plain loops over f32 with sums in f64: what the others are
// compared with.
#include <cmath>
#include <cstring>
#include <vector>

#include "core/check.h"
#include "worker/backend/cpu_backend.h"

namespace ibid {
namespace {

struct PlainWeight : PackedWeight {
  using PackedWeight::PackedWeight;
  std::vector<float> values;  // (N, K)
  std::vector<float> bias;    // (N)
};

// Nearest bf16, ties to even.
uint16_t ToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  const uint32_t low = bits & 0xffffu, high = bits >> 16;
  const bool rounds_up = low > 0x8000u || (low == 0x8000u && (high & 1u) != 0);
  return static_cast<uint16_t>(high + (rounds_up ? 1 : 0));
}

float FromBf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

class ReferenceBackend final : public Backend {
 public:
  absl::StatusOr<std::unique_ptr<PackedWeight>> Pack(In weight,
                                                     std::span<const float> bias) override {
    auto packed = std::make_unique<PlainWeight>(weight.rows, weight.columns);
    for (size_t n = 0; n < weight.rows; ++n) {
      packed->values.insert(packed->values.end(), weight.row(n), weight.row(n) + weight.columns);
    }
    packed->bias.assign(weight.rows, 0.0f);
    if (!bias.empty()) packed->bias.assign(bias.begin(), bias.end());
    return packed;
  }

  void MatMul(Out y, In x, const PackedWeight& packed) override {
    const auto& w = static_cast<const PlainWeight&>(packed);
    IBID_CHECK(x.columns == w.k() && y.columns == w.n() && x.rows == y.rows);
    for (size_t t = 0; t < x.rows; ++t) {
      for (size_t n = 0; n < w.n(); ++n) {
        double sum = w.bias[n];
        for (size_t k = 0; k < w.k(); ++k) sum += double{x.row(t)[k]} * w.values[n * w.k() + k];
        y.row(t)[n] = static_cast<float>(sum);
      }
    }
  }

  void Embed(Out x, std::span<const uint32_t> tokens, In table, std::span<const uint32_t> positions,
             In position_table) override {
    for (size_t t = 0; t < x.rows; ++t) {
      for (size_t e = 0; e < x.columns; ++e) {
        x.row(t)[e] = table.row(tokens[t])[e] +
                      (positions.empty() ? 0.0f : position_table.row(positions[t])[e]);
      }
    }
  }

  void Norm(Out y, In x, const NormWeight& w) override {
    const bool is_layer = w.kind == NormWeight::Kind::kLayer;
    for (size_t t = 0; t < x.rows; ++t) {
      double mean = 0, square = 0;
      for (size_t e = 0; is_layer && e < x.columns; ++e)
        mean += x.row(t)[e] / static_cast<double>(x.columns);
      for (size_t e = 0; e < x.columns; ++e) square += (x.row(t)[e] - mean) * (x.row(t)[e] - mean);
      const double inverse = 1 / std::sqrt(square / static_cast<double>(x.columns) + w.epsilon);
      for (size_t e = 0; e < x.columns; ++e) {
        y.row(t)[e] = static_cast<float>((x.row(t)[e] - mean) * inverse * w.gain[e] +
                                         (is_layer ? w.bias[e] : 0.0f));
      }
    }
  }

  void Rope(Out x, size_t heads, const RopeAngles& angles) override {
    const size_t half = angles.half_dim;
    for (size_t t = 0; t < x.rows; ++t) {
      for (size_t h = 0; h < heads; ++h) {
        float* head = x.row(t) + h * 2 * half;
        for (size_t i = 0; i < half; ++i) {
          const float c = angles.cosine[t * half + i], s = angles.sine[t * half + i];
          const float a = head[i], b = head[half + i];
          head[i] = a * c - b * s;
          head[half + i] = b * c + a * s;
        }
      }
    }
  }

  void WriteKv(In k, In v, std::span<const TokenSlot> slots, const KvLayout& layout,
               uint32_t layer) override {
    for (size_t t = 0; t < slots.size(); ++t) {
      for (size_t g = 0; g < layout.kv_heads; ++g) {
        const size_t token = g * layout.block_tokens + slots[t].index;
        for (size_t d = 0; d < layout.k_dim; ++d) {
          Set(slots[t].page + layout.KOffset(layer), token * layout.k_dim + d,
              k.row(t)[g * layout.k_dim + d], layout);
        }
        for (size_t d = 0; d < layout.v_dim; ++d) {
          Set(slots[t].page + layout.VOffset(layer), token * layout.v_dim + d,
              v.row(t)[g * layout.v_dim + d], layout);
        }
      }
    }
  }

  void PagedAttention(Out o, In q, const AttentionBatch& batch, const KvLayout& layout,
                      uint32_t layer) override {
    for (const AttentionSequence& s : batch.sequences) {
      for (size_t r = 0; r < s.rows; ++r) {
        for (size_t h = 0; h < batch.heads; ++h) {
          const size_t end = s.first_position + r + 1;
          const size_t begin = batch.window > 0 && end > batch.window ? end - batch.window : 0;
          AttendRow(o.row(s.first_row + r) + h * layout.v_dim,
                    q.row(s.first_row + r) + h * layout.k_dim, s.pages, begin, end,
                    h / (batch.heads / layout.kv_heads), batch.scale, layout, layer);
        }
      }
    }
  }

  void Activate(Out y, In x, Activation activation) override {
    for (size_t t = 0; t < x.rows; ++t) {
      for (size_t f = 0; f < y.columns; ++f) {
        const double a = x.row(t)[f];
        if (activation == Activation::kSwiGlu) {
          y.row(t)[f] = static_cast<float>(a / (1 + std::exp(-a)) * x.row(t)[y.columns + f]);
        } else {
          y.row(t)[f] = static_cast<float>(
              0.5 * a *
              (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (a + 0.044715 * a * a * a))));
        }
      }
    }
  }

  void AddResidual(Out x, In delta) override {
    for (size_t t = 0; t < x.rows; ++t) {
      for (size_t e = 0; e < x.columns; ++e) x.row(t)[e] += delta.row(t)[e];
    }
  }

  void CopyPages(std::span<const std::pair<const std::byte*, std::byte*>> copies,
                 size_t bytes) override {
    for (const auto& [from, to] : copies) std::memcpy(to, from, bytes);
  }

  std::string NumericsId() const override { return "ibid-reference-1"; }

 private:
  static void Set(std::byte* base, size_t index, float value, const KvLayout& layout) {
    if (layout.dtype == KvDtype::kBf16) {
      const uint16_t narrow = ToBf16(value);
      std::memcpy(base + index * 2, &narrow, 2);
    } else {
      std::memcpy(base + index * 4, &value, 4);
    }
  }

  static float Get(const std::byte* base, size_t index, const KvLayout& layout) {
    if (layout.dtype == KvDtype::kBf16) {
      uint16_t narrow;
      std::memcpy(&narrow, base + index * 2, 2);
      return FromBf16(narrow);
    }
    float value;
    std::memcpy(&value, base + index * 4, 4);
    return value;
  }

  // One query row and head against the keys at positions [begin, end).
  void AttendRow(float* o, const float* q, std::span<std::byte* const> pages, size_t begin,
                 size_t end, size_t g, float scale, const KvLayout& layout, uint32_t layer) {
    const size_t tokens = layout.block_tokens;
    std::vector<double> weights(end - begin);
    double top = -INFINITY, total = 0;
    for (size_t p = begin; p < end; ++p) {
      const std::byte* keys = pages[p / tokens] + layout.KOffset(layer);
      double score = 0;
      for (size_t d = 0; d < layout.k_dim; ++d) {
        score += double{q[d]} * Get(keys, (g * tokens + p % tokens) * layout.k_dim + d, layout);
      }
      weights[p - begin] = score * scale;
      top = std::max(top, score * scale);
    }
    for (double& weight : weights) total += weight = std::exp(weight - top);
    for (size_t d = 0; d < layout.v_dim; ++d) {
      double sum = 0;
      for (size_t p = begin; p < end; ++p) {
        const std::byte* values = pages[p / tokens] + layout.VOffset(layer);
        sum +=
            weights[p - begin] * Get(values, (g * tokens + p % tokens) * layout.v_dim + d, layout);
      }
      o[d] = static_cast<float>(sum / total);
    }
  }
};

}  // namespace

std::unique_ptr<Backend> MakeReferenceBackend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace ibid
