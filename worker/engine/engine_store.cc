// What is there already: this worker's pages, then the store.
//
// A sequence waits for the store at most until store_deadline. An answer that comes later is
// dropped, with its pages.
#include <algorithm>

#include "core/check.h"
#include "worker/engine/engine_loop.h"

namespace ibid {

// Leading blocks of the lookup that can save work: a sequence that needs logits computes at least
// its newest token.
size_t EngineLoop::UsefulBlocks(const Sequence& sequence) const {
  return (sequence.tokens.size() - 1 + block_tokens_ - 1) / block_tokens_;
}

ChainLink EngineLoop::TailLink(const Sequence& sequence, size_t tokens_count) const {
  const size_t full = tokens_count / block_tokens_;
  IBID_CHECK(tokens_count % block_tokens_ != 0 && sequence.chain.size() >= full);
  const BlockKey parent = full == 0 ? RootParent(sequence.ns) : sequence.chain[full - 1].key;
  const auto tokens = std::span<const uint32_t>(sequence.tokens)
                          .subspan(full * block_tokens_, tokens_count - full * block_tokens_);
  return {MakeBlockKey(parent, tokens), parent, static_cast<uint32_t>(tokens.size()),
          static_cast<uint32_t>(full)};
}

void EngineLoop::BeginLookup(Sequence& sequence) {
  waiting_.erase(&sequence);
  if (!sequence.was_admitted) {
    sequence.was_admitted = true;
    inbox_->OnAdmitted(1);
  }
  const size_t count = sequence.lookup_count();
  ExtendChain(sequence.ns, std::span<const uint32_t>(sequence.tokens).first(count), block_tokens_,
              /*with_tail=*/false, &sequence.chain);
  sequence.lookup_tail.reset();
  if (count % block_tokens_ != 0) sequence.lookup_tail = TailLink(sequence, count);

  FindOwnBlocks(sequence);
  const bool is_missing_some = sequence.own_hits.size() < UsefulBlocks(sequence);
  if (is_missing_some && sequence.reads_store() && StartMatch(sequence)) return;
  StartRunning(sequence, {});
}

void EngineLoop::FindOwnBlocks(Sequence& sequence) {
  if (sequence.request.ignores_worker_cache) return;
  const size_t useful = UsefulBlocks(sequence);
  const size_t full_useful = std::min(useful, sequence.chain.size());
  sequence.own_hits = pool_->Match(std::span<const ChainLink>(sequence.chain).first(full_useful));
  if (sequence.own_hits.size() == sequence.chain.size() && useful > full_useful &&
      sequence.lookup_tail) {
    for (SealedPage& page : pool_->Match({&*sequence.lookup_tail, 1}))
      sequence.own_hits.push_back(std::move(page));
  }
}

std::shared_ptr<MatchJob> EngineLoop::MakeMatchJob(const Sequence& sequence) const {
  const auto useful = std::span<const ChainLink>(sequence.chain)
                          .first(std::min(UsefulBlocks(sequence), sequence.chain.size()));
  const size_t start = sequence.own_hits.size() / kPlacementGroupBlocks * kPlacementGroupBlocks;
  auto job = std::make_shared<MatchJob>();
  job->request = sequence.id;
  job->ns = sequence.store_ns;
  job->links.assign(useful.begin() + std::min(start, useful.size()), useful.end());
  if (sequence.lookup_tail.has_value() && useful.size() < UsefulBlocks(sequence)) {
    job->links.push_back(*sequence.lookup_tail);
  }
  return job;
}

bool EngineLoop::StartMatch(Sequence& sequence) {
  const ConnectorOptions& limits = connector_->options();
  std::shared_ptr<MatchJob> job = MakeMatchJob(sequence);
  if (sequence.request.kind == RequestKind::kDecode) job->wait_pending = limits.wait_pending;
  const absl::Duration wait = limits.match_timeout + job->wait_pending;
  if (job->links.empty() || !connector_->Match(job)) return false;
  sequence.store_job = std::move(job);
  sequence.await_limit = absl::InfinitePast();
  sequence.awaited = absl::ZeroDuration();
  sequence.store_wait_since = clock_.Now();
  sequence.store_deadline = sequence.store_wait_since + std::min(wait, limits.fetch_timeout);
  sequence.phase = SequencePhase::kMatching;
  in_store_.insert(&sequence);
  return true;
}

// The sequence that waits for this job's answer; null when it went on without, or is gone.
Sequence* EngineLoop::FindAwaiting(const StoreJob* job) {
  const auto it = sequences_.find(job->request);
  return it != sequences_.end() && it->second->store_job.get() == job ? it->second.get() : nullptr;
}

void EngineLoop::OnDone(std::shared_ptr<MatchJob> job) {
  Sequence* sequence = FindAwaiting(job.get());
  if (sequence == nullptr) return;
  if (job->is_await) {
    sequence->awaited += clock_.Now() - sequence->await_began;
    FindOwnBlocks(*sequence);  // another sequence of this worker may have computed them
  }
  const size_t start = job->links.front().position;
  const size_t stored = start + job->match.blocks_count();
  // The store lost what this worker still has: it is published again.
  for (size_t i = stored; i < sequence->own_hits.size(); ++i) {
    pool_->MarkPublished(sequence->own_hits[i], /*is_published=*/false);
  }
  if (StartClaim(*sequence, *job)) return;
  if (!StartFetch(*sequence, std::move(job->match), start)) StartRunning(*sequence, {});
}

// `match` is about the chain from block `start` on.
bool EngineLoop::StartFetch(Sequence& sequence, PrefixMatch match, size_t start) {
  const size_t own = sequence.own_hits.size();
  const size_t stored = start + match.blocks_count();
  if (stored <= own) return false;
  // Leaves a page for each running sequence's next token.
  const size_t spare = running_.size() + 1;
  const size_t room = pool_->available_count() - std::min(pool_->available_count(), spare);
  const size_t count = std::min(stored - own, room);
  if (count == 0) return false;
  auto job = std::make_shared<FetchJob>();
  job->request = sequence.id;
  job->ns = sequence.store_ns;
  job->match = std::move(match);
  job->first = static_cast<uint32_t>(own - start);
  job->pages = pool_->Take(count);
  if (!connector_->Fetch(job)) return false;
  sequence.store_job = std::move(job);
  sequence.phase = SequencePhase::kFetching;
  // Waiting for other workers is not the store's time.
  sequence.store_deadline =
      sequence.store_wait_since + sequence.awaited + connector_->options().fetch_timeout;
  return true;
}

void EngineLoop::OnDone(std::shared_ptr<FetchJob> job) {
  const bool is_whole = job->leading_ok == job->pages.size();
  Sequence* sequence = FindAwaiting(job.get());
  if (sequence == nullptr) return;  // the deadline has counted it
  if (!is_whole) ++counts_.fetch_failures;
  job->pages.erase(job->pages.begin() + job->leading_ok, job->pages.end());
  StartRunning(*sequence, std::move(job->pages));
}

// With all that was found, the sequence joins those that run. `fetched` are the blocks after
// own_hits.
void EngineLoop::StartRunning(Sequence& sequence, std::vector<OpenPage> fetched) {
  if (in_store_.erase(&sequence) > 0)
    sequence.store_wait += clock_.Now() - sequence.store_wait_since;
  sequence.store_job.reset();
  const std::vector<SealedPage> own = std::exchange(sequence.own_hits, {});
  const size_t blocks = own.size() + fetched.size();
  size_t found = std::min(std::min(blocks * block_tokens_, sequence.lookup_count()),
                          sequence.tokens.size() - 1);
  const size_t whole = found / block_tokens_;  // blocks that nothing is written to any more

  std::vector<SealedPage> sealed(own.begin(), own.begin() + std::min(own.size(), whole));
  for (size_t i = own.size(); i < whole; ++i) {
    sealed.push_back(pool_->Seal(std::move(fetched[i - own.size()]), sequence.chain[i]));
    pool_->MarkPublished(sealed.back());
  }
  // The block that the next token goes into is found, too: it becomes writable.
  std::vector<OpenPage> open;
  if (found % block_tokens_ != 0) {
    if (whole >= own.size()) {
      open.push_back(std::move(fetched[whole - own.size()]));
    } else if (std::optional<OpenPage> copy = pool_->CopyToOpen(own[whole])) {
      open.push_back(*std::move(copy));
    } else {
      found = whole * block_tokens_;
    }
  }
  sequence.is_prompt_tail_published = sequence.lookup_tail.has_value() &&
                                      blocks > sequence.chain.size() &&
                                      (fetched.size() > 0 || pool_->is_published(own.back()));
  if (sequence.usage.prompt_tokens == 0) {
    const size_t prompt = sequence.prompt_count();
    const size_t from_worker = std::min({own.size() * block_tokens_, found, prompt});
    const size_t from_store = std::min(found, prompt) - from_worker;
    sequence.usage = {static_cast<uint32_t>(prompt), static_cast<uint32_t>(from_worker),
                      static_cast<uint32_t>(from_store),
                      static_cast<uint32_t>(prompt - from_worker - from_store)};
    counts_.prompt_tokens += prompt;
    counts_.worker_tokens += from_worker;
    counts_.fetched_tokens += from_store;
    counts_.computed_tokens += sequence.usage.computed_tokens;
  }
  sequence.computed = found;
  sequence.table = pool_->MakeTable(std::move(sealed), std::move(open));
  sequence.phase = SequencePhase::kRunning;
  running_.insert(&sequence);
  sequence.offered_blocks = 0;
  PublishSealed(sequence,
                /*is_last_try=*/false);  // what this worker has of it and the store has not
}

void EngineLoop::ExpireStoreWaits() {
  const absl::Time now = clock_.Now();
  std::vector<Sequence*> late;
  for (Sequence* sequence : in_store_) {
    if (sequence->store_deadline <= now) late.push_back(sequence);
  }
  for (Sequence* sequence : late) {
    if (sequence->phase == SequencePhase::kPublishing) {
      Finish(*sequence, *sequence->reason, absl::OkStatus(), /*is_published=*/false);
      continue;
    }
    ++counts_.fetch_failures;
    sequence->store_job->is_abandoned = true;
    StartRunning(*sequence, {});
  }
}

}  // namespace ibid
