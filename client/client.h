// Client: any number of cache servers as one store. It fails open: whatever goes wrong with the
// store comes back as "not stored", within the deadline, and the caller computes.
//
// Thread safety: every method, from any thread. Calls block their thread until they are done or
// their deadline has passed; an engine calls them from an executor of its own. Ownership: views
// passed in belong to the call until it returns; after it returned nothing writes to them any more.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/blocks_in_place.h"
#include "core/block_key.h"
#include "core/checksum.h"
#include "core/kv_layout.h"
#include "core/metrics.h"

namespace ibid {

// How block bytes travel; everything else always goes by gRPC.
enum class TransportChoice : uint8_t {
  kAuto,  // the best that each server offers: shm on its host, else grpc
  kShm,   // likewise; a server that does not offer it gets grpc, and a log line
  kGrpc,
};

// "auto", "shm", "grpc"; nothing for another text.
std::optional<TransportChoice> TransportChoiceOf(absl::string_view name);

struct ClientOptions {
  std::vector<std::string>
      servers;  // host:port; the same set, in any order, gives the same placement
  std::string client_name = "ibid-client";
  std::string tenant;  // for whom it publishes: its quotas hold; at most kTextFieldBytesMax
  absl::Duration connect_timeout = absl::Seconds(2);
  absl::Duration match_timeout = absl::Milliseconds(500);
  absl::Duration fetch_timeout = absl::Seconds(5);
  absl::Duration publish_timeout = absl::Seconds(10);
  absl::Duration admin_timeout = absl::Seconds(5);  // OpenNamespace, Drop, stats
  absl::Duration reconnect_backoff_min = absl::Milliseconds(50);
  absl::Duration reconnect_backoff_max = absl::Seconds(1);
  uint32_t breaker_failures_count = 3;  // consecutive failures that open a server's circuit breaker
  absl::Duration breaker_open = absl::Milliseconds(500);
  uint32_t placement_group_blocks = 64;  // consecutive blocks of a chain that live on one server
  uint32_t match_keys_max = 65'536;      // keys in one message
  uint32_t namespaces_max = 65'536;      // that one client may ever open: about 1 KiB each
  TransportChoice transport = TransportChoice::kAuto;
  uint64_t shm_staging_bytes = uint64_t{64} << 20;  // a server on this host: publish ahead
  MetricsRegistry* metrics = nullptr;               // null: none are kept
  // PEM files: what signs servers, and the client's own pair if they ask for one. All empty: no
  // TLS.
  std::string tls_ca_file, tls_certificate_file, tls_key_file;
};

// An open namespace. Cheap to copy; valid for the client's life.
struct NamespaceHandle {
  NamespaceId id;
  KvLayout layout;
  uint32_t index = 0;  // in the client
};

class ClientImpl;

// What Match found, leased until this dies. Move-only.
class PrefixMatch {
 public:
  PrefixMatch();
  PrefixMatch(PrefixMatch&&) noexcept;
  PrefixMatch& operator=(PrefixMatch&&) noexcept;
  ~PrefixMatch();  // gives the leases back, without waiting

  uint32_t blocks_count() const;   // leading blocks of the chain that are stored
  uint32_t pending_count() const;  // and after them, blocks that others are filling now
  uint32_t host_blocks() const;
  uint32_t disk_blocks() const;
  // Every server that had to be asked answered; else what the others have is not known.
  bool is_complete() const;

