#include "cache_server/disk_work_queue.h"

#include <algorithm>
#include <utility>

#include "core/clock.h"

namespace ibid {

bool DiskWorkQueue::PushWrite(DiskWrite&& write) {
  const size_t room = write.durable_done ? 2 * writes_max_ : writes_max_;
  {
    MutexLock lock(mutex_);
    if (is_closed_ || writes_.size() >= room) return false;
    writes_.push_back(std::move(write));
    UpdateRoom();
  }
  has_work_.NotifyOne();
  return true;
}

void DiskWorkQueue::PushRemoval(const DiskRemoval& removal) {
  {
    MutexLock lock(mutex_);
    removals_.push_back(removal);
  }
  has_work_.NotifyOne();
}

bool DiskWorkQueue::HasWork(bool with_removals) const {
  return !is_paused_ && (!writes_.empty() || (with_removals && !removals_.empty()));
}

DiskWork DiskWorkQueue::Take(size_t writes_max, bool with_removals, absl::Duration timeout) {
  MutexLock lock(mutex_);
  while (!HasWork(with_removals) && !is_closed_) {
    if (!has_work_.WaitFor(mutex_, timeout)) break;
  }
  DiskWork work;
  if (!HasWork(with_removals)) return work;
  if (with_removals) {
    work.removals = std::move(removals_);
    removals_.clear();
    taken_removals_ = work.removals.size();
  }
  while (!writes_.empty() && work.writes.size() < writes_max) {
    work.writes.push_back(std::move(writes_.front()));
    writes_.pop_front();
  }
  UpdateRoom();
  taken_writes_ = work.writes.size();
  is_taken_ = true;
  ++taken_count_;
  return work;
}

void DiskWorkQueue::Done() {
  {
    MutexLock lock(mutex_);
    taken_writes_ = 0;
    taken_removals_ = 0;
    is_taken_ = false;
  }
  idle_.NotifyAll();
}

void DiskWorkQueue::Pause(bool is_paused) {
  {
    MutexLock lock(mutex_);
    is_paused_ = is_paused;
  }
  has_work_.NotifyAll();
  idle_.NotifyAll();
}

bool DiskWorkQueue::is_paused() const {
  MutexLock lock(mutex_);
  return is_paused_;
}

void DiskWorkQueue::Close() {
  {
    MutexLock lock(mutex_);
    is_closed_ = true;
    UpdateRoom();
  }
  has_work_.NotifyAll();
}

bool DiskWorkQueue::is_closed() const {
  MutexLock lock(mutex_);
  return is_closed_;
}

template <typename Condition>
bool DiskWorkQueue::WaitUntil(const Condition& condition, absl::Duration timeout) {
  const SteadyClock clock;
  const absl::Time until = clock.Now() + timeout;
  while (!condition()) {
    const absl::Duration left = until - clock.Now();
    if (left <= absl::ZeroDuration()) return false;
    idle_.WaitFor(mutex_, left);
  }
  return true;
}

bool DiskWorkQueue::WaitUntilIdle(absl::Duration timeout) {
  MutexLock lock(mutex_);
  return WaitUntil([this]() IBID_REQUIRES(mutex_) { return is_idle(); }, timeout);
}

bool DiskWorkQueue::WaitForRemovals(absl::Duration timeout) {
  MutexLock lock(mutex_);
  const uint64_t taken_now = taken_count_;
  return WaitUntil(
      [this, taken_now]() IBID_REQUIRES(mutex_) {
        const bool is_done = !is_taken_ || taken_count_ > taken_now;
        return is_done && removals_.empty() && taken_removals_ == 0;
      },
      timeout);
}

DiskWork DiskWorkQueue::TakeRest() {
  MutexLock lock(mutex_);
  DiskWork work;
  work.removals = std::move(removals_);
  work.writes.assign(std::make_move_iterator(writes_.begin()),
                     std::make_move_iterator(writes_.end()));
  removals_.clear();
  writes_.clear();
  return work;
}

std::vector<DiskWrite> DiskWorkQueue::TakeDurableWrites() {
  MutexLock lock(mutex_);
  const auto first = std::stable_partition(
      writes_.begin(), writes_.end(), [](const DiskWrite& write) { return !write.durable_done; });
  std::vector<DiskWrite> durable(std::make_move_iterator(first),
                                 std::make_move_iterator(writes_.end()));
  writes_.erase(first, writes_.end());
  UpdateRoom();
  return durable;
}

size_t DiskWorkQueue::writes_count() const {
  MutexLock lock(mutex_);
  return writes_.size() + taken_writes_;
}

}  // namespace ibid
