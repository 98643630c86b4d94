// Single flight: of the workers that miss the same prefix at the same time one computes it, and the
// others fetch it from the store.
//
//   match ---> all there -------------------------------------------------> fetch, run
//     ^  '---> some missing, nobody at it ---> claim ---> ours -----------> fetch, run, publish
//     |  |                                       |
//     |  '---> some missing, pending ---.        '---> refused ---.
//     |                                 v                         v
//     '-------- settled, or a slice ---- wait <-------------------'
//                                         |                       |
//                                         '-> patience is over -> claim what is stale
//
// Claims are taken from the front of a chain on and stop at the first refusal (Client::Claim), and
// who waits holds none: so no two workers wait for each other. The claim of a worker that ends
// lapses at the store; then one of those who waited claims what is left. One that lives and does
// not come on (it hangs, or is cut off) repeats its claim no more: the first whose patience ends
// takes it over, and the others, whose patience ends at about the same time, find a new claim and
// wait for that one. A part that another has claimed behind one's own is computed here too: who has
// work in hand does not wait, and such parts come only of blocks that were lost while somebody
// computed the end of their chain. Patience is a multiple of what computing would take. All waiting
// of a request is bounded by single_flight_wait; after that, and whenever the store fails, it is
// computed as if nobody else were there.
#include <algorithm>

#include "worker/engine/engine_loop.h"