 private:
  friend class ClientImpl;
  struct State;
  std::unique_ptr<State> state_;
};

enum class BlockResult : uint8_t {
  kOk,        // fetched, or stored
  kPresent,   // publish: was stored already
  kPending,   // publish: another client is storing it; nobody knows yet whether it will
  kMiss,      // fetch: not there (any more), or the server did not answer in time
  kCorrupt,   // fetch: the checksum did not match; the destination holds rubbish
  kRejected,  // publish: a limit of the server
  kFailed,    // publish: the server did not answer in time
};

struct FetchResult {
  std::vector<BlockResult> blocks;  // one a requested block
  uint32_t leading_ok = 0;          // blocks before the first that is not kOk: what may be used
  uint64_t bytes = 0;
  absl::Status status;  // OK, or the first failure, for logs
};

struct PublishResult {
  std::vector<BlockResult> blocks;  // one a block
  uint32_t stored_count = 0, present_count = 0, pending_count = 0;
  absl::Status status;
  // Every block is in the store now.
  bool is_complete() const { return stored_count + present_count == blocks.size(); }
};

struct MatchCallOptions {
  bool lease = true;
  absl::Duration timeout = absl::InfiniteDuration();  // the smaller of this and match_timeout
  absl::Duration wait_pending = absl::ZeroDuration();
  bool is_repeat = false;  // the same request asks again, after it waited: it counts once
};

struct PublishCallOptions {
  bool durable = false;  // a block counts as stored once it is on disk; one that was present
                         // already may be in memory only
  absl::Duration wait_pending = absl::ZeroDuration();  // for blocks that others are storing
  absl::Duration timeout = absl::InfiniteDuration();   // the smaller of this and publish_timeout
};

// What Probe found: the numbers of a PrefixMatch, without the right to anything.
struct PrefixCount {
  uint32_t blocks = 0, pending = 0, host_blocks = 0, disk_blocks = 0;
  bool is_complete =
      true;  // every server that had to be asked answered; else `blocks` is a lower bound
};

// What Claim reserved for this client: blocks from the first on.
struct ClaimedPrefix {
  uint32_t wanted_count = 0;
  // What stopped it: kPresent, kPending (another client computes it), kRejected (a limit), kFailed
  // (no answer). kOk: nothing did.
  BlockResult refusal = BlockResult::kOk;
};

// A chain in the namespace of one shard.
struct ShardLinks {
  NamespaceHandle ns;
  std::span<const ChainLink> links;
};

// What one server says of itself; field by field as in GetStatsResponse.
struct ServerStats {
  std::string address;
  absl::Status status;  // not OK: the rest is empty
  uint64_t incarnation = 0;
  std::string version;
  double uptime_seconds = 0;
  struct Tier {
    std::string tier, state;
    uint64_t bytes_max = 0, used_bytes = 0, allocated_bytes = 0, largest_free_bytes = 0, blocks = 0,
             hits = 0, evictions = 0, kept_bytes = 0;
  };
  std::vector<Tier> tiers;
  uint64_t sessions = 0, leases = 0, pinned_bytes = 0, reservations = 0, requested_blocks = 0,
           missed_blocks = 0, published_blocks = 0, rejected_blocks = 0, corrupt_blocks = 0,
           namespaces = 0, pending_writes = 0, pins = 0, asked_keys = 0, matched_keys = 0;
  double distinct_keys = 0, infinite_hit_ratio = 0;  // estimates
  bool is_recovering = false, is_draining = false;
  std::string transport;         // of this client's blocks: shm or grpc
  std::string transport_reason;  // why it is grpc and nothing better
  // Calls of one method since the server's start.
  struct Method {
    std::string method;
    uint64_t calls = 0, errors = 0, calls_in_progress = 0, received_bytes = 0, sent_bytes = 0;
    double latency_seconds_sum = 0;
    std::vector<double> latency_bounds_seconds;
    std::vector<uint64_t> latency_counts;  // by bucket; one more than there are bounds
  };
  std::vector<Method> methods;
};

class StoreWatch;  // store_watch.h

struct StoreWatchOptions {
  std::vector<NamespaceId> namespaces;  // empty: all
  bool has_snapshot = true;             // first what is stored, then what changes
  // About; events that were not taken yet. Then the servers are not read, and may cut the watch
  // off.
  uint32_t queue_events_max = 65'536;
};

class Client {
 public:
  // Starts connecting in the background; a server that is away is no error.
  // Errors: InvalidArgument (no servers, a malformed or repeated address, an option by name).
  static absl::StatusOr<std::unique_ptr<Client>> Connect(ClientOptions options);
  ~Client();

  // Agrees with each server on the namespace, now or when the server comes back. Idempotent. A
  // server that refuses (it holds another layout under this id, hashes otherwise, or its extents
  // are smaller than a block) is not used for the namespace until it comes back as another
  // incarnation: loud, but no error as long as another server answers. A server that is away is no
  // error. Errors: InvalidArgument (layout); FailedPrecondition, InvalidArgument: every server that
  // answered refused. Asking again asks them again.
  // Also ResourceExhausted (namespaces_max).
  absl::StatusOr<NamespaceHandle> OpenNamespace(const NamespaceSpec& spec);

