// The kernels themselves. Included once by each kernels_*.cc, which names the table and is compiled
// for its processor.
#include "worker/backend/attend.h"
#include "worker/backend/kernels.h"
#include "worker/backend/panel_kernel.h"
#include "worker/backend/simd.h"

namespace ibid {
namespace {

void RmsNorm(float* y, const float* x, const float* gain, size_t n, float epsilon) {
  Vec sums = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sums = Fma(Load(x + i), Load(x + i), sums);
  const Vec rest = LoadPart(x + i, n - i);
  sums = Fma(rest, rest, sums);
  const float inverse = 1.0f / __builtin_sqrtf(SumLanes(sums) / static_cast<float>(n) + epsilon);
  for (i = 0; i + kLanes <= n; i += kLanes) Store(y + i, Load(x + i) * inverse * Load(gain + i));
  for (; i < n; ++i) y[i] = x[i] * inverse * gain[i];
}

void LayerNorm(float* y, const float* x, const float* gain, const float* bias, size_t n,
               float epsilon) {
  Vec sums = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sums += Load(x + i);
  sums += LoadPart(x + i, n - i);
  const float mean = SumLanes(sums) / static_cast<float>(n);
  Vec squares = {};
  for (i = 0; i + kLanes <= n; i += kLanes) {
    const Vec centred = Load(x + i) - mean;
    squares = Fma(centred, centred, squares);
  }
  float lanes[kLanes] = {};
  for (size_t j = 0; i + j < n; ++j) lanes[j] = x[i + j] - mean;
  squares = Fma(Load(lanes), Load(lanes), squares);
  const float inverse = 1.0f / __builtin_sqrtf(SumLanes(squares) / static_cast<float>(n) + epsilon);
  for (i = 0; i + kLanes <= n; i += kLanes) {
    Store(y + i, (Load(x + i) - mean) * inverse * Load(gain + i) + Load(bias + i));
  }
  for (; i < n; ++i) y[i] = (x[i] - mean) * inverse * gain[i] + bias[i];
}

void Rope(float* head, const float* cosine, const float* sine, size_t half) {
  size_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Vec a = Load(head + i), b = Load(head + half + i);
    const Vec c = Load(cosine + i), s = Load(sine + i);
    Store(head + i, a * c - b * s);
    Store(head + half + i, b * c + a * s);
  }
  for (; i < half; ++i) {
    const float a = head[i], b = head[half + i];
    head[i] = a * cosine[i] - b * sine[i];
    head[half + i] = b * cosine[i] + a * sine[i];
  }
}

inline Vec Silu(Vec x) { return x / (Exp(-x) + 1.0f); }

void SwiGlu(float* y, const float* gate, const float* up, size_t n) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(y + i, Silu(Load(gate + i)) * Load(up + i));
  const size_t rest = n - i;
  if (rest > 0) StorePart(y + i, Silu(LoadPart(gate + i, rest)) * LoadPart(up + i, rest), rest);
}

// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
inline Vec Gelu(Vec x) {
  const Vec cube = x * x * x;
  const Vec minus_2u = Fma(cube, Splat(0.044715f), x) * -1.5957691216057308f;
  return x / (Exp(minus_2u) + 1.0f);
}

void GeluTanh(float* y, const float* x, size_t n) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(y + i, Gelu(Load(x + i)));
  if (i < n) StorePart(y + i, Gelu(LoadPart(x + i, n - i)), n - i);
}

void Add(float* x, const float* delta, size_t n) {
  for (size_t i = 0; i < n; ++i) x[i] += delta[i];
}

void ToBf16(uint16_t* y, const float* x, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, x + i, 4);
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    y[i] = static_cast<uint16_t>(is_nan ? ((bits >> 16) | 0x40u) : rounded);
  }
}

}  // namespace

extern const Kernels IBID_KERNELS;
const Kernels IBID_KERNELS = {kIsaName, RmsNorm, LayerNorm, Rope,          SwiGlu,
                              GeluTanh, Add,     ToBf16,    MultiplyPanel, AttendScratchFloats,
                              Attend};

}  // namespace ibid
