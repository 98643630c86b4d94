#include "core/hyper_log_log.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace ibid {
namespace {

TEST(HyperLogLogTest, OfNothingThereIsNothing) {
  EXPECT_EQ(std::make_unique<HyperLogLog>()->Estimate(), 0);
}

TEST(HyperLogLogTest, RepetitionsChangeNothing) {
  const auto sketch = std::make_unique<HyperLogLog>();
  std::mt19937_64 random(1);
  std::vector<uint64_t> hashes(1'000);
  for (uint64_t& hash : hashes) hash = random();
  for (const uint64_t hash : hashes) sketch->Add(hash);
  const double once = sketch->Estimate();
  for (int i = 0; i < 10; ++i) {
    for (const uint64_t hash : hashes) sketch->Add(hash);
  }
  EXPECT_EQ(sketch->Estimate(), once);
}

// The standard error of 2^14 registers is 1.04 / sqrt(2^14) = 0.81%: of all sizes, also where older
// estimators changed their formula (2.5 and 5 times the registers) and were off by percents.
TEST(HyperLogLogTest, TheErrorIsThatOfTheTheoryForAllSizes) {
  constexpr int kRuns = 40;
  constexpr double kStandardError = 0.0081;
  for (const int size : {10, 300, 5'000, 20'000, 41'000, 60'000, 82'000, 300'000}) {
    double sum = 0, squares = 0;
    for (int run = 0; run < kRuns; ++run) {
      std::mt19937_64 random(static_cast<uint64_t>(size) * 1'000 + static_cast<uint64_t>(run));
      const auto sketch = std::make_unique<HyperLogLog>();
      for (int i = 0; i < size; ++i) sketch->Add(random());
      const double error = sketch->Estimate() / size - 1;
      sum += error;
      squares += error * error;
      EXPECT_LT(std::abs(error), 5 * kStandardError) << size;
    }
    EXPECT_LT(std::sqrt(squares / kRuns), 1.5 * kStandardError) << size;
    EXPECT_LT(std::abs(sum / kRuns), 4 * kStandardError / std::sqrt(kRuns)) << "a bias at " << size;
  }
}

TEST(HyperLogLogTest, ThreadsMayAddAtTheSameTime) {
  const auto sketch = std::make_unique<HyperLogLog>();
  const auto alone = std::make_unique<HyperLogLog>();
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&sketch, t] {
      std::mt19937_64 random(t);
      for (int i = 0; i < 20'000; ++i) sketch->Add(random());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint64_t t = 0; t < 4; ++t) {
    std::mt19937_64 random(t);
    for (int i = 0; i < 20'000; ++i) alone->Add(random());
  }
  EXPECT_EQ(sketch->Estimate(), alone->Estimate());
}

}  // namespace
}  // namespace ibid
