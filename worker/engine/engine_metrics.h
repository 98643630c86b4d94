// The engine's metric families.
#pragma once

#include "core/metrics.h"
#include "worker/engine/engine.h"
#include "worker/engine/request.h"

namespace ibid {

// Owned by the engine thread.
class EngineMetrics {
 public:
  explicit EngineMetrics(MetricsRegistry& registry);

  void OnFinish(const Finish& finish);
  void OnStep(size_t rows_count, absl::Duration duration);
  void OnStats(const EngineStats& stats);

 private:
  struct Mirror {  // a counter that follows a total
    prometheus::Counter* counter;
    uint64_t seen = 0;
    void Follow(uint64_t total);
  };

  Mirror worker_tokens_, fetched_tokens_, computed_tokens_, output_tokens_, preemptions_,
      published_blocks_, unpublished_blocks_, fetch_failures_, unequal_duplicates_,
      storeless_requests_, claimed_blocks_, awaited_requests_, given_up_awaits_;
  prometheus::Counter *finished_stop_, *finished_length_, *finished_cancelled_, *finished_failed_,
      *step_rows_;
  prometheus::Histogram *ttft_, *tpot_, *store_wait_, *step_;
  prometheus::Gauge *running_, *waiting_, *pages_free_, *pages_cached_, *pages_total_;
};

}  // namespace ibid
