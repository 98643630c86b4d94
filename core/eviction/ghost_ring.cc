// Invariants: places are filled in a circle, so that from next_place_ on they are ordered by age; a
// ghost that was erased leaves its place empty until the circle comes by. A place that is not free
// is in the chain of its fingerprint's bucket, once. The number of buckets is a power of two.
#include "core/eviction/ghost_ring.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace ibid {
namespace {

constexpr uint32_t kPlacesMin = 1024;

}  // namespace

uint32_t GhostRing::Find(uint64_t fingerprint) const {
  if (buckets_.empty()) return kNone;
  uint32_t place = buckets_[fingerprint & (buckets_.size() - 1)];
  while (place != kNone && ghosts_[place].fingerprint != fingerprint) place = ghosts_[place].next;
  return place;
}

void GhostRing::Erase(uint32_t place) {
  uint32_t* link = &BucketOf(ghosts_[place].fingerprint);
  while (*link != place) link = &ghosts_[*link].next;
  *link = ghosts_[place].next;
  ghosts_[place].next = kFree;
  --count_;
}

// Keeps the ghosts in the order of their age, from place 0 on.
void GhostRing::Resize(uint32_t places) {
  const std::vector<Ghost> old = std::move(ghosts_);
  ghosts_.assign(places, Ghost{0, 0, kFree});
  buckets_.assign(std::bit_floor(places), kNone);
  const uint32_t begin = next_place_;
  next_place_ = 0;
  for (size_t i = 0; i < old.size(); ++i) {
    const Ghost& ghost = old[(begin + i) % old.size()];
    if (ghost.next == kFree) continue;
    uint32_t& bucket = BucketOf(ghost.fingerprint);
    ghosts_[next_place_] = {ghost.fingerprint, ghost.value, bucket};
    bucket = next_place_++;
  }
  if (next_place_ == places) next_place_ = 0;
}

std::optional<uint32_t> GhostRing::Insert(uint64_t fingerprint, uint32_t value) {
  // As many places as ghosts would do but for the empty ones between them.
  const bool is_full = next_place_ < ghosts_.size() && ghosts_[next_place_].next != kFree;
  if (ghosts_.empty() || (is_full && ghosts_.size() < ghosts_max_)) {
    const uint64_t doubled = std::max<uint64_t>(kPlacesMin, uint64_t{2} * ghosts_.size());
    Resize(static_cast<uint32_t>(std::min<uint64_t>(doubled, ghosts_max_)));
  }
  std::optional<uint32_t> forgotten;
  if (ghosts_[next_place_].next != kFree) {
    forgotten = ghosts_[next_place_].value;
    Erase(next_place_);
  }
  uint32_t& bucket = BucketOf(fingerprint);
  ghosts_[next_place_] = {fingerprint, value, bucket};
  bucket = next_place_;
  next_place_ = next_place_ + 1 == ghosts_.size() ? 0 : next_place_ + 1;
  ++count_;
  return forgotten;
}

}  // namespace ibid
