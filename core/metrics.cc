#include "core/metrics.h"

#include <prometheus/text_serializer.h>

namespace ibid {

prometheus::Counter& MakeCounter(MetricsRegistry& registry, const std::string& name,
                                 const std::string& help, const MetricLabels& labels) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add(labels);
}

prometheus::Gauge& MakeGauge(MetricsRegistry& registry, const std::string& name,
                             const std::string& help, const MetricLabels& labels) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(labels);
}

prometheus::Histogram& MakeLatencyHistogram(MetricsRegistry& registry, const std::string& name,
                                            const std::string& help, const MetricLabels& labels) {
  prometheus::Histogram::BucketBoundaries bounds;
  for (double seconds = 1e-5; seconds < 60; seconds *= 4) bounds.push_back(seconds);
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels, bounds);
}

std::string SerializeMetrics(const MetricsRegistry& registry) {
  return prometheus::TextSerializer().Serialize(registry.Collect());
}

}  // namespace ibid
