// Invariants, under mutex_:
// - standing_ has every wait that was admitted and is not forgotten.
// - A parked wait is named in by_entry_ under its entry and in by_end_; one that is woken or in
// hand in neither.
#include "cache_server/match_waits.h"

#include <pthread.h>

#include <algorithm>

#include "core/check.h"

namespace ibid {

void MatchWaits::Start(Resume resume) {
  resume_ = std::move(resume);
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "ibid-match-wait");
}

void MatchWaits::Stop() {
  {
    MutexLock lock(mutex_);
    is_ended_ = true;
    is_stopping_ = true;
    std::vector<uint64_t> ids;
    for (auto& [id, wait] : standing_) {
      wait.is_cancelled = true;
      ids.push_back(id);
    }
    for (const uint64_t id : ids) WakeOne(id, Wake::kCancelled);
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

bool MatchWaits::Admit(MatchWait* wait) {
  MutexLock lock(mutex_);
  const size_t keys = wait->keys_count();
  if (is_ended_ || standing_.size() >= waits_max_ || keys_count_ + keys > keys_max_) return false;
  keys_count_ += keys;
  wait->id = ++last_id_;
  wait->until = clock_.Now() + wait->options.wait_pending;
  standing_[wait->id].until = wait->until;
  return true;
}

void MatchWaits::Park(EntryId entry, std::unique_ptr<MatchWait> wait) {
  MutexLock lock(mutex_);
  const uint64_t id = wait->id;
  const auto it = standing_.find(id);
  IBID_CHECK(it != standing_.end()) << "wait " << id << " is not admitted";
  Standing& standing = it->second;
  standing.parked = std::move(wait);
  standing.entry = entry;
  by_entry_[entry].push_back(id);
  by_end_.insert({standing.until, id});
  if (standing.is_cancelled || is_stopping_) {
    WakeOne(id, Wake::kCancelled);
  } else if (is_ended_) {
    WakeOne(id, Wake::kOver);
  } else if (by_end_.begin()->second == id) {
    changed_.NotifyAll();  // the thread sleeps until a later end
  }
}

// Nothing when the wait is not parked.
void MatchWaits::WakeOne(uint64_t id, Wake wake) {
  const auto it = standing_.find(id);
  if (it == standing_.end() || it->second.parked == nullptr) return;
  Standing& standing = it->second;
  by_end_.erase({standing.until, id});
  const auto at_entry = by_entry_.find(standing.entry);
  std::erase(at_entry->second, id);
  if (at_entry->second.empty()) by_entry_.erase(at_entry);
  woken_.emplace_back(std::move(standing.parked), wake);
  standing.entry = kNoEntry;
  changed_.NotifyAll();
}

void MatchWaits::WakeEntry(EntryId entry) {
  MutexLock lock(mutex_);
  const auto it = by_entry_.find(entry);
  if (it == by_entry_.end()) return;
  const std::vector<uint64_t> ids = std::move(it->second);
  by_entry_.erase(it);
  for (const uint64_t id : ids) {
    Standing& standing = standing_[id];
    by_end_.erase({standing.until, id});
    woken_.emplace_back(std::move(standing.parked), Wake::kSettled);
    standing.entry = kNoEntry;
  }
  changed_.NotifyAll();
}

void MatchWaits::Cancel(uint64_t id) {
  MutexLock lock(mutex_);
  const auto it = standing_.find(id);
  if (it == standing_.end()) return;
  it->second.is_cancelled = true;
  WakeOne(id, Wake::kCancelled);
}

void MatchWaits::EndAll() {
  MutexLock lock(mutex_);
  is_ended_ = true;
  while (!by_end_.empty()) WakeOne(by_end_.begin()->second, Wake::kOver);
}

void MatchWaits::Forget(const MatchWait& wait) {
  MutexLock lock(mutex_);
  IBID_CHECK(standing_.erase(wait.id) == 1) << "wait " << wait.id;
  keys_count_ -= wait.keys_count();
  if (is_stopping_) changed_.NotifyAll();
}

size_t MatchWaits::count() const {
  MutexLock lock(mutex_);
  return standing_.size();
}

void MatchWaits::Run() {
  while (true) {
    std::deque<std::pair<std::unique_ptr<MatchWait>, Wake>> woken;
    {
      MutexLock lock(mutex_);
      const absl::Time now = clock_.Now();
      while (!by_end_.empty() && by_end_.begin()->first <= now) {
        WakeOne(by_end_.begin()->second, Wake::kOver);
      }
      if (woken_.empty()) {
        if (is_stopping_ && standing_.empty()) return;
        const absl::Time end = by_end_.empty() ? absl::InfiniteFuture() : by_end_.begin()->first;
        changed_.WaitFor(mutex_, end - now);
        continue;
      }
      woken = std::exchange(woken_, {});
      for (auto& [wait, wake] : woken) {
        if (standing_[wait->id].is_cancelled) wake = Wake::kCancelled;
      }
    }
    for (auto& [wait, wake] : woken) resume_(std::move(wait), wake);
  }
}

}  // namespace ibid
