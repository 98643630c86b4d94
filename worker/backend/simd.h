// Vectors of f32 in the widest registers of the instruction set that a kernels_*.cc is compiled
// for.
//
// Included only by kernels_body.h. Everything has internal linkage and no standard header with
// inline functions is included: code compiled here for a newer processor must never be picked by
// the linker for use on an older one. Contraction is off in these files (-ffp-contract=off): a
// product is fused with a sum exactly where Fma says so.
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr const char* kIsaName = "avx512";
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kLanes = 8;
constexpr const char* kIsaName = "avx2";
#else
constexpr int kLanes = 4;
constexpr const char* kIsaName = "sse2";
#endif

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t IntVec __attribute__((vector_size(kLanes * 4)));
typedef float VecAnywhere __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

inline Vec Load(const float* p) { return *reinterpret_cast<const VecAnywhere*>(p); }
inline void Store(float* p, Vec v) { *reinterpret_cast<VecAnywhere*>(p) = v; }
inline Vec Splat(float x) {
#if defined(__AVX512F__)
  return _mm512_set1_ps(x);
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_set1_ps(x);
#else
  return _mm_set1_ps(x);
#endif
}

// The first `count` < kLanes values; zero in the other lanes.
inline Vec LoadPart(const float* p, size_t count) {
  Vec v = {};
  for (size_t i = 0; i < count; ++i) v[i] = p[i];
  return v;
}
inline void StorePart(float* p, Vec v, size_t count) {
  for (size_t i = 0; i < count; ++i) p[i] = v[i];
}

inline Vec Fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

inline Vec Max(Vec a, Vec b) { return a > b ? a : b; }
inline Vec Min(Vec a, Vec b) { return a < b ? a : b; }

// Sum and maximum over the lanes, halves first; the order is the same for every width.
inline float SumLanes(Vec v) {
  float lanes[kLanes];
  Store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

inline Vec MaxOfLanesInAll(Vec v) {
#if defined(__AVX512F__)
  v = Max(v, Vec(_mm512_shuffle_f32x4(v, v, 0x4e)));
  v = Max(v, Vec(_mm512_shuffle_f32x4(v, v, 0xb1)));
  v = Max(v, Vec(_mm512_permute_ps(v, 0x4e)));
  return Max(v, Vec(_mm512_permute_ps(v, 0xb1)));
#elif defined(__AVX2__)
  v = Max(v, Vec(_mm256_permute2f128_ps(v, v, 1)));
  v = Max(v, Vec(_mm256_permute_ps(v, 0x4e)));
  return Max(v, Vec(_mm256_permute_ps(v, 0xb1)));
#else
  v = Max(v, Vec(_mm_shuffle_ps(v, v, 0x4e)));
  return Max(v, Vec(_mm_shuffle_ps(v, v, 0xb1)));
#endif
}

// e^x to 2 units in the last place for x in [-87, 88]; arguments beyond are taken as the nearest of
// these. 2^n * e^r with n = round(x / ln 2), |r| <= ln 2 / 2, and the Taylor series of e^r to
// degree 7 (rest below 6e-9).
inline Vec Exp(Vec x) {
  x = Min(Max(x, Splat(-87.0f)), Splat(88.0f));
  const Vec shift = Splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec n = Fma(x, Splat(1.44269504088896341f), shift) - shift;
  Vec r = Fma(n, Splat(-0.693145751953125f), x);      // ln 2, high part: exact products
  r = Fma(n, Splat(-1.42860682030941723212e-6f), r);  // ln 2, low part
  Vec p = Splat(1.0f / 5040);
  p = Fma(p, r, Splat(1.0f / 720));
  p = Fma(p, r, Splat(1.0f / 120));
  p = Fma(p, r, Splat(1.0f / 24));
  p = Fma(p, r, Splat(1.0f / 6));
  p = Fma(p, r, Splat(0.5f));
  p = Fma(p, r, Splat(1.0f));
  p = Fma(p, r, Splat(1.0f));
  const IntVec exponent = (__builtin_convertvector(n, IntVec) + 127) << 23;
  return p * (Vec)exponent;  // the same bits
}

}  // namespace
