// The 16-bit floats of checkpoints, widened to f32 exactly.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace ibid {

inline float FloatOfBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float FloatOfBf16(uint16_t bits) { return FloatOfBits(static_cast<uint32_t>(bits) << 16); }

// IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits.
inline float FloatOfF16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0x1f) return FloatOfBits(sign | 0x7f800000u | fraction << 13);  // infinity, NaN
  if (exponent == 0) {
    const float tiny = std::ldexp(static_cast<float>(fraction), -24);  // zero, subnormal
    return sign != 0 ? -tiny : tiny;
  }
  return FloatOfBits(sign | (exponent + 112) << 23 | fraction << 13);
}

}  // namespace ibid
