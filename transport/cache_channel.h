// CacheChannel: the client's end of CacheService on one server, in core types: protobuf stops here.
//
// Thread safety: every method, from any thread. Calls block their thread until they are done; no
// call outlives its timeout. Ownership: views passed in belong to the call until it returns; then
// nothing reads or writes them any more. Errors: Unavailable and DeadlineExceeded for the network
// and the server's absence; else what the server said (transport/status_conversion.h). A block that
// is not there is an outcome, not an error.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/block_key.h"
#include "core/checksum.h"
#include "transport/block_frame.h"
#include "transport/cache_watch.h"
#include "transport/channel.h"
#include "transport/shm_attachment.h"

namespace ibid {

struct OpenNamespaceReply {
  uint64_t incarnation = 0;
  uint64_t payload_bytes = 0;
};

struct MatchCall {
  uint64_t session_id = 0;  // 0: none, then no lease
  NamespaceId ns;
  bool lease = false;
  absl::Duration wait_pending = absl::ZeroDuration();  // within the call's timeout
  uint64_t lease_id = 0;        // that it shall have: random; 0: the server chooses
  bool is_repeat = false;       // of a request that was counted when it asked first
  uint32_t first_position = 0;  // of the first key in its chain
  bool is_part = false;         // other servers are asked for other keys of the chain
};

struct MatchReply {
  uint64_t incarnation = 0;
  uint32_t matched_count = 0;
  uint32_t pending_count = 0;
  uint64_t lease_id = 0;     // 0: none
  uint32_t host_blocks = 0;  // of the matched, by the fastest tier that has each
  uint32_t disk_blocks = 0;
};

// One of the shards of a match: all have the same number of keys.
struct MatchShard {
  NamespaceId ns;
  std::span<const BlockKey> keys;
};

// What Claim reserved: leading keys, up to the first that is `refusal`.
struct ClaimReply {
  uint64_t incarnation = 0;
  uint32_t wanted_count = 0;
  BlockOutcome refusal = BlockOutcome::kUnspecified;  // that: none, all keys are reserved
};

struct OfferReply {
  uint64_t incarnation = 0;
  std::vector<BlockOutcome> outcomes;  // one a key: kWanted, kPresent, kPending, kRejected
};

struct FetchCall {
  uint64_t session_id = 0;
  NamespaceId ns;
  uint64_t lease_id = 0;     // 0: by keys alone
  uint32_t first_layer = 0;  // layer_count 0: whole blocks
  uint32_t layer_count = 0;
  // Blocks under the lease are read from the server's arena. Null: all bytes come in messages.
  std::shared_ptr<const ShmAttachment> shm;
};

struct FetchReply {
  uint64_t incarnation = 0;
  uint64_t bytes = 0;  // of payload, received whole and with the right checksum
};

// A block where it lies, and the checksum that its bytes must have.
struct LocatedBlock {
  ArenaPlace place;
  uint64_t checksum = 0;
};

struct LocateReply {
  uint64_t incarnation = 0;
  std::vector<std::optional<LocatedBlock>> blocks;
};

struct PublishCall {
  uint64_t session_id = 0;
  NamespaceId ns;
  bool durable = false;
  // Large payloads are put into its staging memory. Null: all bytes go in messages.
  std::shared_ptr<ShmAttachment> shm;
};

struct PublishBlock {
  ChainLink link;
  ByteView payload;
  // The publisher's checksum of `payload`; computed on the way when absent.
  std::optional<uint64_t> checksum;
  // Keeps `payload` alive. With it the payload is sent from where it lies, and the owner may be
  // held until after the call (the connection may still be sending from it). Without, the payload
  // is copied into memory of the channel.
  std::shared_ptr<const void> owner;
};

// What became of one block of a Publish.
struct PublishBlockResult {
  uint32_t index = 0;
  BlockOutcome outcome =
      BlockOutcome::kUnspecified;  // kOk, kPresent, kPending, kRejected, kCorrupt, kInvalid
  std::string detail;
};

struct DropReply {
  uint64_t incarnation = 0;
  uint64_t blocks = 0;
};

// As in GetStatsResponse, field by field.
struct CacheStats {
  struct Tier {
    std::string tier, state;
    uint64_t bytes_max = 0, used_bytes = 0, allocated_bytes = 0, largest_free_bytes = 0, blocks = 0,
             hits = 0, evictions = 0, kept_bytes = 0;
  };
  uint64_t incarnation = 0;
  std::string version;
  double uptime_seconds = 0;
  std::vector<Tier> tiers;
  uint64_t sessions = 0, leases = 0, pinned_bytes = 0, reservations = 0, requested_blocks = 0,
           missed_blocks = 0, published_blocks = 0, rejected_blocks = 0, corrupt_blocks = 0,
           namespaces = 0, pending_writes = 0, pins = 0;
  uint64_t asked_keys = 0, matched_keys = 0;
  double distinct_keys = 0, infinite_hit_ratio = 0;
  bool is_recovering = false, is_draining = false;
  struct Method {
    std::string method;
    uint64_t calls = 0, errors = 0, calls_in_progress = 0, received_bytes = 0, sent_bytes = 0;
    double latency_seconds_sum = 0;
    std::vector<double> latency_bounds_seconds;
    std::vector<uint64_t> latency_counts;  // one more than bounds
  };
  std::vector<Method> methods;
};

// A liveness stream to one server; what the client holds there lives as long as this. Heartbeats go
// out by themselves and renew all leases. Ends when it dies, without waiting for the server.
// Thread-safe.
class CacheSession {
 public:
  virtual ~CacheSession() = default;

