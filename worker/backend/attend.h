// Attention over paged keys and values by online softmax, one tile of 16 keys at a time.
//
// Order of arithmetic of one query row, whatever rows are beside it: its tiles from the first to
// the last; in a tile, each score is a chain of fused sums over the dimension; one new maximum;
// then values are added key by key. A tile holds the keys [16 i, 16 i + 16) of one page, so its
// borders depend on positions only.
//
//   page of a layer, one KV head:   K [S][k_dim] -> transposed tile kt [k_dim][16]
//                                   V [S][v_dim] -> tile vt [16][padded v_dim]; in place if f32
//
//   for each query row and head v:  max[v], sums[v][16] (one partial sum a lane),
//                                   out[v][padded v_dim]
#pragma once

#include "worker/backend/kernels.h"
#include "worker/backend/simd.h"

namespace ibid {
namespace {

constexpr size_t kTileVecs = kTileTokens / kLanes;
// Query rows whose scores are computed together: enough chains to hide the latency of a sum.
constexpr size_t kScoreRows = 4;
// Output vectors kept in registers while a tile's values are added.
constexpr size_t kOutVecs = kLanes == 16 ? 4 : 8;
constexpr float kMinusInfinity = -__builtin_inff();

inline size_t PaddedDim(size_t dim) { return (dim + kLanes - 1) / kLanes * kLanes; }

size_t AttendScratchFloats(const AttendTask& task) {
  const size_t padded = PaddedDim(task.v_dim);
  return task.k_dim * kTileTokens + kTileTokens * padded +
         task.rows * task.heads * (1 + kTileTokens + padded);
}

inline float FromBf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  __builtin_memcpy(&value, &wide, 4);
  return value;
}

// Four consecutive values as f32.
inline __m128 LoadFour(const float* p) { return _mm_loadu_ps(p); }
inline __m128 LoadFour(const uint16_t* p) {
  const __m128i bits = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), bits));
}
inline float Widen(float value) { return value; }
inline float Widen(uint16_t bits) { return FromBf16(bits); }

// kt[d][t] = K[t][d] for t < count, 0 beyond; in squares of four by four.
template <typename Value>
void TransposeKeys(float* kt, const Value* keys, size_t count, size_t dim) {
  for (size_t t = 0; t < kTileTokens; t += 4) {
    const size_t real = count <= t ? 0 : count - t;
    size_t d = 0;
    for (; d + 4 <= dim; d += 4) {
      __m128 row[4];
      for (size_t i = 0; i < 4; ++i)
        row[i] = i < real ? LoadFour(keys + (t + i) * dim + d) : _mm_setzero_ps();
      _MM_TRANSPOSE4_PS(row[0], row[1], row[2], row[3]);
      for (size_t i = 0; i < 4; ++i) _mm_storeu_ps(kt + (d + i) * kTileTokens + t, row[i]);
    }
    for (; d < dim; ++d) {
      for (size_t i = 0; i < 4; ++i) {
        kt[d * kTileTokens + t + i] = i < real ? Widen(keys[(t + i) * dim + d]) : 0.0f;
      }
    }
  }
}

// The tile of values as f32 rows `*stride` apart: in place if it can be, else copied to vt.
const float* ValueRows(float* vt, const char* values, size_t count, size_t dim, bool is_bf16,
                       size_t* stride) {
  const size_t padded = PaddedDim(dim);
  const float* v32 = reinterpret_cast<const float*>(values);
  *stride = padded;
  if (!is_bf16 && padded == dim) return v32;
  const uint16_t* v16 = reinterpret_cast<const uint16_t*>(values);
  for (size_t t = 0; t < count; ++t) {
    float* row = vt + t * padded;
    if (is_bf16) {
      for (size_t d = 0; d < dim; ++d) row[d] = FromBf16(v16[t * dim + d]);
    } else {
      __builtin_memcpy(row, v32 + t * dim, dim * sizeof(float));
    }
    for (size_t d = dim; d < padded; ++d) row[d] = 0;
  }
  return vt;
}

