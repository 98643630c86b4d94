// Matrices of random numbers.
#pragma once

#include <random>
#include <vector>

#include "worker/backend/backend.h"

namespace ibid::testing {

class Matrix {
 public:
  Matrix(size_t rows, size_t columns, unsigned seed = 0, float spread = 1)
      : rows_(rows), columns_(columns), values_(rows * columns) {
    if (seed == 0) return;
    std::mt19937 chance(seed);
    std::normal_distribution<float> normal(0, spread);
    for (float& value : values_) value = normal(chance);
  }
  operator In() const { return {values_.data(), rows_, columns_, columns_}; }
  operator Out() { return {values_.data(), rows_, columns_, columns_}; }
  In Rows(size_t first, size_t count) const {
    return {values_.data() + first * columns_, count, columns_, columns_};
  }
  std::vector<float>& values() { return values_; }
  const std::vector<float>& values() const { return values_; }

 private:
  size_t rows_, columns_;
  std::vector<float> values_;
};

}  // namespace ibid::testing