  virtual uint64_t session_id() const = 0;
  virtual uint64_t incarnation() const = 0;
  virtual absl::Duration heartbeat() const = 0;
  virtual absl::Duration lease_ttl() const = 0;
  // Where clients on the server's host can have its memory; empty: nowhere.
  virtual std::string shm_socket() const = 0;
  // The stream has ended, or the server has not answered for two heartbeats. Never becomes false
  // again.
  virtual bool is_broken() const = 0;
  // Gives the leases back without waiting. Nothing happens once the session is broken: they ended
  // with it.
  virtual void ReleaseLeases(std::span<const uint64_t> lease_ids) = 0;
  // Gives back a lease that a Match without an answer may have made, or may yet make: now and once
  // more with the next heartbeat.
  virtual void ReleaseUnconfirmedLease(uint64_t lease_id) = 0;
};

class CacheChannel {
 public:
  // Errors: those of MakeChannel. Does not connect yet.
  static absl::StatusOr<std::unique_ptr<CacheChannel>> Create(absl::string_view address,
                                                              const ChannelOptions& options);
  virtual ~CacheChannel() = default;

  // Whether there is a connection now. Starts connecting if there is none; never waits.
  virtual bool is_connected() = 0;
  // Waits until there is a connection. False after `timeout`.
  virtual bool WaitUntilConnected(absl::Duration timeout) = 0;

  // The handshake. Computes the id and the golden key that the server compares with its own.
  // Errors: FailedPrecondition (another layout under this id), InvalidArgument (malformed; hashes
  // otherwise).
  // `tenant`: for whom; may be empty.
  virtual absl::StatusOr<OpenNamespaceReply> OpenNamespace(const NamespaceSpec& spec,
                                                           absl::string_view tenant,
                                                           absl::Duration timeout) = 0;
  absl::StatusOr<OpenNamespaceReply> OpenNamespace(const NamespaceSpec& spec,
                                                   absl::Duration timeout) {
    return OpenNamespace(spec, "", timeout);
  }

  // Blocks until the server has answered or `timeout`. `on_broken` is called at most once, on a
  // thread of gRPC, when the session breaks by itself; it must not block, and must not destroy the
  // session.
  virtual absl::StatusOr<std::unique_ptr<CacheSession>> OpenSession(
      absl::string_view client_name, absl::Duration timeout,
      std::function<void(absl::Status)> on_broken) = 0;

