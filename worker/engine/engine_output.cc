// Tokens out, and the end of a sequence.
#include <algorithm>

#include "core/check.h"
#include "worker/engine/engine_loop.h"
#include "worker/engine/engine_metrics.h"

namespace ibid {

bool EngineLoop::IsEndToken(const Sequence& sequence, uint32_t token) const {
  const StopConditions& stop = sequence.request.stop;
  const auto contains = [token](const std::vector<uint32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  return contains(stop.token_ids) ||
         (!stop.ignores_end_token && contains(model_->config().eos_ids));
}

// The order of reasons: an end token, a stop text, a length. An end token is among the tokens, not
// in the text.
void EngineLoop::AppendOutput(Sequence& sequence, uint32_t token) {
  sequence.tokens.push_back(token);
  sequence.last_token_at = clock_.Now();
  if (sequence.output_count() == 1) sequence.first_token_at = sequence.last_token_at;

  std::string text;
  if (IsEndToken(sequence, token)) {
    sequence.reason = FinishReason::kStop;
  } else {
    if (sequence.decoder.has_value()) text = sequence.stop_filter.Add(sequence.decoder->Add(token));
    if (sequence.stop_filter.is_stopped()) {
      sequence.reason = FinishReason::kStop;
    } else if (sequence.output_count() >= sequence.request.stop.max_tokens ||
               sequence.tokens.size() >= model_->config().context_tokens) {
      sequence.reason = FinishReason::kLength;
    }
  }
  sequence.is_output_complete = sequence.reason.has_value();
  if (sequence.reason.has_value() && sequence.decoder.has_value() &&
      !sequence.stop_filter.is_stopped()) {
    text += sequence.stop_filter.Add(sequence.decoder->Finish());
    if (sequence.stop_filter.is_stopped()) sequence.reason = FinishReason::kStop;
    text += sequence.stop_filter.Finish();
  }
  // Where a prefill ends, the output only pauses.
  if (sequence.request.kind == RequestKind::kPrefill && !sequence.reason.has_value()) {
    sequence.reason = FinishReason::kLength;
  }
  sequence.stream->Push(token, text);
}

// What happens once a sequence needs no more rows.
void EngineLoop::EndOutput(Sequence& sequence) {
  if (sequence.request.kind == RequestKind::kPrefill) return BeginPrefillPublish(sequence);
  PublishEnd(sequence);
  Finish(sequence, *sequence.reason, absl::OkStatus(), /*is_published=*/false);
}

void EngineLoop::Cancel(RequestId id) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  Finish(*it->second, FinishReason::kCancelled, absl::OkStatus(), /*is_published=*/false);
}

void EngineLoop::Finish(Sequence& sequence, FinishReason reason, absl::Status status,
                        bool is_published) {
  struct Finish finish;
  finish.reason = reason;
  finish.status = std::move(status);
  finish.usage = sequence.usage;
  const size_t output_count = sequence.output_count();
  finish.output_tokens = static_cast<uint32_t>(output_count);
  if (output_count > 0) {
    finish.ttft = sequence.first_token_at - sequence.submitted + sequence.request.waited_before;
  }
  if (output_count > 1) {
    finish.tpot =
        (sequence.last_token_at - sequence.first_token_at) / static_cast<int64_t>(output_count - 1);
  }
  finish.store_wait = sequence.store_wait;
  if (sequence.request.kind == RequestKind::kPrefill && sequence.reason.has_value()) {
    for (const ChainLink& link : sequence.chain) finish.chain.push_back(link.key);
    if (sequence.lookup_tail.has_value()) finish.chain.push_back(sequence.lookup_tail->key);
    finish.is_published = is_published;
    finish.is_output_complete = sequence.is_output_complete;
  }
  // A call that still runs keeps its pages; nobody waits for its answer any more.
  if (sequence.store_job != nullptr) sequence.store_job->is_abandoned = true;
  WithdrawClaims(sequence);
  CountUnpublished(sequence);
  pool_->Touch(sequence.table.sealed());
  if (!sequence.was_admitted) inbox_->OnAdmitted(1);
  waiting_.erase(&sequence);
  running_.erase(&sequence);
  in_store_.erase(&sequence);
  finished_.emplace_back(sequence.stream, std::move(finish));
  sequences_.erase(sequence.id);
}

void EngineLoop::CloseFinished() {
  if (finished_.empty()) return;
  for (auto& [stream, finish] : finished_) {
    if (metrics_ != nullptr) metrics_->OnFinish(finish);
    stream->Close(std::move(finish));
  }
  {
    MutexLock lock(stats_mutex_);
    finished_count_ += finished_.size();
  }
  finished_.clear();
  stats_changed_.NotifyAll();
}

}  // namespace ibid
