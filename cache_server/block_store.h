// BlockStore keeps immutable KV blocks in an ordered list of tiers, fastest first, and moves them
// as they warm and cool. It alone knows where a block's bytes are.
//
// Thread safety: every method, from any thread. No lock is held while bytes move.
// Ownership: a tier owns the bytes of its copy. Callers see them through Reservation (one writer,
// not yet visible) and BlockRef (readers; pins the bytes). Durability: a committed block survives a
// restart once it was written to the disk tier (before Commit answers, if asked).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cache_server/block_store_options.h"
#include "cache_server/offer_and_match.h"
#include "cache_server/pin.h"
#include "cache_server/store_stats.h"
#include "core/block_key.h"
#include "core/checksum.h"
#include "core/clock.h"
#include "core/kv_layout.h"
#include "core/metrics.h"

namespace ibid {

class BlockWatch;  // block_watch.h
class HostArena;   // host_arena.h
struct WatchOptions;
class TenantTable;  // tenant_table.h
struct TenantInfo;

class BlockStoreImpl;

// The block's bytes, pinned for as long as this lives, whatever leases and evictions do. Move-only;
// may be dropped on any thread, not after the store is gone.
class BlockRef {
 public:
  class Pin {  // what keeps the bytes; private to the store
   public:
    virtual ~Pin() = default;
  };
  BlockRef(std::unique_ptr<Pin> pin, ByteView payload, uint64_t checksum, uint32_t token_count,
           absl::string_view tier)
      : pin_(std::move(pin)),
        payload_(payload),
        checksum_(checksum),
        token_count_(token_count),
        tier_(tier) {}
  BlockRef(BlockRef&&) = default;
  BlockRef& operator=(BlockRef&&) = default;

  ByteView payload() const { return payload_; }
  uint64_t checksum() const { return checksum_; }
  uint32_t token_count() const { return token_count_; }
  absl::string_view tier() const { return tier_; }  // that it was read from; static storage

 private:
  std::unique_ptr<Pin> pin_;
  ByteView payload_;
  uint64_t checksum_;
  uint32_t token_count_;
  absl::string_view tier_;
};

// Room for one block, visible to no one until Commit. Move-only; dropping it gives the room back.
class Reservation {
 public:
  Reservation(Reservation&&) noexcept;
  Reservation& operator=(Reservation&&) noexcept;
  ~Reservation();

  // payload_bytes of the namespace, to be filled by the one writer.
  MutableByteView payload() const;

  // Makes the block visible, once. `checksum` is the publisher's, `computed` what the writer found
  // while it filled the payload: they must be equal. With `durable`, `done` is called once the
  // block is on the disk tier (Unavailable when it cannot be), else before Commit returns. Errors
  // to `done`: DataLoss (checksums differ), FailedPrecondition (the session or the namespace is
  // gone), Aborted (the reservation expired, or another has taken the block over). REQUIRES: called
  // at most once.
  void Commit(uint64_t checksum, uint64_t computed, bool durable,
              std::function<void(absl::Status)> done) &&;

