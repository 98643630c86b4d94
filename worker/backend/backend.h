// Backend is the arithmetic of a decoder-only transformer on one device: about ten operations with
// stated shapes.
//
// Letters, here and in all of worker/backend: T tokens (rows of one step), L layers, H query heads,
// G KV heads, D head_dim, S block_tokens, V vocabulary, F feed-forward width, E model width, N and
// K of a product (T, K) x (N, K)'.
//
// **Batch invariance**: the bits of a row of any result depend on that row's own inputs and nothing
// else: not on the other rows of the step, their number or order, not on where pages lie, not on
// the number of threads. All state of a sequence is in its pages, in the form of a block payload
// (core/kv_layout.h), and attention reads K and V from the pages only, also those that the same
// step wrote. So a block that was fetched and one that was computed are the same.
//
// Errors: all operations are total on valid arguments; a wrong shape is a programmer's error
// (IBID_CHECK). Thread safety: owned by one thread at a time. Ownership: arguments are borrowed for
// the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/kv_layout.h"

namespace ibid {

// A (rows, columns) matrix of f32 whose rows are `stride` floats apart.
struct In {
  const float* data = nullptr;
  size_t rows = 0;
  size_t columns = 0;
  size_t stride = 0;

  const float* row(size_t r) const { return data + r * stride; }
  // Columns [first, first + count) of every row.
  In Columns(size_t first, size_t count) const { return {data + first, rows, count, stride}; }
};

struct Out {
  float* data = nullptr;
  size_t rows = 0;
  size_t columns = 0;
  size_t stride = 0;

  float* row(size_t r) const { return data + r * stride; }
  Out Columns(size_t first, size_t count) const { return {data + first, rows, count, stride}; }
  operator In() const { return {data, rows, columns, stride}; }
};

// A weight matrix (N, K), with an optional bias (N), in the form that this backend multiplies by.
class PackedWeight {
 public:
  PackedWeight(size_t n, size_t k) : n_(n), k_(k) {}
  virtual ~PackedWeight() = default;
  PackedWeight(const PackedWeight&) = delete;
  PackedWeight& operator=(const PackedWeight&) = delete;
  size_t n() const { return n_; }
  size_t k() const { return k_; }

 private:
  const size_t n_, k_;
};

// y = gain * (x - mean) / sqrt(variance + epsilon) + bias, or without mean and bias (root mean
// square norm).
struct NormWeight {
  enum class Kind { kRms, kLayer };
  Kind kind = Kind::kRms;
  std::vector<float> gain;  // (E)
  std::vector<float> bias;  // (E) for kLayer
  float epsilon = 1e-5f;
};

// Angles of rotary embedding for the T rows of a step: cosine and sine, (T, D / 2) each.
struct RopeAngles {
  std::vector<float> cosine, sine;
  size_t half_dim = 0;
};

enum class Activation { kSwiGlu, kGeluTanh };

// One token's place in the pages: the page of its block and its index in the block, [0, S).
struct TokenSlot {
  std::byte* page = nullptr;
  size_t index = 0;
};

// Consecutive rows of one sequence in a step. Row `first_row + i` is the token at `first_position +
// i`, and attends to the tokens at [0, first_position + i], all of which are in `pages` (block i at
// pages[i]).
struct AttentionSequence {
  size_t first_row = 0;
  size_t rows = 0;
  size_t first_position = 0;
  std::span<std::byte* const> pages;
};

struct AttentionBatch {
  std::span<const AttentionSequence> sequences;
  size_t heads = 0;   // H; query head h reads KV head h / (H / G)
  float scale = 1;    // of q . k
  size_t window = 0;  // tokens a row sees, itself included; 0: all
};

class Backend {
 public:
  virtual ~Backend() = default;

  // Packs a row-major (N, K) weight and a bias of N or 0 values. Both are copied.
  // Errors: Internal when the library has no kernel for the shape.
  virtual absl::StatusOr<std::unique_ptr<PackedWeight>> Pack(In weight,
                                                             std::span<const float> bias) = 0;

  // y (T, N) = x (T, K) times w (N, K) transposed, plus the bias. x and y do not overlap and are
  // dense (stride == columns).
  virtual void MatMul(Out y, In x, const PackedWeight& w) = 0;

  // x (T, E) = table[tokens] (V, E); with `positions`, plus position_table[positions]. REQUIRES:
  // tokens < V.
  virtual void Embed(Out x, std::span<const uint32_t> tokens, In table,
                     std::span<const uint32_t> positions, In position_table) = 0;

  // y (T, E) = norm of each row of x (T, E). y may be x.
  virtual void Norm(Out y, In x, const NormWeight& w) = 0;

  // Rotates each head of x (T, heads * D) in place: (a, b) at (i, i + D/2) becomes (a cos - b sin,
  // b cos + a sin).
  virtual void Rope(Out x, size_t heads, const RopeAngles& angles) = 0;

  // Rounds k, v (T, G * D) to the layout's dtype (nearest, ties to even) and writes row t to
  // slots[t], layer `layer`. Touches no other byte of the pages.
  virtual void WriteKv(In k, In v, std::span<const TokenSlot> slots, const KvLayout& layout,
                       uint32_t layer) = 0;

  // o (T, H * D) = softmax(scale * q . K) . V for each row and head, K and V from the pages.
  virtual void PagedAttention(Out o, In q, const AttentionBatch& batch, const KvLayout& layout,
                              uint32_t layer) = 0;

  // kSwiGlu: y (T, F) = silu(x[:, :F]) * x[:, F:], x (T, 2F). kGeluTanh: y (T, F) = gelu_tanh(x (T,
  // F)); y may be x.
  virtual void Activate(Out y, In x, Activation activation) = 0;

  // x (T, E) += delta (T, E).
  virtual void AddResidual(Out x, In delta) = 0;

  // Copies whole pages of `bytes` bytes, (from, to) each; no two overlap.
  virtual void CopyPages(std::span<const std::pair<const std::byte*, std::byte*>> copies,
                         size_t bytes) = 0;

  // All that could change the bits of K and V, e.g. `ibid-cpu-1;isa=avx2;compute=f32`: the `engine`
  // field of a namespace.
  virtual std::string NumericsId() const = 0;
};

}  // namespace ibid
