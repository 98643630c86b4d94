#include "worker/engine/engine_metrics.h"

#include <cstddef>
#include <utility>

namespace ibid {
namespace {

struct TotalRow {
  const char* name;
  const char* help;
  const char* source;  // label; null: none
  uint64_t EngineStats::*total;
};

constexpr char kPromptTokens[] = "ibid_engine_prompt_tokens_total";
constexpr char kPromptTokensHelp[] = "Prompt tokens, by where their KV came from";

constexpr TotalRow kTotals[] = {
    {kPromptTokens, kPromptTokensHelp, "worker", &EngineStats::worker_tokens},
    {kPromptTokens, kPromptTokensHelp, "store", &EngineStats::fetched_tokens},
    {kPromptTokens, kPromptTokensHelp, "computed", &EngineStats::computed_tokens},
    {"ibid_engine_output_tokens_total", "Tokens sampled", nullptr, &EngineStats::output_tokens},
    {"ibid_engine_preemptions_total", "Sequences that gave their pages back", nullptr,
     &EngineStats::preemptions},
    {"ibid_engine_published_blocks_total", "Blocks that the store took", nullptr,
     &EngineStats::published_blocks},
    {"ibid_engine_unpublished_blocks_total",
     "Sealed blocks that were not published when their request ended: a limit or the store refused "
     "them",
     nullptr, &EngineStats::unpublished_blocks},
    {"ibid_engine_fetch_failures_total",
     "Fetches that brought less than was matched, or came too late", nullptr,
     &EngineStats::fetch_failures},
    {"ibid_engine_unequal_duplicates_total", "Blocks computed twice with different bytes", nullptr,
     &EngineStats::unequal_duplicates},
    {"ibid_engine_storeless_requests_total",
     "Requests that did without the store because salts_max namespaces were in use", nullptr,
     &EngineStats::storeless_requests},
    {"ibid_engine_claimed_blocks_total", "Blocks reserved at the store before they were computed",
     nullptr, &EngineStats::claimed_blocks},
    {"ibid_engine_awaited_requests_total", "Lookups that waited for blocks which others computed",
     nullptr, &EngineStats::awaited_requests},
    {"ibid_engine_given_up_awaits_total",
     "Of these waits, those in vain: the blocks were computed twice", nullptr,
     &EngineStats::given_up_awaits},
};

struct LevelRow {
  const char* name;
  const char* help;
  const char* state;  // label; null: none
  double (*read)(const EngineStats& stats);
};

double Number(auto value) { return static_cast<double>(value); }

constexpr LevelRow kLevels[] = {
    {"ibid_engine_running_requests_count", "Requests that run", nullptr,
     [](const EngineStats& stats) { return Number(stats.running_requests); }},
    {"ibid_engine_waiting_requests_count", "Requests that wait", nullptr,
     [](const EngineStats& stats) { return Number(stats.waiting_requests); }},
    {"ibid_engine_pages_count", "Pages, by state", "free",
     [](const EngineStats& stats) { return Number(stats.pages_free); }},
    {"ibid_engine_pages_count", "Pages, by state", "cached",
     [](const EngineStats& stats) { return Number(stats.pages_cached); }},
    {"ibid_engine_pages_count", "Pages, by state", "total",
     [](const EngineStats& stats) { return Number(stats.pages_total); }},
};

MetricLabels LabelOf(const char* name, const char* value) {
  return value == nullptr ? MetricLabels{} : MetricLabels{{name, value}};
}

}  // namespace

EngineMetrics::EngineMetrics(MetricsRegistry& registry)
    : step_rows_(&MakeCounter(registry, "ibid_engine_step_rows_total",
                              "Rows computed, prompt and output")),
      ttft_(&MakeLatencyHistogram(registry, "ibid_engine_ttft_seconds", "Arrival to first token")),
      tpot_(&MakeLatencyHistogram(registry, "ibid_engine_tpot_seconds",
                                  "Per output token after the first")),
      store_wait_(&MakeLatencyHistogram(registry, "ibid_engine_store_wait_seconds",
                                        "Waiting for the store, per request")),
      step_(&MakeLatencyHistogram(registry, "ibid_engine_step_seconds", "One step of the model")) {
  for (const TotalRow& row : kTotals) {
    totals_.push_back({&MakeCounter(registry, row.name, row.help, LabelOf("source", row.source))});
  }
  for (const LevelRow& row : kLevels) {
    levels_.push_back(&MakeGauge(registry, row.name, row.help, LabelOf("state", row.state)));
  }
  for (const auto& [reason, name] : {std::pair{FinishReason::kStop, "stop"},
                                     {FinishReason::kLength, "length"},
                                     {FinishReason::kCancelled, "cancelled"},
                                     {FinishReason::kFailed, "failed"}}) {
    finished_[reason] = &MakeCounter(registry, "ibid_engine_requests_total",
                                     "Requests that ended, by reason", {{"reason", name}});
  }
}

void EngineMetrics::OnFinish(const Finish& finish) {
  finished_[finish.reason]->Increment();
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
  for (size_t i = 0; i < totals_.size(); ++i) {
    const uint64_t total = stats.*kTotals[i].total;
    totals_[i].counter->Increment(Number(total - totals_[i].seen));
    totals_[i].seen = total;
  }
  for (size_t i = 0; i < levels_.size(); ++i) levels_[i]->Set(kLevels[i].read(stats));
}

}  // namespace ibid
