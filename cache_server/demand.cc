#include "cache_server/demand.h"

#include <algorithm>
#include <cstring>

namespace ibid {
namespace {

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

void HotPrefixes::Count(const NamespaceId& ns, const BlockKey& first, uint32_t matched_count) {
  MutexLock lock(mutex_);
  HotPrefix* place = nullptr;
  HotPrefix* coldest = nullptr;
  for (HotPrefix& each : places_) {
    if (each.first == first && each.ns == ns) place = &each;
    if (coldest == nullptr || each.matches < coldest->matches) coldest = &each;
  }
  if (place == nullptr && places_.size() < places_count_) {
    place = &places_.emplace_back(HotPrefix{ns, first});
  } else if (place == nullptr) {
    place = coldest;
    *place = HotPrefix{ns, first, coldest->matches, coldest->matches};
  }
  ++place->matches;
  place->matched_blocks += matched_count;
  place->longest_match = std::max(place->longest_match, matched_count);
}

std::vector<HotPrefix> HotPrefixes::Top(size_t count) const {
  std::vector<HotPrefix> top;
  {
    MutexLock lock(mutex_);
    top = places_;
  }
  std::sort(top.begin(), top.end(),
            [](const HotPrefix& a, const HotPrefix& b) { return a.matches > b.matches; });
  if (top.size() > count) top.resize(count);
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
  return std::clamp(1 - distinct_keys() / asked, 0.0, 1.0);
}

}  // namespace ibid
