#include "client/cli/rates.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace ibid::cli {
namespace {

// The latency that `part` of the calls did not exceed, by interpolation within its bucket.
double Quantile(const std::vector<double>& bounds, const std::vector<uint64_t>& counts,
                double part) {
  const auto total =
      static_cast<double>(std::accumulate(counts.begin(), counts.end(), uint64_t{0}));
  double below = 0;
  for (size_t i = 0; i < counts.size() && total > 0; ++i) {
    const auto here = static_cast<double>(counts[i]);
    if (here > 0 && below + here >= part * total) {
      const double low = i == 0 ? 0 : bounds[i - 1];
      const double high = i < bounds.size() ? bounds[i] : low;
      return low + (high - low) * (part * total - below) / here;
    }
    below += here;
  }
  return 0;
}

const ServerStats::Method* FindMethod(const ServerStats& stats, const std::string& name) {
  const auto it = std::find_if(stats.methods.begin(), stats.methods.end(),
                               [&](const ServerStats::Method& m) { return m.method == name; });
  return it == stats.methods.end() ? nullptr : &*it;
}

uint64_t Since(uint64_t before, uint64_t now) { return now - std::min(before, now); }

}  // namespace

ServerRates RatesBetween(const ServerStats& earlier, const ServerStats& now, absl::Duration apart) {
  const ServerStats nothing;
  const ServerStats& before = earlier.incarnation == now.incarnation ? earlier : nothing;
  const double seconds = std::max(absl::ToDoubleSeconds(apart), 1e-3);
  ServerRates rates;
  rates.requested_blocks = Since(before.requested_blocks, now.requested_blocks);
  rates.missed_blocks = Since(before.missed_blocks, now.missed_blocks);
  rates.asked_keys = Since(before.asked_keys, now.asked_keys);
  rates.matched_keys = Since(before.matched_keys, now.matched_keys);
  rates.published_blocks = Since(before.published_blocks, now.published_blocks);
  for (const ServerStats::Tier& tier : now.tiers) {
    rates.tier_hits[tier.tier] = tier.hits;
    rates.tier_evictions[tier.tier] = tier.evictions;
  }
  for (const ServerStats::Tier& tier : before.tiers) {
    rates.tier_hits[tier.tier] = Since(tier.hits, rates.tier_hits[tier.tier]);
    rates.tier_evictions[tier.tier] = Since(tier.evictions, rates.tier_evictions[tier.tier]);
  }
  for (const ServerStats::Method& method : now.methods) {
    const ServerStats::Method* const old = FindMethod(before, method.method);
    const ServerStats::Method none;
    const ServerStats::Method& was = old == nullptr ? none : *old;
    std::vector<uint64_t> counts = method.latency_counts;
    for (size_t i = 0; i < std::min(counts.size(), was.latency_counts.size()); ++i) {
      counts[i] = Since(was.latency_counts[i], counts[i]);
    }
    if (counts.size() > method.latency_bounds_seconds.size() + 1) continue;  // malformed
    MethodRates& out = rates.methods[method.method];
    out.calls_per_second = static_cast<double>(Since(was.calls, method.calls)) / seconds;
    out.median_seconds = Quantile(method.latency_bounds_seconds, counts, 0.5);
    out.p99_seconds = Quantile(method.latency_bounds_seconds, counts, 0.99);
    rates.received_bytes_per_second +=
        static_cast<double>(Since(was.received_bytes, method.received_bytes)) / seconds;
    rates.sent_bytes_per_second +=
        static_cast<double>(Since(was.sent_bytes, method.sent_bytes)) / seconds;
  }
  return rates;
}

}  // namespace ibid::cli
