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
  PublishSealed(sequence);
}

// Publishes the sealed blocks that the store is not known to have, in order. Never waits; what a
// limit refuses, or the store, is tried again with the sequence's next block: a chain with a hole
// is of no use behind it.
void EngineLoop::PublishSealed(Sequence& sequence) {
  if (!options_.publishes || !sequence.writes_store()) return;
  const auto sealed = sequence.table.sealed();
  std::vector<SealedPage> pages;
  size_t next = sequence.offered_blocks;
  const size_t room = options_.publish_blocks_max -
                      std::min<size_t>(options_.publish_blocks_max, counts_.publishing_blocks);
  for (; next < sealed.size() && pages.size() < room; ++next) {
    if (!pool_->is_published(sealed[next])) pages.push_back(sealed[next]);
  }
  if (pages.empty() || Publish(sequence, std::move(pages), /*is_last_of_prefill=*/false)) {
    sequence.offered_blocks = next;
  }
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
  ++sequence.publishes_in_flight;
  return true;
}

// A tail block, if it is worth it: one more page that is pinned until the store has it.
void EngineLoop::PublishTail(Sequence& sequence, SealedPage tail) {
  if (!options_.publishes || !sequence.writes_store() || pool_->is_published(tail)) return;
  if (counts_.publishing_blocks >= options_.publish_blocks_max ||
      !Publish(sequence, {std::move(tail)}, /*is_last_of_prefill=*/false)) {
    ++counts_.unpublished_blocks;
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
  if (tail.has_value()) PublishTail(sequence, *std::move(tail));
}

// The last, partly filled block of a sequence that ended: whoever goes on from exactly here finds
// it.
void EngineLoop::PublishEnd(Sequence& sequence) {
  PublishSealed(sequence);
  if (options_.publishes && sequence.writes_store()) {
    counts_.unpublished_blocks += sequence.table.sealed().size() - sequence.offered_blocks;
  }
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
  if (sequence.publishes_in_flight > 0) return;
  const auto sealed = sequence.table.sealed();
  std::vector<SealedPage> pages(sealed.begin(), sealed.end());
  if (sequence.tail_page.has_value()) pages.push_back(*sequence.tail_page);
  const size_t count = pages.size();
  if (!Publish(sequence, std::move(pages), /*is_last_of_prefill=*/true)) {
    counts_.unpublished_blocks += count;
    Finish(sequence, *sequence.reason, absl::OkStatus(), /*is_published=*/false);
  }
}

void EngineLoop::OnDone(std::shared_ptr<PublishJob> job) {
  counts_.publishing_blocks -= job->pages.size();
  counts_.published_blocks += job->stored_count;
  std::optional<uint32_t> first_missing;
  for (size_t i = 0; i < job->pages.size(); ++i) {
    const BlockResult result = i < job->results.size() ? job->results[i] : BlockResult::kFailed;
    if (result == BlockResult::kOk || result == BlockResult::kPresent) {
      pool_->MarkPublished(job->pages[i]);
      continue;
    }
    // What is pending is offered again too: its writer may die.
    if (result != BlockResult::kPending) ++counts_.unpublished_blocks;
    if (!first_missing.has_value()) first_missing = job->pages[i].link().position;
  }
  const auto it = sequences_.find(job->request);
  if (it == sequences_.end()) return;
  Sequence& sequence = *it->second;
  --sequence.publishes_in_flight;
  if (first_missing.has_value()) {
    sequence.offered_blocks = std::min<size_t>(sequence.offered_blocks, *first_missing);
  }
  if (sequence.phase != SequencePhase::kPublishing) return;
  if (job->is_last_of_prefill) {
    return Finish(sequence, *sequence.reason, absl::OkStatus(), job->is_complete);
  }
  TryLastPublish(sequence);
}

}  // namespace ibid