namespace ibid {
namespace {

// A wait is given await_min at least, and this multiple of the time that computing the blocks here
// would take: whoever has claimed them may have more to do at the moment.
constexpr double kAwaitFactor = 4;
// Refusals of one block, and waits for it that the store ended early: then it is computed.
constexpr uint32_t kRefusalsMax = 8;

}  // namespace

bool EngineLoop::ClaimsBlocks(const Sequence& sequence) const {
  return options_.publishes && sequence.reads_store() && sequence.writes_store() &&
         connector_->options().single_flight_wait > absl::ZeroDuration();
}

// After a match: claims what is missing, or waits for who has claimed it. False when the sequence
// shall go on with what was found.
bool EngineLoop::StartClaim(Sequence& sequence, MatchJob& matched) {
  if (!ClaimsBlocks(sequence) || !matched.match.is_complete()) return false;
  const ConnectorOptions& limits = connector_->options();
  const size_t start = matched.links.front().position;
  const size_t stored = start + matched.match.blocks_count();
  const size_t begin = std::max(stored, sequence.own_hits.size());
  const size_t end = std::min<size_t>(sequence.chain.size(), begin + limits.claim_blocks_max);
  if (end < begin + limits.claim_blocks_min) return false;
  const bool is_own_claim = sequence.claimed_begin <= begin && begin < sequence.claimed_end;
  const bool is_pending = matched.match.pending_count() > 0 && stored == begin && !is_own_claim;
  const bool takes_over = IsOutOfPatience(sequence, begin);
  if (is_pending && !takes_over) {
    const bool is_early =
        matched.is_await && clock_.Now() < sequence.await_began + AwaitSlice() / 2;
    return StartAwait(sequence, begin, /*is_refusal=*/is_early);
  }
  auto job = std::make_shared<ClaimJob>();
  job->request = sequence.id;
  job->ns = sequence.store_ns;
  job->links.assign(sequence.chain.begin() + begin, sequence.chain.begin() + end);
  job->match_start = start;
  if (takes_over) job->take_over_after = clock_.Now() - sequence.await_since;
  job->match = std::move(matched.match);
  if (!connector_->Claim(job)) {
    matched.match = std::move(job->match);
    return false;
  }
  sequence.store_job = std::move(job);
  sequence.phase = SequencePhase::kClaiming;
  sequence.store_deadline = clock_.Now() + limits.match_timeout;
  return true;
}

void EngineLoop::OnDone(std::shared_ptr<ClaimJob> job) {
  if (job->kind == ClaimJob::Kind::kWithdrawal) return;
  const size_t begin = job->links.front().position;
  const size_t wanted = job->claim.wanted_count;
  if (job->kind == ClaimJob::Kind::kRenewal) {
    const auto it = sequences_.find(job->request);
    if (it == sequences_.end())
      return Withdraw(job->ns, {job->links.begin(), job->links.begin() + wanted});
    it->second->claimed_end = std::max(it->second->claimed_end, begin + wanted);
    return;
  }
  Sequence* sequence = FindAwaiting(job.get());
  // It is gone, or went on without: others need not wait for it.
  if (sequence == nullptr)
    return Withdraw(job->ns, {job->links.begin(), job->links.begin() + wanted});
  if (wanted > 0) {
    const bool is_first = sequence->claimed_begin == sequence->claimed_end;
    sequence->claimed_begin = is_first ? begin : std::min(sequence->claimed_begin, begin);
    sequence->claimed_end = std::max(sequence->claimed_end, begin + wanted);
    sequence->claim_renewal_at = clock_.Now() + connector_->options().claim_renewal;
    counts_.claimed_blocks += wanted;
  } else if (job->claim.refusal == BlockResult::kPending ||
             job->claim.refusal == BlockResult::kPresent) {
    // Another was first to take it over, or its owner has come on.
    if (job->take_over_after < absl::InfiniteDuration()) BeginPatience(*sequence, begin);
    if (StartAwait(*sequence, begin, /*is_refusal=*/true)) return;
  }
  if (!StartFetch(*sequence, std::move(job->match), job->match_start)) StartRunning(*sequence, {});
}

absl::Duration EngineLoop::AwaitSlice() const {
  // The client keeps some of its deadline for the answer.
  return connector_->options().match_timeout / 2;
}

void EngineLoop::BeginPatience(Sequence& sequence, size_t begin) {
  const ConnectorOptions& limits = connector_->options();
  const double missing_tokens =
      static_cast<double>((sequence.chain.size() - begin) * block_tokens_);
  absl::Duration patience = absl::InfiniteDuration();
  if (prefill_tokens_per_second_ > 0) {
    patience = absl::Seconds(kAwaitFactor * missing_tokens / prefill_tokens_per_second_);
  }
  // Half of the time is left for whoever takes over.
  patience = std::min(std::max(limits.await_min, patience), limits.single_flight_wait / 2);
  sequence.await_since = clock_.Now();
  sequence.await_until = std::min(sequence.await_limit, sequence.await_since + patience);
  sequence.await_begin = begin;
  sequence.refusals_count = 0;
}

// It has waited for the block at `begin` for as long as one is waited for without progress.
bool EngineLoop::IsOutOfPatience(const Sequence& sequence, size_t begin) const {
  return sequence.await_limit != absl::InfinitePast() && begin <= sequence.await_begin &&
         clock_.Now() >= sequence.await_until;
}

// Waits for the block at `begin`, and those behind it. False when it is time to compute them.
bool EngineLoop::StartAwait(Sequence& sequence, size_t begin, bool is_refusal) {
  const ConnectorOptions& limits = connector_->options();
  const absl::Time now = clock_.Now();
  const bool is_first = sequence.await_limit == absl::InfinitePast();
  if (is_first) {
    sequence.await_limit = now + limits.single_flight_wait;
    ++counts_.awaited_requests;
  }
  if (is_first || begin > sequence.await_begin) BeginPatience(sequence, begin);
  if (is_refusal) ++sequence.refusals_count;
  std::shared_ptr<MatchJob> job = MakeMatchJob(sequence);
  job->is_await = true;
  job->wait_pending = std::min(AwaitSlice(), sequence.await_until - now);
  if (now >= sequence.await_until || sequence.refusals_count > kRefusalsMax ||
      !connector_->Await(job)) {
    ++counts_.given_up_awaits;
    return false;
  }
  sequence.store_job = std::move(job);
  sequence.phase = SequencePhase::kAwaiting;
  sequence.await_began = now;
  sequence.store_deadline = now + limits.match_timeout + AwaitSlice();
  return true;
}

// While its blocks are being computed a claim gets new terms, and follows a chain that is longer
// than claim_blocks_max.
void EngineLoop::RenewClaim(Sequence& sequence) {
  const size_t begin = sequence.table.sealed().size();
  if (begin >= sequence.claimed_end || clock_.Now() < sequence.claim_renewal_at) return;
  const ConnectorOptions& limits = connector_->options();
  sequence.claim_renewal_at = clock_.Now() + limits.claim_renewal;
  const size_t end = std::min<size_t>(sequence.chain.size(), begin + limits.claim_blocks_max);
  if (begin >= end) return;
  auto job = std::make_shared<ClaimJob>();
  job->kind = ClaimJob::Kind::kRenewal;
  job->request = sequence.id;
  job->ns = sequence.store_ns;
  job->links.assign(sequence.chain.begin() + begin, sequence.chain.begin() + end);
  (void)connector_->Claim(job);  // else later, or the claim lapses
}

// Of a sequence that ends: what it has claimed and will not publish.
void EngineLoop::WithdrawClaims(const Sequence& sequence) {
  if (sequence.claimed_begin == sequence.claimed_end) return;
  const absl::flat_hash_set<BlockKey> on_their_way = KeysOnTheirWay(sequence);
  const auto sealed = sequence.table.sealed();
  std::vector<ChainLink> links;
  for (size_t i = sequence.claimed_begin; i < sequence.claimed_end; ++i) {
    const ChainLink& link = sequence.chain[i];
    const bool is_published =
        on_their_way.contains(link.key) || (i < sealed.size() && pool_->is_published(sealed[i]));
    if (!is_published) links.push_back(link);
  }
  Withdraw(sequence.store_ns, std::move(links));
}

void EngineLoop::Withdraw(const std::shared_ptr<StoreNamespace>& ns, std::vector<ChainLink> links) {
  if (links.empty()) return;
  auto job = std::make_shared<ClaimJob>();
  job->kind = ClaimJob::Kind::kWithdrawal;
  job->ns = ns;
  job->links = std::move(links);
  (void)connector_->Claim(job);  // else the claims end with their term
}

}  // namespace ibid
