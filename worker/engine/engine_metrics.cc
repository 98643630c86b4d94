#include "worker/engine/engine_metrics.h"

namespace ibid {
namespace {

prometheus::Counter* PromptTokens(MetricsRegistry& registry, const std::string& source) {
  return &MakeCounter(registry, "ibid_engine_prompt_tokens_total",
                      "Prompt tokens, by where their KV came from", {{"source", source}});
}

prometheus::Counter* Finished(MetricsRegistry& registry, const std::string& reason) {
  return &MakeCounter(registry, "ibid_engine_requests_total", "Requests that ended, by reason",
                      {{"reason", reason}});
}

prometheus::Gauge* Pages(MetricsRegistry& registry, const std::string& state) {
  return &MakeGauge(registry, "ibid_engine_pages_count", "Pages, by state", {{"state", state}});
}

}  // namespace

EngineMetrics::EngineMetrics(MetricsRegistry& registry)
    : worker_tokens_{PromptTokens(registry, "worker")},
      fetched_tokens_{PromptTokens(registry, "store")},
      computed_tokens_{PromptTokens(registry, "computed")},
      output_tokens_{&MakeCounter(registry, "ibid_engine_output_tokens_total", "Tokens sampled")},
      preemptions_{&MakeCounter(registry, "ibid_engine_preemptions_total",
                                "Sequences that gave their pages back")},
      published_blocks_{&MakeCounter(registry, "ibid_engine_published_blocks_total",
                                     "Blocks that the store took")},
      unpublished_blocks_{&MakeCounter(registry, "ibid_engine_unpublished_blocks_total",
                                       "Sealed blocks that were not published when their request "
                                       "ended: a limit or the store refused them")},
      fetch_failures_{&MakeCounter(registry, "ibid_engine_fetch_failures_total",
                                   "Fetches that brought less than was matched, or came too late")},
      unequal_duplicates_{&MakeCounter(registry, "ibid_engine_unequal_duplicates_total",
                                       "Blocks computed twice with different bytes")},
      storeless_requests_{&MakeCounter(registry, "ibid_engine_storeless_requests_total",
                                       "Requests that did without the store because salts_max "
                                       "namespaces were in use")},
      claimed_blocks_{&MakeCounter(registry, "ibid_engine_claimed_blocks_total",
                                   "Blocks reserved at the store before they were computed")},
      awaited_requests_{&MakeCounter(registry, "ibid_engine_awaited_requests_total",
                                     "Lookups that waited for blocks which others computed")},
      given_up_awaits_{&MakeCounter(registry, "ibid_engine_given_up_awaits_total",
                                    "Of these waits, those in vain: the blocks were computed "
                                    "twice")},
      finished_stop_(Finished(registry, "stop")),
      finished_length_(Finished(registry, "length")),
      finished_cancelled_(Finished(registry, "cancelled")),
      finished_failed_(Finished(registry, "failed")),
      step_rows_(&MakeCounter(registry, "ibid_engine_step_rows_total",
                              "Rows computed, prompt and output")),
      ttft_(&MakeLatencyHistogram(registry, "ibid_engine_ttft_seconds", "Arrival to first token")),
      tpot_(&MakeLatencyHistogram(registry, "ibid_engine_tpot_seconds",
                                  "Per output token after the first")),
      store_wait_(&MakeLatencyHistogram(registry, "ibid_engine_store_wait_seconds",
                                        "Waiting for the store, per request")),
      step_(&MakeLatencyHistogram(registry, "ibid_engine_step_seconds", "One step of the model")),
      running_(&MakeGauge(registry, "ibid_engine_running_requests_count", "Requests that run")),
      waiting_(&MakeGauge(registry, "ibid_engine_waiting_requests_count", "Requests that wait")),
      pages_free_(Pages(registry, "free")),
      pages_cached_(Pages(registry, "cached")),
      pages_total_(Pages(registry, "total")) {}

void EngineMetrics::Mirror::Follow(uint64_t total) {
  counter->Increment(static_cast<double>(total - seen));
  seen = total;
}

void EngineMetrics::OnFinish(const Finish& finish) {
  switch (finish.reason) {
    case FinishReason::kStop:
      finished_stop_->Increment();
      break;
    case FinishReason::kLength:
      finished_length_->Increment();
      break;
    case FinishReason::kCancelled:
      finished_cancelled_->Increment();
      break;
    case FinishReason::kFailed:
      finished_failed_->Increment();
      break;
  }
  if (finish.output_tokens > 0) ttft_->Observe(absl::ToDoubleSeconds(finish.ttft));
  if (finish.output_tokens > 1) tpot_->Observe(absl::ToDoubleSeconds(finish.tpot));
  if (finish.store_wait > absl::ZeroDuration())
    store_wait_->Observe(absl::ToDoubleSeconds(finish.store_wait));
}

void EngineMetrics::OnStep(size_t rows_count, absl::Duration duration) {
  step_rows_->Increment(static_cast<double>(rows_count));
  step_->Observe(absl::ToDoubleSeconds(duration));
}

void EngineMetrics::OnStats(const EngineStats& stats) {
  worker_tokens_.Follow(stats.worker_tokens);
  fetched_tokens_.Follow(stats.fetched_tokens);
  computed_tokens_.Follow(stats.computed_tokens);
  output_tokens_.Follow(stats.output_tokens);
  preemptions_.Follow(stats.preemptions);
  published_blocks_.Follow(stats.published_blocks);
  unpublished_blocks_.Follow(stats.unpublished_blocks);
  fetch_failures_.Follow(stats.fetch_failures);
  unequal_duplicates_.Follow(stats.unequal_duplicates);
  storeless_requests_.Follow(stats.storeless_requests);
  claimed_blocks_.Follow(stats.claimed_blocks);
  awaited_requests_.Follow(stats.awaited_requests);
  given_up_awaits_.Follow(stats.given_up_awaits);
  running_->Set(stats.running_requests);
  waiting_->Set(stats.waiting_requests);
  pages_free_->Set(static_cast<double>(stats.pages_free));
  pages_cached_->Set(static_cast<double>(stats.pages_cached));
  pages_total_->Set(static_cast<double>(stats.pages_total));
}

}  // namespace ibid
