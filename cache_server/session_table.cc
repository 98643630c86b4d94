// Invariants:
// - Every reservation in `reservations` has an item of the same time in `reservations_by_age`,
// which is ordered by time, but for calls that read the clock before others and book after them.
// - A lease leaves the table exactly once: released, expired, or with its session. So its holds are
// given back once.
#include "cache_server/session_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/limit.h"
#include "core/random_id.h"

namespace ibid {
namespace {

absl::Status UnknownSession() {
  return absl::FailedPreconditionError(
      "unknown session: it ended, expired or belongs to an earlier incarnation");
}

}  // namespace

SessionTable::SessionTable(const BlockStoreOptions& options)
    : lease_ttl_(options.lease_ttl),
      session_ttl_(options.session_ttl),
      reservation_ttl_(options.reservation_ttl),
      sessions_max_(options.sessions_max),
      leases_max_(options.leases_per_session_max),
      leased_blocks_max_(options.leased_blocks_per_session_max),
      leased_percent_max_(options.leased_percent_per_session_max),
      taken_bytes_max_(options.host_bytes_max * options.leased_percent_per_session_max / 100),
      reservations_of_one_max_(options.reservations_per_session_max),
      reservations_max_(options.reservations_max) {}

SessionTable::Session* SessionTable::Find(SessionId session) {
  const auto it = sessions_.find(session.value);
  return it == sessions_.end() ? nullptr : it->second.get();
}

absl::StatusOr<SessionId> SessionTable::Open(absl::string_view client_name, absl::Time now) {
  const SessionId id{RandomId()};
  auto session = std::make_unique<Session>();
  session->client_name = std::string(client_name);
  session->opened_at = session->heard_at = now;
  MutexLock lock(mutex_);
  if (sessions_.size() >= sessions_max_) {
    return LimitReached("too many sessions are open", "sessions_max", sessions_max_);
  }
  sessions_[id.value] = std::move(session);
  sessions_count_.store(sessions_.size(), std::memory_order_relaxed);
  return id;
}

absl::Status SessionTable::Touch(SessionId session, absl::Time now, bool renew_leases) {
  MutexLock lock(mutex_);
  Session* const found = Find(session);
  if (found == nullptr) return UnknownSession();
  found->heard_at = std::max(found->heard_at, now);
  if (renew_leases) found->renewed_at = std::max(found->renewed_at, now);
  return absl::OkStatus();
}

uint64_t SessionTable::Lease::blocks_count() const {
  uint64_t count = 0;
  for (const HeldBlocks& held : blocks) count += held.ids.size();
  return count;
}

uint64_t SessionTable::Lease::taken_bytes() const {
  uint64_t bytes = 0;
  for (const HeldBlocks& held : blocks) bytes += held.taken_bytes();
  return bytes;
}

void SessionTable::Lease::MoveTo(LetGo* let_go) {
  for (HeldBlocks& held : blocks) let_go->leases.push_back(std::move(held));
}

std::unique_ptr<SessionTable::Session> SessionTable::TakeSession(SessionId session) {
  const auto it = sessions_.find(session.value);
  if (it == sessions_.end()) return nullptr;
  std::unique_ptr<Session> taken = std::move(it->second);
  sessions_.erase(it);
  leases_count_ -= taken->leases.size();
  reservations_count_ -= taken->reservations.size();
  sessions_count_.store(sessions_.size(), std::memory_order_relaxed);
  return taken;
}

// Without the lock: a session may hold very much.
LetGo SessionTable::LetGoOf(SessionId id, std::unique_ptr<Session> session) {
  LetGo let_go;
  let_go.session = id;
  if (session == nullptr) return let_go;
  for (auto& [lease_id, lease] : session->leases) lease.MoveTo(&let_go);
  let_go.reservations.reserve(session->reservations.size());
  for (const auto& [at, block] : session->reservations_by_age) {
    const auto it = session->reservations.find(block);
    if (it != session->reservations.end() && it->second == at) {
      let_go.reservations.push_back(block);
      session->reservations.erase(it);  // two bookings may have one time
    }
  }
  return let_go;
}

LetGo SessionTable::End(SessionId session) {
  std::unique_ptr<Session> taken;
  {
    MutexLock lock(mutex_);
    taken = TakeSession(session);
  }
  return LetGoOf(session, std::move(taken));
}

absl::StatusOr<LeaseId> SessionTable::AddLease(SessionId session, LeaseId id,
                                               std::vector<HeldBlocks>* blocks, absl::Time now) {
  if (id.value == 0) id.value = RandomId();
  uint64_t count = 0, taken_bytes = 0;
  for (const HeldBlocks& held : *blocks) {
    count += held.ids.size();
    taken_bytes += held.taken_bytes();
  }
  MutexLock lock(mutex_);
  Session* const found = Find(session);
  if (found == nullptr) return UnknownSession();
  if (found->leases.size() >= leases_max_) {
    return LimitReached("too many leases of one session", "leases_per_session_max", leases_max_);
  }
  if (found->leased_blocks + count > leased_blocks_max_) {
    return LimitReached("too many leased blocks of one session", "leased_blocks_per_session_max",
                        leased_blocks_max_);
  }
  if (found->taken_bytes + taken_bytes > taken_bytes_max_) {
    return LimitReached("too much of the host tier is leased by one session",
                        "leased_percent_per_session_max", leased_percent_max_);
  }
  if (found->leases.contains(id.value)) {
    return absl::AlreadyExistsError("the session has a lease of this id: choose ids at random");
  }
  found->heard_at = std::max(found->heard_at, now);
  found->leased_blocks += count;
  found->taken_bytes += taken_bytes;
  found->leases[id.value] = Lease{std::move(*blocks), now};
  ++leases_count_;
  return id;
}

uint64_t SessionTable::LeaseRoom(SessionId session) const {
  MutexLock lock(mutex_);
  const auto it = sessions_.find(session.value);
  return it == sessions_.end() ? 0 : taken_bytes_max_ - it->second->taken_bytes;
}

void SessionTable::TakeLease(SessionId session, LeaseId lease, LetGo* let_go) {
  MutexLock lock(mutex_);
  Session* const found = Find(session);
  if (found == nullptr) return;
  const auto it = found->leases.find(lease.value);
  if (it == found->leases.end()) return;
  found->leased_blocks -= it->second.blocks_count();
  found->taken_bytes -= it->second.taken_bytes();
  it->second.MoveTo(let_go);
  found->leases.erase(it);
  --leases_count_;
}

absl::Status SessionTable::CheckLease(SessionId session, LeaseId lease, absl::Time now) const {
  MutexLock lock(mutex_);
  const auto it = sessions_.find(session.value);
  if (it == sessions_.end()) return UnknownSession();
  const auto found = it->second->leases.find(lease.value);
  if (found == it->second->leases.end() || IsOver(*it->second, found->second, now)) {
    return absl::FailedPreconditionError("the lease is over, or is not of this session");
  }
  return absl::OkStatus();
}

absl::Status SessionTable::AddReservation(SessionId session, EntryId block, absl::Time now) {
  MutexLock lock(mutex_);
  Session* const found = Find(session);
  if (found == nullptr) return UnknownSession();
  found->heard_at = std::max(found->heard_at, now);
  const auto it = found->reservations.find(block);
  if (it == found->reservations.end()) {
    if (found->reservations.size() >= reservations_of_one_max_) {
      return LimitReached("too many reservations of one session", "reservations_per_session_max",
                          reservations_of_one_max_);
    }
    if (reservations_count() >= reservations_max_) {
      return LimitReached("too many reservations of all sessions", "reservations_max",
                          reservations_max_);
    }
    ++reservations_count_;
  } else if (it->second >= now) {
    return absl::OkStatus();
  }
  found->reservations[block] = now;
  found->reservations_by_age.push_back({now, block});
  ExpireReservations(*found, absl::InfinitePast(), nullptr);
  found->ForgetOldTerms();
  return absl::OkStatus();
}

void SessionTable::RemoveReservation(SessionId session, EntryId block) {
  MutexLock lock(mutex_);
  Session* const found = Find(session);
  if (found != nullptr && found->reservations.erase(block) > 0) --reservations_count_;
}

// Amortised O(1): half of what it goes through is gone for good.
void SessionTable::Session::ForgetOldTerms() {
  constexpr size_t kSpare = 1'024;
  if (reservations_by_age.size() <= 2 * reservations.size() + kSpare) return;
  std::erase_if(reservations_by_age, [this](const auto& term) {
    const auto it = reservations.find(term.second);
    return it == reservations.end() || it->second != term.first;
  });
}

bool SessionTable::TakeStaleReservation(SessionId session, EntryId block, absl::Time booked_by) {
  MutexLock lock(mutex_);
  Session* const found = Find(session);
  if (found == nullptr) return false;
  const auto it = found->reservations.find(block);
  if (it == found->reservations.end() || it->second > booked_by) return false;
  found->reservations.erase(it);
  --reservations_count_;
  return true;
}

// Takes from the front of the queue what is gone already and what is over at `now`.
void SessionTable::ExpireReservations(Session& session, absl::Time now, LetGo* let_go) {
  while (!session.reservations_by_age.empty()) {
    const auto [at, block] = session.reservations_by_age.front();
    const auto it = session.reservations.find(block);
    const bool is_current = it != session.reservations.end() && it->second == at;
    if (is_current) {
      if (at + reservation_ttl_ > now) return;
      let_go->reservations.push_back(block);
      session.reservations.erase(it);
      --reservations_count_;
    }
    session.reservations_by_age.pop_front();
  }
}

std::vector<SessionInfo> SessionTable::List(size_t count, absl::Time now) const {
  MutexLock lock(mutex_);
  std::vector<const Session*> sessions;
  sessions.reserve(sessions_.size());
  for (const auto& [id, session] : sessions_) sessions.push_back(session.get());
  count = std::min(count, sessions.size());
  const auto held = [](const Session* s) { return s->leased_blocks + s->reservations.size(); };
  std::partial_sort(sessions.begin(), sessions.begin() + static_cast<ptrdiff_t>(count),
                    sessions.end(), [&](const Session* a, const Session* b) {
                      return std::pair(held(a), b->opened_at) > std::pair(held(b), a->opened_at);
                    });
  std::vector<SessionInfo> list;
  for (size_t i = 0; i < count; ++i) {
    const Session& s = *sessions[i];
    list.push_back({s.client_name, now - s.opened_at, now - s.heard_at, s.leases.size(),
                    s.leased_blocks, s.reservations.size()});
  }
  return list;
}

std::vector<SessionId> SessionTable::ids() const {
  MutexLock lock(mutex_);
  std::vector<SessionId> ids;
  ids.reserve(sessions_.size());
  for (const auto& [id, session] : sessions_) ids.push_back(SessionId{id});
  return ids;
}

LetGo SessionTable::Expire(SessionId session, absl::Time now) {
  std::unique_ptr<Session> taken;
  {
    MutexLock lock(mutex_);
    Session* const found = Find(session);
    if (found == nullptr) return {};
    if (found->heard_at + session_ttl_ > now) return ExpireWithin(session, *found, now);
    taken = TakeSession(session);
  }
  return LetGoOf(session, std::move(taken));
}

LetGo SessionTable::ExpireWithin(SessionId id, Session& session, absl::Time now) {
  LetGo let_go;
  let_go.session = id;
  ExpireReservations(session, now, &let_go);
  for (auto it = session.leases.begin(); it != session.leases.end();) {
    if (!IsOver(session, it->second, now)) {
      ++it;
      continue;
    }
    session.leased_blocks -= it->second.blocks_count();
    session.taken_bytes -= it->second.taken_bytes();
    it->second.MoveTo(&let_go);
    session.leases.erase(it++);
    --leases_count_;
  }
  return let_go;
}

}  // namespace ibid
