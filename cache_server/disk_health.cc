#include "cache_server/disk_health.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ibid {
namespace {

constexpr absl::Duration kBackoffMin = absl::Milliseconds(100);
constexpr absl::Duration kBackoffMax = absl::Seconds(30);
constexpr int kWriteErrorsMax = 1;
// A single bad block must not take the tier down.
constexpr int kReadErrorsMax = 8;

}  // namespace

bool DiskHealth::Try(Side& side, absl::Time now) {
  if (!side.is_broken) return true;
  if (now < side.retry_at) return false;
  // Only this caller tries; the others wait for another backoff.
  side.retry_at = now + side.backoff;
  return true;
}

void DiskHealth::Record(Side& side, int errors_max, const absl::Status& result, absl::Time now) {
  if (result.ok()) {
    side = Side{};
    return;
  }
  side.error = std::string(result.message());
  if (++side.errors_in_a_row < errors_max) return;
  side.is_broken = true;
  side.backoff = std::clamp(side.backoff * 2, kBackoffMin, kBackoffMax);
  side.retry_at = now + side.backoff;
}

bool DiskHealth::CanWrite(absl::Time now) {
  MutexLock lock(mutex_);
  return Try(write_, now);
}

bool DiskHealth::CanRead(absl::Time now) {
  MutexLock lock(mutex_);
  return Try(read_, now);
}

bool DiskHealth::is_readable() const {
  MutexLock lock(mutex_);
  return !read_.is_broken;
}

bool DiskHealth::is_writable() const {
  MutexLock lock(mutex_);
  return !write_.is_broken;
}

bool DiskHealth::is_trial_due(absl::Time now) const {
  MutexLock lock(mutex_);
  return (write_.is_broken && now >= write_.retry_at) || (read_.is_broken && now >= read_.retry_at);
}

void DiskHealth::OnWrite(const absl::Status& result, absl::Time now) {
  MutexLock lock(mutex_);
  Record(write_, kWriteErrorsMax, result, now);
}

void DiskHealth::OnRead(const absl::Status& result, absl::Time now) {
  MutexLock lock(mutex_);
  Record(read_, kReadErrorsMax, result, now);
}

std::string DiskHealth::text() const {
  MutexLock lock(mutex_);
  if (read_.is_broken) return absl::StrCat("down: ", read_.error);
  if (write_.is_broken) return absl::StrCat("read-only: ", write_.error);
  return "ok";
}

}  // namespace ibid
