// Invariants, under mutex_:
// - Recording <=> ring_ has events_max_ places. Event n, if it is kept, stands at n % events_max_.
// - Kept are [oldest(), next_); first_ <= oldest(). While nothing is recorded first_ == next_.
// - names_ has every namespace that a kept event is of, and may have others that are open.
#include "cache_server/event_log.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/clock.h"
#include "core/limit.h"

namespace ibid {

absl::string_view NameOf(TierName tier) {
  switch (tier) {
    case TierName::kHost:
      return "host";
    case TierName::kDisk:
      return "disk";
    case TierName::kGpu:
      return "gpu";
  }
  return "";
}

TierSet TiersOf(const IndexEntry& entry) {
  TierSet tiers;
  if (entry.is_in_host()) tiers.Add(TierName::kHost);
  if (entry.is_on_disk()) tiers.Add(TierName::kDisk);
  if (entry.is_in_gpu()) tiers.Add(TierName::kGpu);
  return tiers;
}

EventLog::EventLog(uint32_t events_max, uint32_t watchers_max, MetricsRegistry* metrics)
    : events_max_(events_max), watchers_max_(watchers_max) {
  if (metrics == nullptr) return;
  for (const BlockChange change : {BlockChange::kStored, BlockChange::kPromoted,
                                   BlockChange::kDemoted, BlockChange::kRemoved}) {
    events_count_[static_cast<size_t>(change)].Export(
        &MakeCounter(*metrics, "ibid_store_events_total", "Changes of blocks told to the event log",
                     {{"change", std::string(NameOf(change))}}));
  }
  cut_offs_.Export(&MakeCounter(*metrics, "ibid_store_watchers_cut_off_total",
                                "Watchers that fell too far behind"));
  watchers_gauge_ = &MakeGauge(*metrics, "ibid_store_watchers", "Watchers of block events");
}

uint64_t EventLog::oldest() const {
  return next_ - first_ > events_max_ ? next_ - events_max_ : first_;
}

void EventLog::Append(const IndexEntry& entry, BlockChange change, TierName tier, TierSet tiers,
                      const NamespaceInfo* ns, const BlockKey* parent) {
  {
    MutexLock lock(mutex_);
    if (ring_.empty()) return;
    LoggedEvent& event = ring_[next_ % events_max_];
    event.key = entry.key;
    event.has_parent = parent != nullptr;
    if (parent != nullptr) event.parent = *parent;
    event.ns = entry.ns;
    event.position = entry.details().position;
    event.token_count = entry.details().token_count;
    event.change = change;
    event.tier = tier;
    event.tiers = tiers;
    const auto name =
        ns == nullptr ? names_.find(entry.ns) : names_.try_emplace(entry.ns, Name{ns->id}).first;
    if (name != names_.end()) name->second.last_sequence = next_;
    ++next_;
    if (is_awaited_) {
      is_awaited_ = false;
      came_.NotifyAll();
    }
  }
  events_count_[static_cast<size_t>(change)].Add();
}

void EventLog::TellDropped(const IndexEntry& entry, TierSet had) {
  if (had.is_empty() || !is_recording_.load(std::memory_order_acquire)) return;
  TierName slowest = TierName::kHost;
  for (const TierName tier : kTiersByScale) {
    if (had.Has(tier)) slowest = tier;
  }
  Append(entry, BlockChange::kRemoved, slowest, TierSet(), nullptr, nullptr);
}

absl::StatusOr<EventLog::Start> EventLog::AddWatcher(std::optional<uint64_t> resume,
                                                     const NamespaceTable& all) {
  std::vector<LoggedEvent> ring;
  if (!is_recording_.load(std::memory_order_acquire)) ring.resize(events_max_);
  Start start;
  {
    MutexLock lock(mutex_);
    if (watchers_count_ >= watchers_max_) {
      return LimitReached("Watch: too many watchers", "watchers_max", watchers_max_);
    }
    if (ring_.empty()) {
      if (ring.empty()) ring.resize(events_max_);  // recording ended a moment ago
      ring_.swap(ring);
      if (next_ > 1) ++next_;  // nobody can go on from before
      first_ = next_;
      is_recording_.store(true, std::memory_order_release);
    }
    ++watchers_count_;
    if (watchers_gauge_ != nullptr) watchers_gauge_->Set(watchers_count_);
    start.is_resumed = resume.has_value() && *resume < next_ && *resume + 1 >= oldest();
    start.sequence = start.is_resumed ? *resume : next_ - 1;
  }
  // Namespaces that are new from here on come with their first block.
  for (const NamespacePtr& ns : all.All()) {
    MutexLock lock(mutex_);
    names_.try_emplace(ns->number, Name{ns->id});
  }
  return start;
}

void EventLog::RemoveWatcher() {
  MutexLock lock(mutex_);
  IBID_CHECK(watchers_count_ > 0);
  --watchers_count_;
  left_at_ = next_;
  if (watchers_gauge_ != nullptr) watchers_gauge_->Set(watchers_count_);
}

bool EventLog::Read(uint64_t* sequence, size_t count, std::vector<BlockEvent>* events) {
  events->reserve(events->size() + count);  // nothing is allocated while publishers wait
  MutexLock lock(mutex_);
  if (*sequence + 1 < oldest()) return false;
  const uint64_t end = std::min(next_, *sequence + 1 + count);
  auto name = names_.end();  // of the event before
  for (uint64_t n = *sequence + 1; n < end; ++n) {
    const LoggedEvent& logged = ring_[n % events_max_];
    if (name == names_.end() || name->first != logged.ns) name = names_.find(logged.ns);
    if (name == names_.end()) continue;  // closed before anybody could hear of it
    BlockEvent& event = events->emplace_back();
    event.sequence = n;
    event.change = logged.change;
    event.tier = logged.tier;
    event.tiers = logged.tiers;
    event.ns = name->second.id;
    event.key = logged.key;
    if (logged.has_parent) event.parent = logged.parent;
    event.position = logged.position;
    event.token_count = logged.token_count;
  }
  *sequence = end - 1;
  return true;
}

bool EventLog::IsKept(uint64_t sequence) const {
  MutexLock lock(mutex_);
  return sequence + 1 >= oldest();
}

uint64_t EventLog::last_sequence() const {
  MutexLock lock(mutex_);
  return next_ - 1;
}

uint64_t EventLog::WaitFor(uint64_t sequence, absl::Duration timeout) {
  const SteadyClock clock;
  const absl::Time until = clock.Now() + timeout;
  MutexLock lock(mutex_);
  while (next_ - 1 <= sequence) {
    const absl::Duration left = until - clock.Now();
    if (left <= absl::ZeroDuration()) break;
    is_awaited_ = true;
    came_.WaitFor(mutex_, left);
  }
  return next_ - 1;
}

void EventLog::CloseNamespaces(std::span<const NamespacePtr> namespaces) {
  MutexLock lock(mutex_);
  for (const NamespacePtr& ns : namespaces) {
    const auto name = names_.find(ns->number);
    if (name == names_.end()) continue;
    if (name->second.last_sequence < oldest()) {
      names_.erase(name);
    } else {
      closed_.push_back(ns->number);
    }
  }
  ForgetNames();
}

void EventLog::ForgetNames() {
  while (!closed_.empty()) {
    const auto name = names_.find(closed_.front());
    if (name != names_.end() && name->second.last_sequence >= oldest()) return;
    if (name != names_.end()) names_.erase(name);
    closed_.pop_front();
  }
}

void EventLog::RunMaintenance() {
  std::vector<LoggedEvent> ring;  // freed without the lock
  MutexLock lock(mutex_);
  if (ring_.empty()) return;
  ForgetNames();
  if (watchers_count_ > 0 || next_ - left_at_ < events_max_) return;
  is_recording_.store(false, std::memory_order_release);
  ring_.swap(ring);
  first_ = next_;
  names_.clear();
  closed_.clear();
}

}  // namespace ibid
