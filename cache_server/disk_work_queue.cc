#include "cache_server/disk_work_queue.h"

#include <utility>

namespace ibid {

bool DiskWorkQueue::PushWrite(DiskWrite&& write, bool is_urgent) {
  {
    MutexLock lock(mutex_);
    if (is_closed_ || (!is_urgent && writes_.size() >= writes_max_)) return false;
    writes_.push_back(std::move(write));
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
  }
  while (!writes_.empty() && work.writes.size() < writes_max) {
    work.writes.push_back(std::move(writes_.front()));
    writes_.pop_front();
  }
  taken_writes_ = work.writes.size();
  is_taken_ = true;
  return work;
}

void DiskWorkQueue::Done() {
  {
    MutexLock lock(mutex_);
    taken_writes_ = 0;
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
}

void DiskWorkQueue::Close() {
  {
    MutexLock lock(mutex_);
    is_closed_ = true;
  }
  has_work_.NotifyAll();
}

bool DiskWorkQueue::is_closed() const {
  MutexLock lock(mutex_);
  return is_closed_;
}

bool DiskWorkQueue::WaitUntilIdle(absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  MutexLock lock(mutex_);
  while (!is_idle()) {
    const absl::Duration left = until - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    idle_.WaitFor(mutex_, left);
  }
  return true;
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

size_t DiskWorkQueue::writes_count() const {
  MutexLock lock(mutex_);
  return writes_.size() + taken_writes_;
}

}  // namespace ibid
