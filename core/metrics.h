// Metrics: each module makes its own families in the registry that it is given and keeps the
// references. Names follow Prometheus' conventions: `ibid_<module>_<what>_<unit>[_total]`.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <map>
#include <memory>
#include <string>

namespace ibid {

using MetricLabels = std::map<std::string, std::string>;
using MetricsRegistry = prometheus::Registry;

prometheus::Counter& MakeCounter(MetricsRegistry& registry, const std::string& name,
                                 const std::string& help, const MetricLabels& labels = {});
prometheus::Gauge& MakeGauge(MetricsRegistry& registry, const std::string& name,
                             const std::string& help, const MetricLabels& labels = {});
// Buckets from 10 us to 40 s, four times each.
prometheus::Histogram& MakeLatencyHistogram(MetricsRegistry& registry, const std::string& name,
                                            const std::string& help,
                                            const MetricLabels& labels = {});

// Buckets from 0.1 s to 12 days, four times each.
prometheus::Histogram& MakeAgeHistogram(MetricsRegistry& registry, const std::string& name,
                                        const std::string& help, const MetricLabels& labels = {});

// The text that `/metrics` answers.
std::string SerializeMetrics(const MetricsRegistry& registry);

}  // namespace ibid
