// The engine's metric families. Those that follow EngineStats stand in two tables of the source
// file.
#pragma once

#include <map>
#include <vector>

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
  };

  std::vector<Mirror> totals_;                             // in the order of the table
  std::vector<prometheus::Gauge*> levels_;                 // likewise
  std::map<FinishReason, prometheus::Counter*> finished_;  // all of them
  prometheus::Counter* const step_rows_;
  prometheus::Histogram *const ttft_, *const tpot_, *const store_wait_, *const step_;
};

}  // namespace ibid