  // Which server has a block depends on the first block of its group. So, with several servers,
  // what is matched or published begins at block 0 of a chain, or at a block whose parent this
  // client matched or published before (it remembers the last 262,144 blocks at least); any other
  // is a miss, or kFailed.

  // Longest stored prefix of `chain`. Never fails: an unreachable server is a miss. An empty chain
  // matches nothing. host_blocks() and disk_blocks() are exact when one server answers, else
  // estimates that add up to blocks_count().
  PrefixMatch Match(const NamespaceHandle& ns, std::span<const ChainLink> chain,
                    const MatchCallOptions& options = {});

  // Match for the shards of one model (tensor- and pipeline-parallel ranks), which must agree on
  // how much they need not compute: one match a shard, all with the same blocks_count(), that of
  // the smallest common prefix, and the same pending_count(). Nothing is leased beyond it (with
  // several servers: unless blocks leave between the two halves of the call). REQUIRES: 1 to
  // kMatchShardsMax (256) shards, each with the same number of links.
  std::vector<PrefixMatch> MatchShards(std::span<const ShardLinks> shards,
                                       const MatchCallOptions& options = {});

  // For who is about to compute `links` and will publish them: reserves them from the first on, up
  // to the first block that is stored or that another client has claimed. A claim ends with its
  // publication, with Withdraw, with the session, or reservation_ttl after it was last made or
  // repeated; or when another client claims the block and takes over what is older than
  // `take_over_after`. Does not block past min(timeout, match_timeout).
  ClaimedPrefix Claim(const NamespaceHandle& ns, std::span<const ChainLink> links,
                      absl::Duration timeout = absl::InfiniteDuration(),
                      absl::Duration take_over_after = absl::InfiniteDuration());
  // Gives back what was claimed and is not being published. Best effort.
  void Withdraw(const NamespaceHandle& ns, std::span<const ChainLink> links,
                absl::Duration timeout = absl::InfiniteDuration());

  // Match for those who want to know and not to fetch: schedulers, operators. Needs no open
  // namespace (one that a server does not know has no blocks there), takes no lease and changes
  // nothing: no pin, no recency.
  PrefixCount Probe(const NamespaceId& ns, std::span<const ChainLink> chain,
                    absl::Duration timeout = absl::InfiniteDuration());

  // Copies blocks [first, first + into.size()) of the match into `into`, each of the layout's
  // payload size, checksums verified. Every block's result is in the answer; those not kOk must be
  // computed. Does not block past min(timeout, fetch_timeout). REQUIRES: first + into.size() <=
  // match.blocks_count().
  FetchResult Fetch(const PrefixMatch& match, uint32_t first, std::span<const MutableByteView> into,
                    absl::Duration timeout = absl::InfiniteDuration());

  // Blocks [first, first + count) of the match without a copy: those that a server on this host has
  // in its host tier, or reads from its disk into it. Others are empty; so are all when the
  // transport is not shm. Does not block past min(timeout, fetch_timeout). REQUIRES: first + count
  // <= match.blocks_count().
  BlocksInPlace FetchInPlace(const PrefixMatch& match, uint32_t first, uint32_t count,
                             absl::Duration timeout = absl::InfiniteDuration());

  // Best effort, idempotent: offers the links, sends what is wanted. payloads[i] is the block of
  // links[i].
  PublishResult Publish(const NamespaceHandle& ns, std::span<const ChainLink> links,
                        std::span<const ByteView> payloads, const PublishCallOptions& options = {});

  // Leaves all tiers of all servers; empty `keys`: the whole namespace; ns null: everything.
  // Returns the number of dropped blocks. Errors: Unavailable with the servers that did not (the
  // others did drop).
  absl::StatusOr<uint64_t> Drop(const NamespaceId* ns, std::span<const BlockKey> keys);

  std::vector<ServerStats> Stats();

  // Blocks as they come and go, on all servers, by connections of its own. A server that is away is
  // no error. Errors: InvalidArgument (queue_events_max, or more than 1,024 namespaces).
  absl::StatusOr<std::unique_ptr<StoreWatch>> Watch(StoreWatchOptions options);

  // A server is connected and answers.
  bool is_any_reachable() const;

 private:
  explicit Client(std::unique_ptr<ClientImpl> impl);
  std::unique_ptr<ClientImpl> impl_;
};

}  // namespace ibid
