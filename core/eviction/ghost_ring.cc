// Invariants: places are filled in a circle, so that from next_place_ on they are ordered by age; a
// ghost that was erased leaves its place empty until the circle comes by, or MakeRoom. From
// next_place_ up to, and without, oldest_ all are empty. A place that is not empty is in the chain
// of its fingerprint's bucket, once. The number of buckets is a power of two.
#include "core/eviction/ghost_ring.h"

#include <bit>
#include <utility>

namespace ibid {
namespace {

constexpr uint64_t kPlacesMin = 1024;

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
  ghosts_[place].next = kEmpty;
  --count_;
}

bool GhostRing::EraseIfThere(uint64_t fingerprint) {
  const uint32_t place = Find(fingerprint);
  if (place != kNone) Erase(place);
  return place != kNone;
}

// Keeps the ghosts in the order of their age, from place 0 on. A ring with a limit grows to it in
// few steps; one whose owner forgets has a quarter of its places empty then, so that the next time
// is a third of count_ away.
void GhostRing::MakeRoom() {
  const bool has_limit = places_max_ < kPlacesMax;
  const uint64_t wanted =
      has_limit ? uint64_t{2} * ghosts_.size() : uint64_t{count_} + count_ / 3 + 1;
  const auto places =
      static_cast<uint32_t>(std::min<uint64_t>(std::max(kPlacesMin, wanted), places_max_));
  const std::vector<Ghost> old = std::exchange(ghosts_, {});
  ghosts_.assign(places, Ghost{0, 0, kEmpty});
  buckets_.assign(std::bit_floor(places), kNone);
  const uint32_t begin = next_place_;
  next_place_ = oldest_ = 0;
  for (size_t i = 0; i < old.size(); ++i) {
    const Ghost& ghost = old[(begin + i) % old.size()];
    if (ghost.next == kEmpty) continue;
    uint32_t& bucket = BucketOf(ghost.fingerprint);
    ghosts_[next_place_] = {ghost.fingerprint, ghost.value, bucket};
    bucket = next_place_++;
  }
  if (next_place_ == places) next_place_ = 0;
}

std::optional<uint32_t> GhostRing::Insert(uint64_t fingerprint, uint32_t value) {
  if (ghosts_.empty() || (!IsEmpty(next_place_) && ghosts_.size() < places_max_)) MakeRoom();
  std::optional<uint32_t> forgotten;
  if (!IsEmpty(next_place_)) {
    forgotten = ghosts_[next_place_].value;
    Erase(next_place_);
  }
  uint32_t& bucket = BucketOf(fingerprint);
  ghosts_[next_place_] = {fingerprint, value, bucket};
  bucket = next_place_;
  if (oldest_ == next_place_) oldest_ = After(oldest_);
  next_place_ = After(next_place_);
  ++count_;
  return forgotten;
}

void GhostRing::ShrinkTo(uint64_t count) {
  for (; count_ > count; Erase(oldest_)) {
    while (IsEmpty(oldest_)) oldest_ = After(oldest_);
  }
}

}  // namespace ibid
