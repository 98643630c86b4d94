// Invariant: every place below places_count_ is either in the queue and in the index, or in the
// list of free ones.
#include "core/eviction/ghost_queue.h"

namespace ibid {

void GhostQueue::Push(uint64_t fingerprint) {
  Remove(fingerprint);
  if (free_ == kNone) {
    ghosts_.EnsureSize(size_t{places_count_} + 1);
    ghosts_[places_count_].newer = kNone;
    free_ = places_count_++;
  }
  const uint32_t place = free_;
  Ghost& ghost = ghosts_[place];
  free_ = ghost.newer;
  ghost = {fingerprint, newest_, kNone};
  (newest_ == kNone ? oldest_ : ghosts_[newest_].newer) = place;
  newest_ = place;
  index_.insert(place);
}

bool GhostQueue::Remove(uint64_t fingerprint) {
  const auto found = index_.find(fingerprint);
  if (found == index_.end()) return false;
  const uint32_t place = *found;
  index_.erase(found);
  Unlink(place);
  return true;
}

void GhostQueue::ShrinkTo(uint64_t count) {
  while (size() > count) Remove(ghosts_[oldest_].fingerprint);
}

void GhostQueue::Unlink(uint32_t place) {
  Ghost& ghost = ghosts_[place];
  (ghost.older == kNone ? oldest_ : ghosts_[ghost.older].newer) = ghost.newer;
  (ghost.newer == kNone ? newest_ : ghosts_[ghost.newer].older) = ghost.older;
  ghost.newer = free_;
  free_ = place;
}

}  // namespace ibid