  virtual absl::StatusOr<MatchReply> Match(const MatchCall& call, std::span<const BlockKey> chain,
                                           absl::Duration timeout) = 0;
  // The smallest common prefix of the shards, under one lease; call.ns is not used. At most
  // kMatchShardsMax shards, with kRequestKeysMax keys in all.
  virtual absl::StatusOr<MatchReply> MatchShards(const MatchCall& call,
                                                 std::span<const MatchShard> shards,
                                                 absl::Duration timeout) = 0;
  // Reserves `keys` from the first on, and stops at the first that is not wanted. Reservations of
  // others that are older than `take_over_after` become this session's.
  virtual absl::StatusOr<ClaimReply> Claim(uint64_t session_id, const NamespaceId& ns,
                                           std::span<const BlockKey> keys,
                                           absl::Duration take_over_after,
                                           absl::Duration timeout) = 0;
  // Gives back what Claim or Offer reserved of `keys` and nobody fills yet. Returns the
  // incarnation.
  virtual absl::StatusOr<uint64_t> Withdraw(uint64_t session_id, const NamespaceId& ns,
                                            std::span<const BlockKey> keys,
                                            absl::Duration timeout) = 0;
  virtual absl::StatusOr<OfferReply> Offer(uint64_t session_id, const NamespaceId& ns,
                                           std::span<const BlockKey> keys,
                                           absl::Duration timeout) = 0;

  // Blocks into `into`: into[i] takes the block (or its layer range) of keys[i] and must have its
  // exact size. `on_block` is called on the calling thread, in the order of the keys: kOk (all
  // bytes are there and the checksum was right), kMiss, kCorrupt (checksum or size wrong: into[i]
  // holds rubbish). Keys without a call, when an error ends the stream early, have an unspecified
  // into[i]. After the return nothing writes to `into`. REQUIRES: keys.size() == into.size().
  virtual absl::StatusOr<FetchReply> Fetch(
      const FetchCall& call, std::span<const BlockKey> keys, std::span<const MutableByteView> into,
      absl::Duration timeout,
      const std::function<void(uint32_t index, BlockOutcome)>& on_block) = 0;

  // Where the blocks of `keys` lie in the arena that `call.shm` has mapped, instead of their bytes.
  // One entry a key: nothing for what is not there, or not in the arena. The places are good as
  // long as the lease; their bytes were right when they came into the arena. REQUIRES: call.shm, a
  // lease, whole blocks.
  virtual absl::StatusOr<LocateReply> Locate(const FetchCall& call, std::span<const BlockKey> keys,
                                             uint64_t payload_bytes, absl::Duration timeout) = 0;

  // Sends `blocks` in order and calls `on_result` on the calling thread for each block that the
  // server answered, in order of completion. Blocks without a call, when an error ends the stream
  // early, may or may not be stored. Returns the server's incarnation (0 when it answered no
  // block).
  virtual absl::StatusOr<uint64_t> Publish(
      const PublishCall& call, std::span<const PublishBlock> blocks, absl::Duration timeout,
      const std::function<void(const PublishBlockResult&)>& on_result) = 0;

  // `ns` null: everything. `keys` empty: the whole namespace.
  virtual absl::StatusOr<DropReply> Drop(const NamespaceId* ns, std::span<const BlockKey> keys,
                                         absl::Duration timeout) = 0;
  // Has the server read these blocks of its memory again, and drop those that do not match their
  // checksum. At most kDropCorruptKeysMax keys.
  virtual absl::StatusOr<DropReply> DropCorrupt(const NamespaceId& ns,
                                                std::span<const BlockKey> keys,
                                                absl::Duration timeout) = 0;
  virtual absl::StatusOr<CacheStats> GetStats(absl::Duration timeout) = 0;

  // Starts a watch; what comes of it, errors included, its Next tells.
  virtual std::unique_ptr<CacheWatch> Watch(const WatchCall& call) = 0;
};

}  // namespace ibid
