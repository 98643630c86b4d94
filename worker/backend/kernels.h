// Loops of the CPU backend that are compiled once for each instruction set, chosen when the program
// starts.
//
// Every function works on single rows (or on query rows that do not touch each other), so the bits
// of a row depend on that row alone. Included by files compiled for newer processors: no inline
// functions here.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace ibid {

// The tile of attention: keys are taken this many at a time, in the order of their positions within
// a page.
enum : size_t { kTileTokens = 16 };

// Some heads of some consecutive rows of one sequence against one KV head.
struct AttendTask {
  const float* q;  // row r, head h at q + r * q_stride + h * k_dim
  size_t q_stride;
  float* o;  // row r, head h at o + r * o_stride + h * v_dim
  size_t o_stride;
  size_t rows;
  size_t heads;
  size_t first_position;  // of row 0
  const void* const* pages;
  size_t k_offset;  // bytes from a page's start to this layer's and KV head's K [S][k_dim]
  size_t v_offset;  // ... V [S][v_dim]
  size_t block_tokens;
  size_t k_dim;
  size_t v_dim;
  bool is_bf16;
  float scale;
  size_t window;   // 0: none
  float* scratch;  // attend_scratch_floats(*this) floats
};

// The columns of a weight that are packed side by side.
enum : size_t { kPanelColumns = 16 };

// y (rows, columns) = x (rows, K) times one panel [K][16], plus its bias.
struct PanelTask {
  const float* x;
  size_t x_stride;
  float* y;
  size_t y_stride;
  size_t rows;
  size_t k;
  size_t columns;     // of the panel that y has, [1, 16]
  const void* panel;  // f32, or bf16 if is_bf16: the results are the same, as widening is exact
  bool is_bf16;
  const float* bias;  // 16 values, or null
  float* scratch;     // K * 16 floats if is_bf16
};

struct Kernels {
  const char* isa;
  void (*rms_norm)(float* y, const float* x, const float* gain, size_t n, float epsilon);
  void (*layer_norm)(float* y, const float* x, const float* gain, const float* bias, size_t n,
                     float epsilon);
  void (*rope)(float* head, const float* cosine, const float* sine, size_t half);
  void (*swiglu)(float* y, const float* gate, const float* up, size_t n);
  void (*gelu_tanh)(float* y, const float* x, size_t n);
  void (*add)(float* x, const float* delta, size_t n);
  void (*to_bf16)(uint16_t* y, const float* x, size_t n);  // nearest, ties to even; NaN stays NaN
  void (*multiply_panel)(const PanelTask& task);
  size_t (*attend_scratch_floats)(const AttendTask& task);
  void (*attend)(const AttendTask& task);
};

extern const Kernels kKernelsSse2;
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;

// The best that this processor and operating system can run.
const Kernels& KernelsOfThisProcessor();
// Those of `isa` (sse2, avx2, avx512), or null when this processor cannot run them or there is no
// such name.
const Kernels* FindKernels(const char* isa);

}  // namespace ibid
