// Private to client/: what stands behind Client and PrefixMatch.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "client/client.h"
#include "client/placement.h"
#include "client/server_link.h"
#include "core/clock.h"
#include "core/executor.h"
#include "core/mutex.h"

namespace ibid {

// Of the time that a call has, the part that the server may wait for pending blocks: the answer
// must still arrive.
inline constexpr double kWaitShare = 0.8;

// What one server leased to a match, or to the matches of several shards; it counts only while that
// session lives. Gives the lease back when it dies, without waiting: nothing when the session is
// gone, and the lease with it.
class HeldLease {
 public:
  // `lease_id` 0: matched without one.
  HeldLease(uint16_t server, uint64_t lease_id, std::weak_ptr<CacheSession> session)
      : server(server), lease_id(lease_id), session(std::move(session)) {}
  ~HeldLease();
  HeldLease(const HeldLease&) = delete;
  HeldLease& operator=(const HeldLease&) = delete;

  const uint16_t server;
  const uint64_t lease_id;
  const std::weak_ptr<CacheSession> session;
};

struct PrefixMatch::State {
  // Keeps the first `count` blocks, and the leases that hold any of them.
  void Shorten(uint32_t count);

  NamespaceHandle ns;
  std::vector<BlockKey> keys;           // of the matched blocks
  std::vector<uint32_t> lease_indices;  // one a key: into `leases`
  std::vector<std::shared_ptr<HeldLease>> leases;
  uint32_t pending_count = 0, host_blocks = 0, disk_blocks = 0;
  bool is_complete = false;
};

struct BlocksInPlace::State {
  struct Block {
    std::shared_ptr<const ShmAttachment> shm;  // null: it is not there
    LocatedBlock located;
    ByteView bytes;
  };
  std::vector<Block> blocks;
  std::vector<std::shared_ptr<HeldLease>> leases;
};

// Thread safety: thread-safe. Each method is the one of Client.
class ClientImpl {
 public:
  explicit ClientImpl(ClientOptions options);
  ~ClientImpl();

  absl::Status Start();
  absl::StatusOr<NamespaceHandle> OpenNamespace(const NamespaceSpec& spec);
  PrefixMatch Match(const NamespaceHandle& ns, std::span<const ChainLink> chain,
                    const MatchCallOptions& options);
  std::vector<PrefixMatch> MatchShards(std::span<const ShardLinks> shards,
                                       const MatchCallOptions& options);
  ClaimedPrefix Claim(const NamespaceHandle& ns, std::span<const ChainLink> links,
                      absl::Duration timeout, absl::Duration take_over_after);
  void Withdraw(const NamespaceHandle& ns, std::span<const ChainLink> links,
                absl::Duration timeout);
  PrefixCount Probe(const NamespaceId& ns, std::span<const ChainLink> chain,
                    absl::Duration timeout);
  FetchResult Fetch(const PrefixMatch& match, uint32_t first, std::span<const MutableByteView> into,
                    absl::Duration timeout);
  PublishResult Publish(const NamespaceHandle& ns, std::span<const ChainLink> links,
                        std::span<const ByteView> payloads, const PublishCallOptions& options);
  BlocksInPlace FetchInPlace(const PrefixMatch& match, uint32_t first, uint32_t count,
                             absl::Duration timeout);
  absl::StatusOr<uint64_t> Drop(const NamespaceId* ns, std::span<const BlockKey> keys);
  std::vector<ServerStats> Stats();
  absl::StatusOr<std::unique_ptr<StoreWatch>> Watch(StoreWatchOptions options);
  bool is_any_reachable() const;

 private:
  struct MatchPart;
  struct MatchQuery;
  struct FetchPart;
  struct PublishPart;
  struct Metrics {
    prometheus::Counter *matched_blocks = nullptr, *unmatched_blocks = nullptr,
                        *fetched_blocks = nullptr, *missed_blocks = nullptr,
                        *corrupt_blocks = nullptr, *fetched_bytes = nullptr,
                        *published_blocks = nullptr, *present_blocks = nullptr,
                        *pending_blocks = nullptr, *unpublished_blocks = nullptr,
                        *published_bytes = nullptr;
  };

  absl::Time DeadlineIn(absl::Duration timeout, absl::Duration limit) const {
    return clock_.Now() + std::min(timeout, limit);
  }
  void RegisterMetrics();

  // In match.cc.
  std::vector<MatchPart> SplitForMatch(std::span<const ChainLink> chain);
  void MatchOnServer(const MatchQuery& query, MatchPart* part);
  std::vector<MatchPart> RunMatch(const MatchQuery& query, std::span<const ChainLink> chain);
  PrefixMatch MatchOne(const NamespaceHandle& ns, std::span<const ChainLink> chain,
                       const MatchCallOptions& options, absl::Time deadline);
  // In match_shards.cc.
  std::vector<PrefixMatch> MatchShardsAtOnce(std::span<const ShardLinks> shards,
                                             const MatchCallOptions& options, absl::Time deadline);
  std::vector<PrefixMatch> MatchShardsApart(std::span<const ShardLinks> shards,
                                            const MatchCallOptions& options, absl::Time deadline);
  // In fetch_in_place.cc.
  void LocateOnServer(const PrefixMatch::State& match, uint32_t lease_index, uint32_t first,
                      absl::Time deadline, BlocksInPlace::State* blocks);
  // In fetch.cc.
  void FetchFromServer(const NamespaceHandle& ns, absl::Time deadline, FetchPart* part,
                       FetchResult* result);
  void ReportCorrupt(const NamespaceHandle& ns, absl::Time deadline, const FetchPart& part,
                     const FetchResult& result);
  // In publish.cc.
  std::vector<PublishPart> SplitForPublish(std::span<const ChainLink> links, PublishResult* result);
  void PublishToServer(const NamespaceHandle& ns, std::span<const ChainLink> links,
                       std::span<const ByteView> payloads, const PublishCallOptions& options,
                       absl::Time deadline, PublishPart* part, PublishResult* result);
  void WaitForOthers(const NamespaceHandle& ns, std::span<const ChainLink> links,
                     absl::Time deadline, absl::Duration wait, const PublishPart& part,
                     PublishResult* result);

  const ClientOptions options_;
  const SteadyClock clock_;
  Placement placement_;
  Metrics metrics_;
  std::vector<std::unique_ptr<ServerLink>> links_;  // in the order of options_.servers
  Executor executor_;                               // ends before the links that its work uses

  Mutex mutex_;
  absl::flat_hash_map<NamespaceId, uint32_t> namespace_indices_ IBID_GUARDED_BY(mutex_);
};

}  // namespace ibid