// scores[r][t] = scale * q[r] . K[t]
template <size_t Rows>
inline void Scores(float (*scores)[kTileTokens], const float* const* q, const float* kt, size_t dim,
                   float scale) {
  Vec sums[Rows][kTileVecs] = {};
  for (size_t d = 0; d < dim; ++d) {
    Vec keys[kTileVecs];
    for (size_t i = 0; i < kTileVecs; ++i) keys[i] = Load(kt + d * kTileTokens + i * kLanes);
    for (size_t r = 0; r < Rows; ++r) {
      const Vec query = Splat(q[r][d]);
      for (size_t i = 0; i < kTileVecs; ++i) sums[r][i] = Fma(query, keys[i], sums[r][i]);
    }
  }
  for (size_t r = 0; r < Rows; ++r) {
    for (size_t i = 0; i < kTileVecs; ++i) Store(scores[r] + i * kLanes, sums[r][i] * scale);
  }
}

// Turns the scores of one row at [first, end) into weights (0 elsewhere), updates its maximum and
// sums, and returns the factor by which its earlier output shrinks.
inline float Weights(float* scores, size_t first, size_t end, float* max, float* sums) {
  for (size_t t = 0; t < first; ++t) scores[t] = kMinusInfinity;
  for (size_t t = end; t < kTileTokens; ++t) scores[t] = kMinusInfinity;
  Vec top = Splat(*max);
  for (size_t i = 0; i < kTileVecs; ++i) top = Max(top, Load(scores + i * kLanes));
  top = MaxOfLanesInAll(top);
  const Vec shrink = Exp(Splat(*max) - top);
  for (size_t i = 0; i < kTileVecs; ++i) {
    const Vec score = Load(scores + i * kLanes);
    const Vec weight = score == kMinusInfinity ? Vec{} : Exp(score - top);
    Store(scores + i * kLanes, weight);
    Store(sums + i * kLanes, Fma(Load(sums + i * kLanes), shrink, weight));
  }
  *max = top[0];
  return shrink[0];
}

template <size_t Vecs>
inline void AddValuesTo(float* out, float shrink, const float* weights, const float* v,
                        size_t stride, size_t first, size_t end) {
  Vec sums[Vecs];
  for (size_t i = 0; i < Vecs; ++i) sums[i] = Load(out + i * kLanes) * shrink;
  for (size_t t = first; t < end; ++t) {
    const Vec weight = Splat(weights[t]);
    for (size_t i = 0; i < Vecs; ++i)
      sums[i] = Fma(weight, Load(v + t * stride + i * kLanes), sums[i]);
  }
  for (size_t i = 0; i < Vecs; ++i) Store(out + i * kLanes, sums[i]);
}

// out = out * shrink + weights[first, end) . V
inline void AddValues(float* out, float shrink, const float* weights, const float* v, size_t stride,
                      size_t first, size_t end) {
  size_t d = 0;
  for (; d + kOutVecs * kLanes <= stride; d += kOutVecs * kLanes) {
    AddValuesTo<kOutVecs>(out + d, shrink, weights, v + d, stride, first, end);
  }
  for (; d < stride; d += kLanes)
    AddValuesTo<1>(out + d, shrink, weights, v + d, stride, first, end);
}

struct AttendState {
  float* kt;
  float* vt;
  float* max;   // [rows * heads]
  float* sums;  // [rows * heads][16]
  float* out;   // [rows * heads][padded]
};

// One tile: `count` keys from `tile_first` (a position) on.
void AttendTile(const AttendTask& task, const AttendState& state, const float* v, size_t stride,
                size_t tile_first, size_t count) {
  const size_t total = task.rows * task.heads;
  for (size_t base = 0; base < total; base += kScoreRows) {
    const size_t group = total - base < kScoreRows ? total - base : kScoreRows;
    const float* q[kScoreRows];
    size_t first[kScoreRows], end[kScoreRows];
    bool is_seen = false;
    for (size_t j = 0; j < kScoreRows; ++j) {
      const size_t index = base + (j < group ? j : 0);
      const size_t row = index / task.heads;
      const size_t position = task.first_position + row;
      const size_t start =
          task.window > 0 && position + 1 > task.window ? position + 1 - task.window : 0;
      first[j] = start > tile_first ? start - tile_first : 0;
      end[j] = position + 1 <= tile_first ? 0 : position + 1 - tile_first;
      if (end[j] > count) end[j] = count;
      q[j] = task.q + row * task.q_stride + (index % task.heads) * task.k_dim;
      is_seen = is_seen || first[j] < end[j];
    }
    if (!is_seen) continue;
    float scores[kScoreRows][kTileTokens];
    if (group == 1) {
      Scores<1>(scores, q, state.kt, task.k_dim, task.scale);
    } else {
      Scores<kScoreRows>(scores, q, state.kt, task.k_dim, task.scale);
    }
    for (size_t j = 0; j < group; ++j) {
      if (first[j] >= end[j]) continue;
      const size_t index = base + j;
      const float shrink =
          Weights(scores[j], first[j], end[j], state.max + index, state.sums + index * kTileTokens);
      AddValues(state.out + index * PaddedDim(task.v_dim), shrink, scores[j], v, stride, first[j],
                end[j]);
    }
  }
}

