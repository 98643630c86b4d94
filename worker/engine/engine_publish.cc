// What others may have: sealing blocks and publishing them. Nothing here waits.
#include <algorithm>

#include "core/check.h"
#include "worker/engine/engine_loop.h"

namespace ibid {

void EngineLoop::SealComputed(Sequence& sequence) {
  const size_t full = sequence.computed / block_tokens_;
  if (full == sequence.table.sealed().size()) return;
  if (sequence.chain.size() < full) {
    ExtendChain(sequence.ns, std::span<const uint32_t>(sequence.tokens).first(full * block_tokens_),
                block_tokens_,
                /*with_tail=*/false, &sequence.chain);
  }
  pool_->SealLeading(sequence.table, std::span<const ChainLink>(sequence.chain).first(full));
  PublishSealed(sequence, /*is_last_try=*/false);
}

// Publishes the sealed blocks that the store is not known to have, in order. Never waits; what a
// limit refuses is tried again with the sequence's next block, what the store refuses after
// publish_retry: a chain with a hole is of no use behind it.
void EngineLoop::PublishSealed(Sequence& sequence, bool is_last_try) {
  if (!options_.publishes || !sequence.writes_store()) return;
  if (!is_last_try && clock_.Now() < sequence.offer_again_at) return;
  const auto sealed = sequence.table.sealed();
  std::vector<SealedPage> pages;
  size_t next = sequence.offered_blocks;
  const size_t room = options_.publish_blocks_max -
                      std::min<size_t>(options_.publish_blocks_max, counts_.publishing_blocks);
  absl::flat_hash_set<BlockKey> on_their_way;
  if (next < sequence.offered_end) on_their_way = KeysOnTheirWay(sequence);
  for (; next < sealed.size() && pages.size() < room; ++next) {
    if (!pool_->is_published(sealed[next]) && !on_their_way.contains(sealed[next].link().key)) {
      pages.push_back(sealed[next]);
    }
  }
  if (pages.empty() || Publish(sequence, std::move(pages), /*is_last_of_prefill=*/false)) {
    sequence.offered_blocks = next;
    sequence.offered_end = std::max(sequence.offered_end, next);
  }
}

absl::flat_hash_set<BlockKey> EngineLoop::KeysOnTheirWay(const Sequence& sequence) const {
  absl::flat_hash_set<BlockKey> keys;
  for (const auto& job : sequence.publishes) {
    for (const SealedPage& page : job->pages) keys.insert(page.link().key);
  }
  return keys;
}

// Each block is counted once: here when its sequence ends and it is not on its way, else by the
// answer to the publication that it is in.
void EngineLoop::CountUnpublished(const Sequence& sequence) {
  if (!options_.publishes || !sequence.writes_store() || sequence.is_settled) return;
  const absl::flat_hash_set<BlockKey> on_their_way = KeysOnTheirWay(sequence);
  const auto count = [&](const SealedPage& page) {
    if (!on_their_way.contains(page.link().key)) {
      counts_.unpublished_blocks += pool_->MarkGivenUp(page) ? 1 : 0;
    }
  };
  for (const SealedPage& page : sequence.table.sealed()) count(page);
  if (sequence.tail_page.has_value()) count(*sequence.tail_page);
}

bool EngineLoop::Publish(Sequence& sequence, std::vector<SealedPage> pages,
                         bool is_last_of_prefill) {
  const size_t count = pages.size();
  auto job = std::make_shared<PublishJob>();
  job->request = sequence.id;
  job->ns = sequence.store_ns;
  job->pages = std::move(pages);
  job->is_last_of_prefill = is_last_of_prefill;
  if (!connector_->Publish(job)) return false;
  if (is_last_of_prefill) sequence.store_job = job;
  counts_.publishing_blocks += count;
  sequence.publishes.push_back(std::move(job));
  return true;
}

// A tail block, if it is worth it: one more page that is pinned until the store has it.
void EngineLoop::PublishTail(Sequence& sequence, const SealedPage& tail) {
  if (!options_.publishes || !sequence.writes_store() || pool_->is_published(tail)) return;
  if (counts_.publishing_blocks >= options_.publish_blocks_max ||
      !Publish(sequence, {tail}, /*is_last_of_prefill=*/false)) {
    counts_.unpublished_blocks += pool_->MarkGivenUp(tail) ? 1 : 0;
  }
}

void EngineLoop::PublishPromptTail(Sequence& sequence) {
  // A prefill's tail does not grow: its own page is published at the end.
  if (sequence.request.kind == RequestKind::kPrefill || sequence.is_prompt_tail_published) return;
  if (sequence.computed % block_tokens_ == 0 || !options_.publishes || !sequence.writes_store())
    return;
  // Of what is computed now: a preempted sequence looked up the tail of more tokens than these.
  std::optional<SealedPage> tail =
      pool_->SnapshotTail(sequence.table, TailLink(sequence, sequence.computed));
  if (tail.has_value()) PublishTail(sequence, *tail);
}

// The last, partly filled block of a sequence that ended: whoever goes on from exactly here finds
// it.
void EngineLoop::PublishEnd(Sequence& sequence) {
  PublishSealed(sequence, /*is_last_try=*/true);
  if (sequence.computed % block_tokens_ == 0 || sequence.table.open_count() != 1) return;
  PublishTail(sequence, pool_->SealTail(sequence.table, TailLink(sequence, sequence.computed)));
}

void EngineLoop::BeginPrefillPublish(Sequence& sequence) {
  running_.erase(&sequence);
  if (sequence.computed % block_tokens_ != 0) {
    sequence.tail_page = pool_->SealTail(sequence.table, TailLink(sequence, sequence.computed));
  }
  if (!options_.publishes || !sequence.writes_store()) {
    return Finish(sequence, *sequence.reason, absl::OkStatus(), /*is_published=*/false);
  }
  sequence.phase = SequencePhase::kPublishing;
  sequence.store_wait_since = clock_.Now();
  sequence.store_deadline = sequence.store_wait_since + connector_->options().publish_timeout;
  in_store_.insert(&sequence);
  TryLastPublish(sequence);
}

// Offers the whole chain once more, after all earlier parts of it have been answered: so that
// blocks which are still on their way from here do not count as stored.
void EngineLoop::TryLastPublish(Sequence& sequence) {
  if (!sequence.publishes.empty()) return;
  const auto sealed = sequence.table.sealed();
  std::vector<SealedPage> pages(sealed.begin(), sealed.end());
  if (sequence.tail_page.has_value()) pages.push_back(*sequence.tail_page);
  if (!Publish(sequence, std::move(pages), /*is_last_of_prefill=*/true)) {
    Finish(sequence, *sequence.reason, absl::OkStatus(), /*is_published=*/false);
  }
}

void EngineLoop::OnDone(std::shared_ptr<PublishJob> job) {
  counts_.publishing_blocks -= job->pages.size();
  counts_.published_blocks += job->stored_count;
  const auto it = sequences_.find(job->request);
  const bool is_offered_again = it != sequences_.end() && !job->is_last_of_prefill;
  std::optional<uint32_t> first_missing;
  for (size_t i = 0; i < job->pages.size(); ++i) {
    const SealedPage& page = job->pages[i];
    const BlockResult result = i < job->results.size() ? job->results[i] : BlockResult::kFailed;
    if (result == BlockResult::kOk || result == BlockResult::kPresent) {
      pool_->MarkPublished(page);
    } else if (is_offered_again && page.link().token_count == block_tokens_) {
      // What is pending, too: its writer may die.
      if (!first_missing.has_value()) first_missing = page.link().position;
    } else if (result != BlockResult::kPending) {
      counts_.unpublished_blocks += pool_->MarkGivenUp(page) ? 1 : 0;
    }
  }
  if (it == sequences_.end()) return;
  Sequence& sequence = *it->second;
  std::erase(sequence.publishes, job);
  if (first_missing.has_value()) {
    sequence.offered_blocks = std::min<size_t>(sequence.offered_blocks, *first_missing);
    sequence.offer_again_at = clock_.Now() + connector_->options().publish_retry;
  }
  if (sequence.phase != SequencePhase::kPublishing) return;
  if (job->is_last_of_prefill) {
    sequence.is_settled = true;
    return Finish(sequence, *sequence.reason, absl::OkStatus(), job->is_complete);
  }
  TryLastPublish(sequence);
}

}  // namespace ibid
