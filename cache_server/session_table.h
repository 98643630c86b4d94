// Sessions and what each holds: leases on blocks, reservations of blocks. It only keeps the books:
// whoever takes something out of it lets go of the blocks.
//
// Thread safety: every method, from any thread. Expiry goes session by session. The lock is held
// for O(1), or O(leases of one session) while they expire, never for O(blocks).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache_server/block_store.h"
#include "core/eviction/block_lists.h"
#include "core/mutex.h"

namespace ibid {

// Blocks of one namespace that a lease holds: a lease has as many of these as shards.
struct HeldBlocks {
  std::vector<EntryId> ids;
  uint64_t payload_bytes = 0;  // of each
  uint64_t taken_count = 0;    // in memory, and held by nobody before: what eviction lost to it
  uint64_t taken_bytes() const { return taken_count * payload_bytes; }
};

// What a session held and holds no more.
struct LetGo {
  SessionId session;
  std::vector<HeldBlocks> leases;
  std::vector<EntryId> reservations;  // in the order in which they were booked
  bool is_empty() const { return leases.empty() && reservations.empty(); }
};

class SessionTable {
 public:
  explicit SessionTable(const BlockStoreOptions& options);

  // Errors: ResourceExhausted (sessions_max).
  absl::StatusOr<SessionId> Open(absl::string_view client_name, absl::Time now);
  // The session's client was heard of; with `renew_leases` its leases last lease_ttl from now.
  // Errors: FailedPrecondition (unknown session).
  absl::Status Touch(SessionId session, absl::Time now, bool renew_leases);
  // Ends the session. Nothing when it is unknown.
  LetGo End(SessionId session);

  // `id` 0: any. Errors: FailedPrecondition (unknown session), AlreadyExists (the session has this
  // lease), ResourceExhausted (leases_per_session_max, leased_blocks_per_session_max,
  // leased_percent_per_session_max); `blocks` is then unchanged.
  absl::StatusOr<LeaseId> AddLease(SessionId session, LeaseId id, std::vector<HeldBlocks>* blocks,
                                   absl::Time now);
  // Bytes that leases of the session may still take (HeldBlocks::taken_bytes); 0 when it is
  // unknown.
  uint64_t LeaseRoom(SessionId session) const;
  // Adds what the lease held to `let_go`. Nothing when it is unknown, or was taken before.
  void TakeLease(SessionId session, LeaseId lease, LetGo* let_go);
  absl::Status CheckLease(SessionId session, LeaseId lease, absl::Time now) const;

  // Books the reservation of `block`, or gives it a new term. Errors: FailedPrecondition (unknown
  // session), ResourceExhausted (reservations_per_session_max, reservations_max).
  absl::Status AddReservation(SessionId session, EntryId block, absl::Time now);
  void RemoveReservation(SessionId session, EntryId block);
  // Removes it when it was last booked at `booked_by` or before. False: there is none such.
  bool TakeStaleReservation(SessionId session, EntryId block, absl::Time booked_by);

  // Those that hold most blocks first. O(sessions).
  std::vector<SessionInfo> List(size_t count, absl::Time now) const;
  // All sessions there are, to be expired one by one.
  std::vector<SessionId> ids() const;
  // What of this session is over at `now`: some leases and reservations, or everything when the
  // session itself is.
  LetGo Expire(SessionId session, absl::Time now);

  uint64_t sessions_count() const { return sessions_count_.load(std::memory_order_relaxed); }
  uint64_t leases_count() const { return leases_count_.load(std::memory_order_relaxed); }
  uint64_t reservations_count() const {
    return reservations_count_.load(std::memory_order_relaxed);
  }

 private:
  struct Lease {
    std::vector<HeldBlocks> blocks;
    absl::Time made_at;
    uint64_t blocks_count() const;
    uint64_t taken_bytes() const;
    void MoveTo(LetGo* let_go);
  };
  struct Session {
    std::string client_name;
    absl::Time opened_at;
    absl::Time heard_at;
    absl::Time renewed_at = absl::InfinitePast();
    absl::flat_hash_map<uint64_t, Lease> leases;
    uint64_t leased_blocks = 0;                                      // of all leases
    uint64_t taken_bytes = 0;                                        // of all leases
    absl::flat_hash_map<EntryId, absl::Time> reservations;           // when each was last booked
    std::deque<std::pair<absl::Time, EntryId>> reservations_by_age;  // may name some that are gone
    void ForgetOldTerms();
  };

  bool IsOver(const Session& session, const Lease& lease, absl::Time now) const {
    return std::max(lease.made_at, session.renewed_at) + lease_ttl_ <= now;
  }
  Session* Find(SessionId session) IBID_REQUIRES(mutex_);
  // Null when it is unknown.
  std::unique_ptr<Session> TakeSession(SessionId session) IBID_REQUIRES(mutex_);
  static LetGo LetGoOf(SessionId id, std::unique_ptr<Session> session);
  void ExpireReservations(Session& session, absl::Time now, LetGo* let_go) IBID_REQUIRES(mutex_);
  LetGo ExpireWithin(SessionId id, Session& session, absl::Time now) IBID_REQUIRES(mutex_);

  const absl::Duration lease_ttl_;
  const absl::Duration session_ttl_;
  const absl::Duration reservation_ttl_;
  const uint32_t sessions_max_;
  const uint32_t leases_max_;
  const uint32_t leased_blocks_max_;
  const uint32_t leased_percent_max_;
  const uint64_t taken_bytes_max_;
  const uint32_t reservations_of_one_max_;
  const uint32_t reservations_max_;

  mutable Mutex mutex_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Session>> sessions_ IBID_GUARDED_BY(mutex_);
  std::atomic<uint64_t> sessions_count_{0};
  std::atomic<uint64_t> leases_count_{0};
  std::atomic<uint64_t> reservations_count_{0};
};

}  // namespace ibid
