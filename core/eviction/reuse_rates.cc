#include "core/eviction/reuse_rates.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ibid {
namespace {

// Weight of what is assumed before anything was seen: of one class and age, of a class, of all.
constexpr double kCellPrior = 50;
constexpr double kClassPrior = 200;
constexpr double kReusePrior = 0.3;
constexpr double kReusePriorWeight = 200;
// The assumed shape of the hazard over all classes: beta / (age + kAgeScale).
constexpr double kAgeScale = 2000;
// Ages begin at 0, 8, 16, 32, ...
constexpr double kSecondAgeBegin = 8;

double MiddleOf(int age) {
  const double begin = ReuseRates::BeginOf(age);
  return age + 1 < ReuseRates::kAgesCount ? (begin + ReuseRates::BeginOf(age + 1)) / 2
                                          : begin * 1.5;
}

}  // namespace

ReuseRates::ReuseRates() { Refresh(0); }

double ReuseRates::BeginOf(int age) {
  if (age == 0) return 0;
  if (age >= kAgesCount) return std::numeric_limits<double>::infinity();
  return std::ldexp(kSecondAgeBegin, age - 1);
}

void ReuseRates::CountReuse(int block_class, int age, double weight) {
  cells_[block_class][age].reuses += weight;
}

void ReuseRates::Enter(int block_class, int age, double weight, double now) {
  Cell& cell = cells_[block_class][age];
  cell.weight += weight;
  cell.entered += weight * now;
}

void ReuseRates::Leave(int block_class, int age, double weight, double entered_at, double now) {
  Cell& cell = cells_[block_class][age];
  cell.exposure += weight * (now - entered_at);
  cell.weight -= weight;
  cell.entered -= weight * entered_at;
}

void ReuseRates::Decay(double elapsed, double half_life) {
  const double kept = std::exp2(-elapsed / half_life);
  for (auto& cells : cells_) {
    for (Cell& cell : cells) {
      cell.reuses *= kept;
      cell.exposure *= kept;
    }
  }
}

std::array<double, ReuseRates::kAgesCount> ReuseRates::PooledHazard(double now) const {
  std::array<double, kAgesCount> reuses{}, exposure{}, pooled{};
  double all_reuses = kReusePrior * kReusePriorWeight, expected = kReusePriorWeight;
  for (int age = 0; age < kAgesCount; ++age) {
    for (const auto& cells : cells_) {
      reuses[age] += cells[age].reuses;
      exposure[age] += cells[age].ExposureAt(now);
    }
    all_reuses += reuses[age];
    expected += exposure[age] / (MiddleOf(age) + kAgeScale);
  }
  const double beta = all_reuses / expected;
  for (int age = 0; age < kAgesCount; ++age) {
    const double assumed = beta / (MiddleOf(age) + kAgeScale);
    pooled[age] = (reuses[age] + kCellPrior) / (exposure[age] + kCellPrior / assumed);
  }
  return pooled;
}

void ReuseRates::Refresh(double now) {
  const std::array<double, kAgesCount> pooled = PooledHazard(now);
  for (int c = 0; c < kClassesCount; ++c) {
    double reuses = kClassPrior, expected = kClassPrior;
    for (int age = 0; age < kAgesCount; ++age) {
      reuses += cells_[c][age].reuses;
      expected += cells_[c][age].ExposureAt(now) * pooled[age];
    }
    for (int age = 0; age < kAgesCount; ++age) {
      const double assumed = reuses / expected * pooled[age];
      hazard_[c][age] = (cells_[c][age].reuses + kCellPrior) /
                        (cells_[c][age].ExposureAt(now) + kCellPrior / assumed);
    }
    ComputeIndex(c);
  }
}

// With a constant hazard h over a time d: P = 1 - exp(-h d), E(held) = P / h.
void ReuseRates::ComputeIndex(int block_class) {
  for (int age = 0; age < kAgesCount; ++age) {
    double alive = 1, used = 0, held = 0, best = 0;
    for (int j = age; j < kAgesCount; ++j) {
      const double h = hazard_[block_class][j];
      const double width = j == age ? BeginOf(j + 1) - MiddleOf(j) : BeginOf(j + 1) - BeginOf(j);
      const double p = std::isinf(width) ? 1 : -std::expm1(-h * width);
      used += alive * p;
      held += alive * p / h;
      alive *= 1 - p;
      best = std::max(best, used / held);
    }
    index_[block_class][age] = best;
  }
}

}  // namespace ibid
