#include "cache_server/demand.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace ibid {
namespace {

// Far from where doubles end.
constexpr double kWeightMax = 1e30;

// Keys look random already, but clients choose what they are.
uint64_t HashOf(const NamespaceId& ns, const BlockKey& key) {
  uint64_t hash, ns_word;
  std::memcpy(&hash, key.digest.data(), sizeof hash);
  std::memcpy(&ns_word, ns.digest.data(), sizeof ns_word);
  hash ^= ns_word;
  hash = (hash ^ (hash >> 33)) * 0xFF51AFD7ED558CCDu;
  hash = (hash ^ (hash >> 33)) * 0xC4CEB9FE1A85EC53u;
  return hash ^ (hash >> 33);
}

}  // namespace

HotPrefixes::HotPrefixes(size_t places_count, uint64_t half_life_lookups)
    : places_count_(places_count),
      growth_(std::exp2(1.0 / static_cast<double>(half_life_lookups))) {
  places_.reserve(places_count);
}

void HotPrefixes::Count(const NamespaceId& ns, const BlockKey& first, uint32_t matched_count) {
  MutexLock lock(mutex_);
  Fade();
  Place* place = nullptr;
  Place* coldest = nullptr;
  for (Place& each : places_) {
    if (each.first == first && each.ns == ns) place = &each;
    if (coldest == nullptr || each.matches < coldest->matches) coldest = &each;
  }
  if (place == nullptr && places_.size() < places_count_) {
    place = &places_.emplace_back(Place{ns, first});
  } else if (place == nullptr) {
    place = coldest;
    *place = Place{ns, first, coldest->matches, coldest->matches};
  }
  place->matches += weight_;
  place->matched_blocks += weight_ * matched_count;
  place->longest_match = std::max(place->longest_match, matched_count);
}

// All that was counted fades by making what comes weigh more: O(1), but for once in many
// half-lives.
void HotPrefixes::Fade() {
  weight_ *= growth_;
  if (weight_ < kWeightMax) return;
  for (Place& each : places_) {
    each.matches /= weight_;
    each.excess /= weight_;
    each.matched_blocks /= weight_;
  }
  weight_ = 1;
}

std::vector<HotPrefix> HotPrefixes::Top(size_t count) const {
  std::vector<Place> places;
  double weight = 1;
  {
    MutexLock lock(mutex_);
    places = places_;
    weight = weight_;
  }
  std::sort(places.begin(), places.end(),
            [](const Place& a, const Place& b) { return a.matches > b.matches; });
  const auto rounded = [weight](double counted) {
    return static_cast<uint64_t>(std::llround(counted / weight));
  };
  std::vector<HotPrefix> top;
  for (const Place& each : places) {
    if (top.size() == count || rounded(each.matches) == 0) break;
    top.push_back({each.ns, each.first, rounded(each.matches), rounded(each.excess),
                   rounded(each.matched_blocks), each.longest_match});
  }
  return top;
}

void Demand::Count(const NamespaceId& ns, std::span<const BlockKey> chain, uint32_t matched_count) {
  if (chain.empty()) return;
  for (const BlockKey& key : chain) distinct_.Add(HashOf(ns, key));
  counters_.asked_keys.Add(chain.size());
  counters_.matched_keys.Add(matched_count);
  prefixes_.Count(ns, chain.front(), matched_count);
}

double Demand::infinite_hit_ratio() const {
  const auto asked = static_cast<double>(counters_.asked_keys.value());
  if (asked == 0) return 0;
  // The estimate may be off by a little; but what this cache had, one without end has too.
  const double found = static_cast<double>(counters_.matched_keys.value()) / asked;
  return std::clamp(1 - distinct_keys() / asked, std::min(found, 1.0), 1.0);
}

}  // namespace ibid
