// Fingerprints of blocks that left a tier, oldest first, so that one that comes back is recognised:
// 16 bytes for each in the queue and 6 to 12 in the index.
//
// Thread safety: none (the owner's lock).
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_set.h"
#include "core/chunked_array.h"

namespace ibid {

class GhostQueue {
 public:
  GhostQueue() = default;
  GhostQueue(const GhostQueue&) = delete;
  GhostQueue& operator=(const GhostQueue&) = delete;

  // As the newest. A fingerprint that is there already becomes the newest.
  void Push(uint64_t fingerprint);
  // False: it was not there.
  bool Remove(uint64_t fingerprint);
  // Removes the oldest until there are not more than `count`.
  void ShrinkTo(uint64_t count);

  bool contains(uint64_t fingerprint) const { return index_.contains(fingerprint); }
  uint64_t size() const { return index_.size(); }
  // Places in memory, used or not: what they take does not shrink.
  uint64_t places_count() const { return places_count_; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Ghost {
    uint64_t fingerprint = 0;
    uint32_t older = kNone;
    uint32_t newer = kNone;  // of a free place: the next free one
  };
  using Ghosts = ChunkedArray<Ghost>;
  // The index holds places and is asked by fingerprint.
  struct FingerprintHash {
    using is_transparent = void;
    const Ghosts* ghosts;
    size_t operator()(uint64_t fingerprint) const { return absl::Hash<uint64_t>()(fingerprint); }
    size_t operator()(uint32_t place) const { return (*this)((*ghosts)[place].fingerprint); }
  };
  struct SameFingerprint {
    using is_transparent = void;
    const Ghosts* ghosts;
    bool operator()(uint32_t a, uint32_t b) const { return a == b; }
    bool operator()(uint32_t place, uint64_t fingerprint) const {
      return (*ghosts)[place].fingerprint == fingerprint;
    }
  };

  void Unlink(uint32_t place);

  Ghosts ghosts_;
  absl::flat_hash_set<uint32_t, FingerprintHash, SameFingerprint> index_{
      0, FingerprintHash{&ghosts_}, SameFingerprint{&ghosts_}};
  uint32_t oldest_ = kNone;
  uint32_t newest_ = kNone;
  uint32_t free_ = kNone;
  uint32_t places_count_ = 0;
};

}  // namespace ibid