// Where one tile lies.
struct Tile {
  size_t first;   // position of its first key
  size_t tokens;  // that it has room for
  const char* keys;
  const char* values;
};

// The tile that holds the key at `position`.
Tile TileHolding(const AttendTask& task, size_t position) {
  const size_t block = position / task.block_tokens;
  const size_t in_block = position % task.block_tokens / kTileTokens * kTileTokens;
  const char* page = static_cast<const char*>(task.pages[block]);
  const size_t element = task.is_bf16 ? 2 : 4;
  const size_t rest = task.block_tokens - in_block;
  return {block * task.block_tokens + in_block, rest < kTileTokens ? rest : kTileTokens,
          page + task.k_offset + in_block * task.k_dim * element,
          page + task.v_offset + in_block * task.v_dim * element};
}

// Pages lie anywhere, so the processor cannot guess the next tile. A step that decodes waits for
// little else.
void PrefetchTile(const AttendTask& task, const Tile& tile) {
  const size_t element = task.is_bf16 ? 2 : 4;
  for (size_t i = 0; i < tile.tokens * task.k_dim * element; i += 64)
    __builtin_prefetch(tile.keys + i);
  for (size_t i = 0; i < tile.tokens * task.v_dim * element; i += 64)
    __builtin_prefetch(tile.values + i);
}

void FinishRows(const AttendTask& task, const AttendState& state) {
  for (size_t index = 0; index < task.rows * task.heads; ++index) {
    const float* lanes = state.sums + index * kTileTokens;
    Vec total = Load(lanes);
    for (size_t i = 1; i < kTileVecs; ++i) total += Load(lanes + i * kLanes);
    const float inverse = 1.0f / SumLanes(total);
    const float* from = state.out + index * PaddedDim(task.v_dim);
    float* to = task.o + (index / task.heads) * task.o_stride + (index % task.heads) * task.v_dim;
    for (size_t d = 0; d < task.v_dim; ++d) to[d] = from[d] * inverse;
  }
}

void Attend(const AttendTask& task) {
  const size_t total = task.rows * task.heads;
  const size_t padded = PaddedDim(task.v_dim);
  AttendState state;
  state.kt = task.scratch;
  state.vt = state.kt + task.k_dim * kTileTokens;
  state.out = state.vt + kTileTokens * padded;
  state.sums = state.out + total * padded;
  state.max = state.sums + total * kTileTokens;
  __builtin_memset(state.out, 0, total * (padded + kTileTokens) * sizeof(float));
  for (size_t i = 0; i < total; ++i) state.max[i] = kMinusInfinity;

  const size_t last = task.first_position + task.rows - 1;
  const size_t begin = task.window > 0 && task.first_position + 1 > task.window
                           ? task.first_position + 1 - task.window
                           : 0;
  Tile tile = TileHolding(task, begin);
  while (true) {
    // Beyond `last` nothing was written yet.
    const size_t count = tile.first + tile.tokens > last + 1 ? last + 1 - tile.first : tile.tokens;
    const bool is_final = tile.first + tile.tokens > last;
    const Tile next = is_final ? tile : TileHolding(task, tile.first + tile.tokens);
    if (!is_final) PrefetchTile(task, next);
    if (task.is_bf16) {
      TransposeKeys(state.kt, reinterpret_cast<const uint16_t*>(tile.keys), count, task.k_dim);
    } else {
      TransposeKeys(state.kt, reinterpret_cast<const float*>(tile.keys), count, task.k_dim);
    }
    size_t stride;
    const float* v = ValueRows(state.vt, tile.values, count, task.v_dim, task.is_bf16, &stride);
    AttendTile(task, state, v, stride, tile.first, count);
    if (is_final) break;
    tile = next;
  }
  FinishRows(task, state);
}

}  // namespace
}  // namespace ibid
