// How blocks come into the store: offered, reserved, filled, committed.
//
// Thread safety: every method, from any thread.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "cache_server/recovery.h"
#include "cache_server/residency.h"

namespace ibid {

// The writer's room: what a Reservation holds.
struct WriterSlot {
  EntryId id = kNoEntry;
  SessionId session;
  NamespacePtr ns;
  ChainLink link;
  MutableByteView payload;
};

class PublishPath {
 public:
  PublishPath(StoreParts& parts, Residency& residency, Recovery& recovery)
      : parts_(parts), residency_(residency), recovery_(recovery) {}

  absl::StatusOr<std::vector<OfferState>> Offer(SessionId session, const NamespaceId& ns,
                                                std::span<const BlockKey> keys);
  absl::StatusOr<ClaimResult> Claim(SessionId session, const NamespaceId& ns,
                                    std::span<const BlockKey> keys, absl::Duration take_over_after);
  void Withdraw(SessionId session, const NamespaceId& ns, std::span<const BlockKey> keys);
  absl::StatusOr<WriterSlot> Reserve(SessionId session, const NamespaceId& ns,
                                     const ChainLink& link);
  void Commit(WriterSlot slot, uint64_t checksum, uint64_t computed, bool durable,
              std::function<void(absl::Status)> done);
  void Abort(const WriterSlot& slot);
  // The session's reservation of `id` is void: others may reserve the block. A writer that is still
  // at it keeps its room until it is done.
  void Revoke(SessionId session, EntryId id);

 private:
  // The open namespace. Errors: FailedPrecondition (namespace, session), ResourceExhausted.
  absl::StatusOr<NamespacePtr> Admit(SessionId session, const NamespaceId& ns, size_t keys_count);
  void ForgetUnreadable(const NamespaceInfo& ns, const BlockKey& key);
  // Whose blocks are offered, and when. Without `can_publish` nothing is wanted that the session
  // has not reserved before.
  struct Offerer {
    SessionId session;
    const NamespaceInfo& ns;
    absl::Time now;
    bool can_publish;
  };
  Offerer OffererOf(SessionId session, const NamespaceInfo& ns) const;
  // `used`: the entry when the block is there; `must_write`: it is to be queued for that use.
  OfferState OfferOne(const Offerer& by, const BlockKey& key, EntryId* used, bool* must_write);
  // True when another session's reservation of the block was made or repeated no later than
  // `booked_by`: it is void now, and whoever offers next may reserve the block.
  bool RevokeStale(const NamespaceInfo& ns, const BlockKey& key, absl::Time booked_by);
  // The entry, filling, with the writer's flag. Errors: AlreadyExists, InvalidArgument.
  absl::StatusOr<EntryId> BeginWriting(SessionId session, const NamespaceInfo& ns,
                                       const ChainLink& link);
  // Errors: ResourceExhausted.
  absl::StatusOr<uint32_t> TakeRoom(EntryId id, EntryId parent, const NamespaceInfo& ns);
  void Release(EntryId id);
  // Why what the writer committed is not stored.
  absl::Status WhyVoid(const WriterSlot& slot);
  void QueueWrite(const WriterSlot& slot, std::function<void(absl::Status)> durable_done);

  StoreParts& parts_;
  Residency& residency_;
  Recovery& recovery_;
};

}  // namespace ibid
