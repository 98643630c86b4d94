#include "worker/engine/connector.h"

#include <type_traits>
#include <utility>

#include "core/check.h"
#include "core/log.h"

namespace ibid {
namespace {

// Between two log lines of one place.
constexpr int kLogPeriodSeconds = 10;

}  // namespace

absl::StatusOr<NamespaceHandle> StoreNamespace::Open(Client& client) {
  {
    MutexLock lock(mutex_);
    if (opened_.has_value() && (opened_->ok() || clock_.Now() < retry_at_)) return *opened_;
  }
  // Two jobs may both ask: opening is idempotent, and no lock is held during the call.
  absl::StatusOr<NamespaceHandle> opened = client.OpenNamespace(spec_);
  if (!opened.ok()) {
    IBID_LOG_EVERY(kLogPeriodSeconds, error,
                   "the store refuses this worker's KV, which is computed without it; it is asked "
                   "again in {}: {}",
                   absl::FormatDuration(refused_retry_), opened.status().ToString());
  }
  MutexLock lock(mutex_);
  opened_ = opened;
  retry_at_ = clock_.Now() + refused_retry_;
  return opened;
}

Connector::Connector(Client* client, ConnectorOptions options,
                     std::function<void(StoreCompletion)> on_done)
    : client_(client), options_(std::move(options)), on_done_(std::move(on_done)) {
  IBID_CHECK(client_ != nullptr);
  readers_ = std::make_unique<Executor>("ibid-fetch", options_.read_threads_count,
                                        options_.read_queue_max);
  waiters_ = std::make_unique<Executor>("ibid-await", options_.awaits_max, options_.awaits_max);
  publisher_ = std::make_unique<Executor>("ibid-publish", 1, options_.publish_queue_max);
}

Connector::~Connector() {
  is_stopping_ = true;
  publisher_.reset();
  waiters_.reset();
  readers_.reset();
}

std::shared_ptr<StoreNamespace> Connector::FindNamespace(const NamespaceSpec& spec,
                                                         const NamespaceId& id) {
  auto it = namespaces_.find(id);
  if (it == namespaces_.end()) {
    if (namespaces_.size() >= options_.salts_max && !EvictNamespace()) {
      IBID_LOG_EVERY(kLogPeriodSeconds, warn,
                     "a request does without the store: salts_max={} namespaces are in use",
                     options_.salts_max);
      return nullptr;
    }
    auto ns = std::make_shared<StoreNamespace>(spec, options_.refused_retry);
    it = namespaces_.emplace(id, KnownNamespace{std::move(ns)}).first;
  }
  it->second.used_at = ++uses_count_;
  return it->second.ns;
}

// False when all are in use.
bool Connector::EvictNamespace() {
  auto victim = namespaces_.end();
  for (auto it = namespaces_.begin(); it != namespaces_.end(); ++it) {
    // Only this map has it, and only this thread could give it to somebody.
    const bool is_unused = it->second.ns.use_count() == 1;
    if (is_unused && (victim == namespaces_.end() || it->second.used_at < victim->second.used_at)) {
      victim = it;
    }
  }
  if (victim == namespaces_.end()) return false;
  namespaces_.erase(victim);
  return true;
}

template <typename Job>
bool Connector::Start(Executor& executor, const std::shared_ptr<Job>& job) {
  // Captured as a value that can be moved out: a copy left in the queue would let handles die on
  // its thread.
  return executor.TrySubmit([this, job = std::shared_ptr<Job>(job)]() mutable {
    if (!job->is_abandoned && !is_stopping_) Run(*job);
    if constexpr (std::is_same_v<Job, MatchJob>) awaits_count_ -= job->is_await ? 1 : 0;
    // The handles in the job die on the engine thread.
    on_done_(StoreCompletion(std::move(job)));
  });
}

bool Connector::Match(const std::shared_ptr<MatchJob>& job) { return Start(*readers_, job); }

bool Connector::Await(const std::shared_ptr<MatchJob>& job) {
  // No more than there are threads: who had to queue for one would wait for nothing.
  if (awaits_count_.fetch_add(1) < options_.awaits_max && Start(*waiters_, job)) return true;
  --awaits_count_;
  return false;
}

bool Connector::Claim(const std::shared_ptr<ClaimJob>& job) {
  // A withdrawal comes after what was published before it.
  const bool is_withdrawal = job->kind == ClaimJob::Kind::kWithdrawal;
  return Start(is_withdrawal ? *publisher_ : *readers_, job);
}

bool Connector::Fetch(const std::shared_ptr<FetchJob>& job) { return Start(*readers_, job); }
bool Connector::Publish(const std::shared_ptr<PublishJob>& job) { return Start(*publisher_, job); }

void Connector::Run(MatchJob& job) {
  const absl::StatusOr<NamespaceHandle> ns = job.ns->Open(*client_);
  if (!ns.ok()) return;
  MatchCallOptions call;
  call.timeout = options_.match_timeout;
  call.wait_pending = job.wait_pending;
  call.is_repeat = job.is_await;  // its first match found too little
  job.match = client_->Match(*ns, job.links, call);
}

void Connector::Run(ClaimJob& job) {
  const absl::StatusOr<NamespaceHandle> ns = job.ns->Open(*client_);
  if (!ns.ok()) return;
  if (job.kind == ClaimJob::Kind::kWithdrawal) return client_->Withdraw(*ns, job.links);
  job.claim = client_->Claim(*ns, job.links, options_.match_timeout, job.take_over_after);
}

void Connector::Run(FetchJob& job) {
  std::vector<MutableByteView> into;
  into.reserve(job.pages.size());
  for (const OpenPage& page : job.pages) into.push_back(page.bytes());
  const FetchResult result = client_->Fetch(job.match, job.first, into, options_.fetch_timeout);
  IBID_CHECK(result.leading_ok <= job.pages.size());
  job.leading_ok = result.leading_ok;
  if (!result.status.ok()) {
    IBID_LOG_EVERY(kLogPeriodSeconds, warn, "fetched {} of {} blocks, computing the rest: {}",
                   result.leading_ok, job.pages.size(), result.status.ToString());
  }
}

void Connector::Run(PublishJob& job) {
  const absl::StatusOr<NamespaceHandle> ns = job.ns->Open(*client_);
  if (!ns.ok()) return;
  std::vector<ChainLink> links;
  std::vector<ByteView> payloads;
  for (const SealedPage& page : job.pages) {
    links.push_back(page.link());
    payloads.push_back(page.payload());
  }
  PublishCallOptions call;
  call.timeout = options_.publish_timeout;
  // Someone is told whether all of the chain is there: others may be storing parts of it now.
  if (job.is_last_of_prefill) call.wait_pending = options_.wait_pending;
  PublishResult result = client_->Publish(*ns, links, payloads, call);
  IBID_CHECK(result.blocks.size() == job.pages.size());
  job.is_complete = result.is_complete();
  job.stored_count = result.stored_count;
  job.results = std::move(result.blocks);
  if (!result.status.ok()) {
    IBID_LOG_EVERY(kLogPeriodSeconds, warn, "published {} of {} blocks: {}",
                   result.stored_count + result.present_count + result.pending_count,
                   job.pages.size(), result.status.ToString());
  }
}

}  // namespace ibid
