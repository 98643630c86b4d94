#include "client/circuit_breaker.h"

#include "gtest/gtest.h"

namespace ibid {
namespace {

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

TEST(CircuitBreakerTest, OpensAfterThatManyFailuresInARow) {
  CircuitBreaker breaker(3, absl::Milliseconds(500));
  EXPECT_FALSE(breaker.OnFailure(kNow));
  EXPECT_FALSE(breaker.OnFailure(kNow));
  EXPECT_TRUE(breaker.is_closed());
  EXPECT_EQ(breaker.probe_at(), absl::InfiniteFuture());
  EXPECT_TRUE(breaker.OnFailure(kNow));
  EXPECT_FALSE(breaker.is_closed());
  EXPECT_EQ(breaker.probe_at(), kNow + absl::Milliseconds(500));
}

TEST(CircuitBreakerTest, ASuccessBetweenFailuresStartsTheCountAgain) {
  CircuitBreaker breaker(2, absl::Milliseconds(500));
  for (int i = 0; i < 10; ++i) {
    breaker.OnFailure(kNow);
    breaker.OnSuccess();
  }
  EXPECT_TRUE(breaker.is_closed());
}

TEST(CircuitBreakerTest, AFailedProbeKeepsItOpenAndASuccessfulOneClosesIt) {
  CircuitBreaker breaker(1, absl::Milliseconds(500));
  EXPECT_TRUE(breaker.OnFailure(kNow));
  EXPECT_FALSE(breaker.OnFailure(kNow + absl::Seconds(1))) << "it was open already";
  EXPECT_EQ(breaker.probe_at(), kNow + absl::Milliseconds(1'500));
  breaker.OnSuccess();
  EXPECT_TRUE(breaker.is_closed());
}

TEST(BackoffDelayTest, DoublesUpToTheMaximum) {
  const absl::Duration min = absl::Milliseconds(50), max = absl::Seconds(1);
  EXPECT_EQ(BackoffDelay(0, min, max, 0.0), absl::Milliseconds(25));
  EXPECT_EQ(BackoffDelay(1, min, max, 0.0), absl::Milliseconds(50));
  EXPECT_EQ(BackoffDelay(4, min, max, 0.0), absl::Milliseconds(400));
  EXPECT_EQ(BackoffDelay(5, min, max, 0.0), absl::Milliseconds(500));
  EXPECT_EQ(BackoffDelay(4'000'000'000u, min, max, 0.0), absl::Milliseconds(500));
}

TEST(BackoffDelayTest, JitterSpreadsOverTheUpperHalf) {
  const absl::Duration min = absl::Milliseconds(100), max = absl::Seconds(1);
  EXPECT_EQ(BackoffDelay(0, min, max, 0.5), absl::Milliseconds(75));
  EXPECT_LT(BackoffDelay(0, min, max, 0.999), absl::Milliseconds(100));
}

}  // namespace
}  // namespace ibid
