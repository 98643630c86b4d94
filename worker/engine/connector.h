// Connector takes the engine's questions to the store and brings back the answers. The store's
// calls block, so they run on threads of their own; the engine thread starts a job and finds it,
// done, among its completions. Pages travel inside the job: while a call is running, they belong to
// it, also when nobody waits for the answer any more (docs/testing.md 6, 10).
//
// Thread safety: owned by the engine thread. `on_done` is called on the connector's threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "core/clock.h"
#include "core/executor.h"
#include "core/mutex.h"
#include "worker/engine/page_pool.h"
#include "worker/engine/request.h"

namespace ibid {

struct ConnectorOptions {
  absl::Duration match_timeout = absl::Milliseconds(500);
  absl::Duration fetch_timeout = absl::Seconds(5);
  absl::Duration publish_timeout = absl::Seconds(10);
  // For blocks that another worker is publishing: a decode at its match, a prefill at its end.
  absl::Duration wait_pending = absl::Milliseconds(200);
  // After a publication of which something failed: when the request offers its blocks again. Its
  // end does in any case.
  absl::Duration publish_retry = absl::Seconds(1);
  // After a store that refused a namespace: when it is asked again. Its servers may come back with
  // another configuration.
  absl::Duration refused_retry = absl::Seconds(10);
  // Single flight: the longest that a request waits for blocks which other workers are computing.
  // Zero: it neither claims nor waits.
  absl::Duration single_flight_wait = absl::Seconds(10);
  // What such a wait is given at least before the claim of others is taken over, unless they have
  // come on meanwhile.
  absl::Duration await_min = absl::Seconds(1);
  // How often a claim is repeated while its blocks are being computed: well within await_min, and
  // within the servers' reservation_ttl.
  absl::Duration claim_renewal = absl::Milliseconds(400);
  uint32_t claim_blocks_min = 4;       // fewer missing blocks are computed without asking
  uint32_t claim_blocks_max = 4'096;   // that one request claims ahead
  uint32_t awaits_max = 16;            // requests that wait for others at a time; more compute
  uint32_t read_threads_count = 4;     // matches and fetches at a time
  uint32_t read_queue_max = 1'024;     // jobs
  uint32_t publish_queue_max = 1'024;  // jobs
  // Namespaces that requests are using at a time; the least recently used ones make room. A request
  // beyond that does without the store.
  uint32_t salts_max = 1'024;
};

// One namespace at the store; opened by the first job that needs it.
class StoreNamespace {
 public:
  StoreNamespace(NamespaceSpec spec, absl::Duration refused_retry)
      : spec_(std::move(spec)), refused_retry_(refused_retry) {}

  // Thread-safe; may block for as long as the client's call. An error stands for `refused_retry`.
  absl::StatusOr<NamespaceHandle> Open(Client& client);

 private:
  const NamespaceSpec spec_;
  const absl::Duration refused_retry_;
  const SteadyClock clock_;
  Mutex mutex_;
  std::optional<absl::StatusOr<NamespaceHandle>> opened_ IBID_GUARDED_BY(mutex_);
  absl::Time retry_at_ IBID_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

// What all jobs have. A job that is abandoned before it starts does nothing; after it started, its
// answer is ignored.
struct StoreJob {
  virtual ~StoreJob() = default;
  RequestId request;
  std::shared_ptr<StoreNamespace> ns;
  std::atomic<bool> is_abandoned = false;
};

struct MatchJob : StoreJob {
  std::vector<ChainLink> links;  // consecutive, the first at a multiple of kPlacementGroupBlocks
  absl::Duration wait_pending = absl::ZeroDuration();
  bool is_await = false;  // of a sequence in kAwaiting
  PrefixMatch match;      // the answer
};

struct ClaimJob : StoreJob {
  enum class Kind { kFirst, kRenewal, kWithdrawal };
  Kind kind = Kind::kFirst;
  absl::Duration take_over_after = absl::InfiniteDuration();  // kFirst, of who has waited so long
  std::vector<ChainLink> links;
  PrefixMatch match;  // kFirst: what was found before, from block `match_start` on
  size_t match_start = 0;
  ClaimedPrefix claim;  // the answer
};

struct FetchJob : StoreJob {
  PrefixMatch match;
  uint32_t first = 0;  // block of the match that goes into pages[0]
  std::vector<OpenPage> pages;
  uint32_t leading_ok = 0;  // the answer: only so many pages may be used (docs/testing.md 4)
};

struct PublishJob : StoreJob {
  std::vector<SealedPage> pages;
  bool is_last_of_prefill = false;   // someone waits for the answer
  std::vector<BlockResult> results;  // the answer; one a page, or empty
  uint32_t stored_count = 0;
  bool is_complete = false;
};

using StoreCompletion = std::variant<std::shared_ptr<MatchJob>, std::shared_ptr<ClaimJob>,
                                     std::shared_ptr<FetchJob>, std::shared_ptr<PublishJob>>;

// Blocks of a chain that the client places together: a match starts at such a boundary, so that the
// client can tell where. The same as ClientOptions::placement_group_blocks.
inline constexpr uint32_t kPlacementGroupBlocks = 64;

class Connector {
 public:
  // `client` must outlive the connector; `on_done` is called once for each job that was started.
  Connector(Client* client, ConnectorOptions options, std::function<void(StoreCompletion)> on_done);
  // Waits for the jobs that run, each of which has a deadline.
  ~Connector();

  // Null when salts_max others are in use: held by callers or by jobs.
  std::shared_ptr<StoreNamespace> FindNamespace(const NamespaceSpec& spec, const NamespaceId& id);

  // False, and nothing happens, when the queue is full: the caller computes, or does without
  // publishing.
  [[nodiscard]] bool Match(const std::shared_ptr<MatchJob>& job);
  // A match that waits for most of its time. False when awaits_max of them run.
  [[nodiscard]] bool Await(const std::shared_ptr<MatchJob>& job);
  [[nodiscard]] bool Claim(const std::shared_ptr<ClaimJob>& job);
  [[nodiscard]] bool Fetch(const std::shared_ptr<FetchJob>& job);
  [[nodiscard]] bool Publish(const std::shared_ptr<PublishJob>& job);

  const ConnectorOptions& options() const { return options_; }

 private:
  struct KnownNamespace {
    std::shared_ptr<StoreNamespace> ns;
    uint64_t used_at = 0;  // uses_count_ then
  };

  bool EvictNamespace();
  void Run(MatchJob& job);
  void Run(ClaimJob& job);
  void Run(FetchJob& job);
  void Run(PublishJob& job);
  template <typename Job>
  bool Start(Executor& executor, const std::shared_ptr<Job>& job);

  Client* const client_;
  const ConnectorOptions options_;
  const std::function<void(StoreCompletion)> on_done_;
  absl::flat_hash_map<NamespaceId, KnownNamespace> namespaces_;
  uint64_t uses_count_ = 0;
  std::atomic<bool> is_stopping_ = false;
  std::atomic<uint32_t> awaits_count_ = 0;
  // Last, so that their threads end first.
  std::unique_ptr<Executor> readers_;
  std::unique_ptr<Executor> waiters_;  // apart, so that waiting never holds up reading
  // Apart, so that publishing never holds up reading; one thread, so that a chain's blocks arrive
  // in order: the client places a block by the one before it.
  std::unique_ptr<Executor> publisher_;
};

}  // namespace ibid
