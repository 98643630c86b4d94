#include "cache_server/disk_health.h"

#include <gtest/gtest.h>

namespace ibid {
namespace {

TEST(DiskHealth, OneWriteErrorMakesItReadOnlyUntilAWriteWorks) {
  DiskHealth health;
  absl::Time now = absl::UnixEpoch();
  health.OnWrite(absl::ResourceExhaustedError("no space"), now);
  EXPECT_EQ(health.text(), "read-only: no space");
  EXPECT_TRUE(health.is_readable());
  EXPECT_FALSE(health.CanWrite(now)) << "the backoff is not over";
  now += absl::Milliseconds(100);
  EXPECT_TRUE(health.is_trial_due(now));
  EXPECT_TRUE(health.CanWrite(now));
  EXPECT_FALSE(health.CanWrite(now)) << "one trial at a time";
  health.OnWrite(absl::OkStatus(), now);
  EXPECT_EQ(health.text(), "ok");
}

TEST(DiskHealth, BackoffDoublesUpToHalfAMinute) {
  DiskHealth health;
  absl::Time now = absl::UnixEpoch();
  absl::Duration last = absl::ZeroDuration();
  for (int i = 0; i < 20; ++i) {
    health.OnWrite(absl::UnavailableError("EIO"), now);
    const absl::Time broken_at = now;
    while (!health.CanWrite(now)) now += absl::Milliseconds(50);
    EXPECT_GE(now - broken_at, last);
    last = now - broken_at;
  }
  EXPECT_EQ(last, absl::Seconds(30));
}

TEST(DiskHealth, SomeBadBlocksDoNotTakeItDownManyInARowDo) {
  DiskHealth health;
  const absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 7; ++i) health.OnRead(absl::UnavailableError("EIO"), now);
  health.OnRead(absl::OkStatus(), now);
  for (int i = 0; i < 7; ++i) health.OnRead(absl::UnavailableError("EIO"), now);
  EXPECT_TRUE(health.is_readable());
  health.OnRead(absl::UnavailableError("EIO"), now);
  EXPECT_FALSE(health.is_readable());
  EXPECT_EQ(health.text(), "down: EIO");
  EXPECT_FALSE(health.CanRead(now));
  EXPECT_TRUE(health.CanRead(now + absl::Seconds(1)));
}

}  // namespace
}  // namespace ibid
