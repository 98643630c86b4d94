// Blocks that left a tier and are remembered for a while: fingerprint -> a number of the owner's.
// 16 bytes a place, and 2 to 4 for its bucket. The place of a ghost that was erased is empty until
// its turn to be filled comes again.
//
// How many are remembered is bounded in one of two ways: by the number of places, empty ones
// included; or, exactly, by the owner with ShrinkTo, and then a quarter of the places is empty at
// most after the ring has grown.
//
// Thread safety: none (the owner's lock).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace ibid {

class GhostRing {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  static constexpr uint32_t kPlacesMax = 0xFFFFFFF0;

  // Beyond so many places the oldest ghost is forgotten for a new one; kPlacesMax: the owner
  // forgets. REQUIRES: 0 < places_max <= kPlacesMax.
  explicit GhostRing(uint32_t places_max = kPlacesMax) : places_max_(places_max) {}

  // Of places. A lower one changes nothing.
  void RaiseLimit(uint32_t places_max) { places_max_ = std::max(places_max_, places_max); }

  // The place of the ghost, or kNone. Valid until the next Insert.
  uint32_t Find(uint64_t fingerprint) const;
  uint32_t value(uint32_t place) const { return ghosts_[place].value; }
  void Erase(uint32_t place);
  // False: it was not there.
  bool EraseIfThere(uint64_t fingerprint);

  // As the newest. REQUIRES: it is not there. Returns the value of the ghost that had to be
  // forgotten for it, if any. Amortised O(1): a call that makes room moves all ghosts.
  std::optional<uint32_t> Insert(uint64_t fingerprint, uint32_t value);

  // Forgets the oldest until there are not more than `count`. Amortised O(forgotten).
  void ShrinkTo(uint64_t count);

  uint32_t count() const { return count_; }
  // Places in memory, empty ones included.
  size_t places_count() const { return ghosts_.size(); }

 private:
  struct Ghost {
    uint64_t fingerprint = 0;
    uint32_t value = 0;
    uint32_t next = kNone;  // in its bucket; of an empty place: kEmpty
  };
  static constexpr uint32_t kEmpty = 0xFFFFFFFE;

  uint32_t& BucketOf(uint64_t fingerprint) { return buckets_[fingerprint & (buckets_.size() - 1)]; }
  uint32_t After(uint32_t place) const { return place + 1 == ghosts_.size() ? 0 : place + 1; }
  bool IsEmpty(uint32_t place) const { return ghosts_[place].next == kEmpty; }
  void MakeRoom();

  uint32_t places_max_;
  uint32_t count_ = 0;
  uint32_t next_place_ = 0;  // where the next ghost goes
  uint32_t oldest_ = 0;      // the oldest ghost is there or after it
  std::vector<Ghost> ghosts_;
  std::vector<uint32_t> buckets_;
};

}  // namespace ibid
