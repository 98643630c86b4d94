#include "core/hyper_log_log.h"

#include <bit>
#include <cmath>
#include <limits>

namespace ibid {
namespace {

// The two functions of the paper, by their series (its equations 17 and 22).
double Sigma(double x) {
  if (x == 1) return std::numeric_limits<double>::infinity();
  double sum = x, before = -1;
  for (double weight = 1; sum != before; weight += weight) {
    x *= x;
    before = sum;
    sum += x * weight;
  }
  return sum;
}

double Tau(double x) {
  if (x == 0 || x == 1) return 0;
  double sum = 1 - x, before = -1;
  for (double weight = 0.5; sum != before; weight *= 0.5) {
    x = std::sqrt(x);
    before = sum;
    sum -= (1 - x) * (1 - x) * weight;
  }
  return sum / 3;
}

}  // namespace

void HyperLogLog::Add(uint64_t hash) {
  std::atomic<uint8_t>& reg = registers_[hash >> (64 - kIndexBits)];
  // The rest of the hash, with a one behind it so that its zeros end.
  const uint64_t rest = hash << kIndexBits | uint64_t{1} << (kIndexBits - 1);
  const auto rank = static_cast<uint8_t>(std::countl_zero(rest) + 1);
  uint8_t seen = reg.load(std::memory_order_relaxed);
  while (rank > seen && !reg.compare_exchange_weak(seen, rank, std::memory_order_relaxed)) {
  }
}

double HyperLogLog::Estimate() const {
  std::array<uint32_t, kRankMax + 1> counts{};
  for (const auto& reg : registers_) ++counts[reg.load(std::memory_order_relaxed)];
  constexpr double kCount = kRegistersCount;
  double z = kCount * Tau(1 - counts[kRankMax] / kCount);
  for (int rank = kRankMax - 1; rank >= 1; --rank) z = 0.5 * (z + counts[rank]);
  z += kCount * Sigma(counts[0] / kCount);
  return kCount * kCount / (2 * std::log(2.0) * z);
}

}  // namespace ibid
