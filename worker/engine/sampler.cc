#include "worker/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_format.h"
#include "core/check.h"

namespace ibid {
namespace {

struct Candidate {
  float logit;
  uint32_t id;
};

bool IsMoreLikely(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

uint32_t MostLikely(std::span<const float> logits) {
  Candidate best{-std::numeric_limits<float>::infinity(), 0};
  for (uint32_t id = 0; id < logits.size(); ++id) {
    if (logits[id] > best.logit) best = {logits[id], id};
  }
  return best.id;
}

// The first candidate at which the running sum of weights exceeds u times their total.
uint32_t Draw(std::span<const Candidate> candidates, std::span<const double> weights, double u) {
  double total = 0;
  for (const double weight : weights) total += weight;
  double sum = 0;
  size_t last_possible = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    sum += weights[i];
    if (weights[i] > 0) last_possible = i;
    if (sum > u * total) return candidates[i].id;
  }
  return candidates[last_possible].id;
}

// How many leading candidates reach `top_p` of the total weight. Sorts only as far as it must.
size_t SortNucleus(std::vector<Candidate>& candidates, double top_p, double top_logit,
                   double temperature) {
  const auto weight = [&](const Candidate& c) {
    return std::exp((c.logit - top_logit) / temperature);
  };
  double total = 0;
  for (const Candidate& candidate : candidates) total += weight(candidate);
  double sum = 0;
  size_t sorted = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (i == sorted) {
      sorted = std::min(candidates.size(), std::max<size_t>(64, sorted * 8));
      std::partial_sort(candidates.begin() + i, candidates.begin() + sorted, candidates.end(),
                        IsMoreLikely);
    }
    sum += weight(candidates[i]);
    if (sum >= top_p * total) return i + 1;
  }
  return candidates.size();
}

}  // namespace

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

double UniformForToken(uint64_t seed, uint64_t output_index) {
  const auto words = Philox4x32(
      {static_cast<uint32_t>(output_index), static_cast<uint32_t>(output_index >> 32), 0, 0},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = uint64_t{words[0]} << 32 | words[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

absl::Status ValidateSampling(const SamplingParams& params) {
  if (!(params.temperature >= 0) || !std::isfinite(params.temperature)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("sampling.temperature is %g; it must be 0 or more", params.temperature));
  }
  if (!(params.top_p >= 0 && params.top_p <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("sampling.top_p is %g; it must be in [0, 1]", params.top_p));
  }
  return absl::OkStatus();
}

uint32_t SampleToken(std::span<const float> logits, const SamplingParams& params,
                     uint64_t output_index) {
  IBID_CHECK(!logits.empty());
  const uint32_t best = MostLikely(logits);
  if (params.temperature == 0 || params.top_k == 1) return best;

  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (uint32_t id = 0; id < logits.size(); ++id) {
    if (logits[id] > -std::numeric_limits<float>::infinity())
      candidates.push_back({logits[id], id});
  }
  if (candidates.empty() || std::isinf(logits[best])) return best;

  if (params.top_k > 0 && params.top_k < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + params.top_k, candidates.end(),
                     IsMoreLikely);
    candidates.resize(params.top_k);
    // The order that nth_element leaves is the library's: sums over it would be, too.
    std::sort(candidates.begin(), candidates.end(), IsMoreLikely);
  }
  const double top_logit = logits[best];
  if (params.top_p > 0 && params.top_p < 1) {
    candidates.resize(SortNucleus(candidates, params.top_p, top_logit, params.temperature));
  }
  std::vector<double> weights(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    weights[i] = std::exp((candidates[i].logit - top_logit) / params.temperature);
  }
  return Draw(candidates, weights, UniformForToken(params.seed, output_index));
}

}  // namespace ibid