 private:
  friend class BlockStoreImpl;
  struct State;
  explicit Reservation(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

class BlockStore {
 public:
  // Opens the tiers; serves at once and indexes the disk directory in the background.
  // Errors: InvalidArgument (an option, by name), FailedPrecondition (the disk directory belongs to
  // another running server or has another format), ResourceExhausted (memory), Unavailable (the
  // directory cannot be read or written).
  static absl::StatusOr<std::unique_ptr<BlockStore>> Open(BlockStoreOptions options);
  // Writes to disk what is queued for it (bounded by a few seconds). REQUIRES: no Reservation or
  // BlockRef is alive.
  ~BlockStore();

  uint64_t incarnation() const;
  // The host tier's memory, for who hands it to other processes.
  const HostArena& arena() const;

  // Errors: InvalidArgument (layout), FailedPrecondition (the id is open with another layout),
  // ResourceExhausted (namespaces_max). Idempotent. Returns the payload's size in bytes.
  // The first tenant that opens a namespace owns it, over restarts if it has blocks on disk: what
  // is published there counts for that one, whoever shares it.
  absl::StatusOr<uint64_t> OpenNamespace(const NamespaceId& ns, const KvLayout& layout,
                                         absl::string_view tenant = "");
  TenantTable& tenants();
  // In order of their names, with what the blocks of each take: together, what the tiers have in
  // use, once no block is on its way. O(tenants).
  std::vector<TenantInfo> Tenants() const;

  // Errors: FailedPrecondition (unknown namespace).
  absl::StatusOr<KvLayout> LayoutOf(const NamespaceId& ns) const;

  // Sessions. KeepAlive and RenewLeases are FailedPrecondition for an unknown session: its client
  // opens another.
  absl::StatusOr<SessionId> OpenSession(absl::string_view client_name);
  absl::Status KeepAlive(SessionId session, bool renew_leases);
  void ReleaseLeases(SessionId session, std::span<const LeaseId> leases);
  // Frees all leases and reservations of the session; idempotent. Nobody ever sees its partial
  // blocks. What is little is free when this returns; of more (as in ReleaseLeases) the rest
  // follows in the background, in pieces, reservations first: the caller never waits for millions.
  void EndSession(SessionId session);

  // What the store would like of these keys: kWanted (now reserved for `session`), kPresent,
  // kPending (another session is filling it), kRejected (a limit). One entry a key. Errors:
  // FailedPrecondition (unknown namespace or session), ResourceExhausted (chain_keys_max).
  absl::StatusOr<std::vector<OfferState>> Offer(SessionId session, const NamespaceId& ns,
                                                std::span<const BlockKey> keys);

  // Offer for those who will compute the blocks before they can send them: reserves keys from the
  // front on and stops at the first that is not wanted. So two sessions never hold parts of one
  // chain and wait for each other. A reservation that the session has gets a new term; one that
  // another session has, and last made or repeated `take_over_after` ago or longer, is void: a
  // writer that is still at it keeps its room until it is done.
  absl::StatusOr<ClaimResult> Claim(SessionId session, const NamespaceId& ns,
                                    std::span<const BlockKey> keys,
                                    absl::Duration take_over_after = absl::InfiniteDuration());
  // Gives back the session's reservations of these keys, except of those that are being filled.
  void Withdraw(SessionId session, const NamespaceId& ns, std::span<const BlockKey> keys);

  // Room for one block, found by evicting if need be. Errors: AlreadyExists (present, or pending in
  // another session: the text says which word), ResourceExhausted (everything is pinned, or a
  // limit), FailedPrecondition (unknown namespace or session), InvalidArgument (token_count).
  absl::StatusOr<Reservation> Reserve(SessionId session, const NamespaceId& ns,
                                      const ChainLink& link);

  // How many leading keys of `chain` are stored, and how many more are pending. With a lease, what
  // was found stays until the lease ends; without, nothing changes, recency included. No I/O.
  // O(keys found). What the session's leases have room for (leased_percent_per_session_max) ends
  // the match early. `wait_pending` blocks the caller: StartMatch does not. Errors:
  // FailedPrecondition (unknown namespace; unknown session with `lease`), AlreadyExists (lease_id
  // is taken), ResourceExhausted (limits).
  absl::StatusOr<MatchResult> Match(SessionId session, const NamespaceId& ns,
                                    std::span<const BlockKey> chain, const MatchOptions& options);

  // Match of several shards, which may wait without a thread. The answer is about the smallest
  // common prefix: block i is matched when all shards have it, and the one lease holds the matched
  // blocks of all shards and nothing else. `done` is called once: at once, on this thread, when
  // nothing is to be waited for (or no more may wait: waiting_matches_max, waiting_keys_max); else
  // on a thread of the store, once what was pending has settled, wait_pending is over, or the wait
  // was cancelled (Cancelled). It must not block. Errors: those of Match; InvalidArgument (no
  // shards, or shards of different length).
  MatchWaitId StartMatch(SessionId session, std::vector<ShardChain> shards,
                         const MatchOptions& options, MatchDone done);
  void CancelMatch(MatchWaitId wait);
  // All waits end now with what there is, and no match waits any more.
  void EndWaits();

  // The block, pinned, from the fastest tier that has it: `done` is called at once for the host
  // tier, and on an I/O thread after a read and a checksum for the disk tier. Errors: NotFound (a
  // miss; no text), DataLoss (checksum; the copy is dropped), Unavailable (tier down),
  // ResourceExhausted (acquire_queue_max), FailedPrecondition (unknown namespace). Serving a disk
  // block needs no room in the host tier; promotion happens when there is some. `is_use` false: the
  // use was counted, by the match that leased the block.
  void Acquire(const NamespaceId& ns, const BlockKey& key,
               std::function<void(absl::StatusOr<BlockRef>)> done, bool is_use = true);

  // Errors: FailedPrecondition unless `lease` belongs to `session` and has not expired.
  absl::Status CheckLease(SessionId session, LeaseId lease) const;

  // Leaves all tiers. Leased and pinned blocks become invisible at once and are freed when their
  // pins end. Returns the number of blocks dropped. An empty `keys` drops the whole namespace. A
  // process that is killed before FlushRemovals may find dropped blocks again at its next start.
  size_t Drop(const NamespaceId& ns, std::span<const BlockKey> keys);
  size_t DropEverything();
  // Of these, drops the blocks whose bytes in the host tier do not match their checksum: for who
  // got wrong bytes and does not know where they were spoilt. Reads all of them.
  size_t DropCorrupt(const NamespaceId& ns, std::span<const BlockKey> keys);
  // Waits until the disk tier has no record of what was dropped so far. False after `timeout`, and
  // at once while the disk tier cannot be written or is still being recovered.
  bool FlushRemovals(absl::Duration timeout);

  // The copies of these blocks, also of those that come later, leave a tier only when nothing of
  // lower priority can; kMustStay: not at all, unless they are dropped. Of several pins the highest
  // priority holds. A pin of the same id is replaced. With a disk tier a pin survives a restart.
  // Errors: InvalidArgument (no id, no keys, kNone, no duration), FailedPrecondition (unknown
  // namespace), ResourceExhausted (must_stay_percent_max, pins_max, pinned_blocks_max,
  // chain_keys_max): nothing is changed then. O(keys).
  absl::StatusOr<PinResult> Pin(PinId id, const NamespaceId& ns, std::span<const BlockKey> keys,
                                const PinOptions& options);
  // Errors: NotFound.
  absl::Status Unpin(PinId id);
  // In order of their ids. O(blocks pinned).
  std::vector<PinInfo> Pins() const;

  // Reads every copy of every block again, at most `bytes_per_second` (0: without pause). A copy
  // that does not match its checksum or cannot be read leaves its tier. The block leaves with it
  // when that was its last, or when somebody uses the block in that moment. Blocks its thread, and
  // calls `on_progress` after each block and at least each 50 ms: when it returns false, this ends
  // with Cancelled. Reads and writes go on meanwhile; blocks that come meanwhile may be left out.
  // Also Unavailable: the disk directory is still being indexed, or the disk tier is down.
  absl::StatusOr<VerifyReport> Verify(uint64_t bytes_per_second,
                                      const std::function<bool(const VerifyReport&)>& on_progress);

  // From now on no block is taken: an offer is answered kRejected, Reserve is Unavailable.
  // Reservations that were made can be committed. TakeBlocks undoes it.
  void RefuseBlocks();
  void TakeBlocks();
  // Writes to disk what only the host and the gpu tier have, pinned blocks first, then starts of
  // chains, as much as the disk tier has room for: what `timeout` leaves out are ends of chains.
  // Copies in memory stay.
  // Looks each 100 ms whether it `is_stopped`. Blocks its thread.
  KeepResult KeepOnDisk(absl::Duration timeout, const std::function<bool()>& is_stopped = nullptr);

  BlockStoreStats stats() const;
  // Those that hold most first. O(sessions).
  std::vector<SessionInfo> Sessions(size_t count) const;
  // Of the matches with a lease since the start; the most frequent first.
  std::vector<HotPrefix> HottestPrefixes(size_t count) const;
  // Of the last ten minutes, each two seconds, the oldest first.
  std::vector<StatsSample> History() const;

  // Blocks as they come and go, from a snapshot, from now or from where another watch ended; the
  // epoch of its sequence numbers is incarnation(). Slows no other call: a watch that is not read
  // costs nothing, and is over once event_log_max events came meanwhile. O(1) under any lock,
  // however many blocks a snapshot has. Errors: ResourceExhausted (watchers_max).
  absl::StatusOr<std::unique_ptr<BlockWatch>> Watch(const WatchOptions& options);
  // Waits for an event after `sequence`, until `timeout`. Returns the last event's number.
  uint64_t WaitForEvents(uint64_t sequence, absl::Duration timeout);

  // Expires sessions, leases and reservations by the clock, and gives back all that ended. For
  // tests without a maintenance thread.
  void RunMaintenance();
  // Waits until all queued disk writes and removals are done, recovery included, and all blocks
  // offered to the gpu tier are there or not. False after `timeout`.
  bool FlushToDisk(absl::Duration timeout);

 private:
  explicit BlockStore(std::unique_ptr<BlockStoreImpl> impl);
  std::unique_ptr<BlockStoreImpl> impl_;
};

}  // namespace ibid
