// Blocks that were evicted and are remembered for a while: fingerprint -> a number, oldest
// forgotten first. 20 bytes each.
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

  // How many are remembered. The limit only grows: a lower one changes nothing.
  void RaiseLimit(uint32_t ghosts_max) { ghosts_max_ = std::max(ghosts_max_, ghosts_max); }

  // The place of the ghost, or kNone. Valid until the next Insert.
  uint32_t Find(uint64_t fingerprint) const;
  uint32_t value(uint32_t place) const { return ghosts_[place].value; }
  void set_value(uint32_t place, uint32_t value) { ghosts_[place].value = value; }
  void Erase(uint32_t place);

  // REQUIRES: it is not there. Returns the value of the ghost that had to be forgotten for it, if
  // any.
  std::optional<uint32_t> Insert(uint64_t fingerprint, uint32_t value);

  uint32_t count() const { return count_; }

 private:
  struct Ghost {
    uint64_t fingerprint = 0;
    uint32_t value = 0;
    uint32_t next = kNone;  // in its bucket; of a free place: kFree
  };
  static constexpr uint32_t kFree = 0xFFFFFFFE;

  uint32_t& BucketOf(uint64_t fingerprint) { return buckets_[fingerprint & (buckets_.size() - 1)]; }
  void Resize(uint32_t places);

  uint32_t ghosts_max_ = 1;
  uint32_t count_ = 0;
  uint32_t next_place_ = 0;  // where the next ghost goes: the oldest is there or after it
  std::vector<Ghost> ghosts_;
  std::vector<uint32_t> buckets_;
};

}  // namespace ibid
