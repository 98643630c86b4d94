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

namespace {

prometheus::Histogram& MakeHistogram(MetricsRegistry& registry, const std::string& name,
                                     const std::string& help, const MetricLabels& labels,
                                     double first_bound, double last_bound) {
  prometheus::Histogram::BucketBoundaries bounds;
  for (double bound = first_bound; bound < last_bound; bound *= 4) bounds.push_back(bound);
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels, bounds);
}

}  // namespace

prometheus::Histogram& MakeLatencyHistogram(MetricsRegistry& registry, const std::string& name,
                                            const std::string& help, const MetricLabels& labels) {
  return MakeHistogram(registry, name, help, labels, 1e-5, 60);
}

prometheus::Histogram& MakeAgeHistogram(MetricsRegistry& registry, const std::string& name,
                                        const std::string& help, const MetricLabels& labels) {
  return MakeHistogram(registry, name, help, labels, 0.1, 2e6);
}

std::string SerializeMetrics(const MetricsRegistry& registry) {
  return prometheus::TextSerializer().Serialize(registry.Collect());
}

}  // namespace ibid
