// A hash table from keys to 24-bit numbers that keeps no keys: who has the numbers compares. A look
// costs one cache line, and one comparison in all but a few cases, because each slot has 8 bits of
// its key's hash.
//
//   bucket, 64 bytes:  | tag, number | x 15 | passed_count |
//
// Invariants:
// - A key is in the bucket of its hash or, while that was full, in the nearest one after it with a
//   free slot; passed_count of a bucket is the number of keys that lie after it for want of room.
// - So a search may end at the first bucket that nothing has passed. At least an eighth of all
//   slots is free: there is such a bucket soon, but for tables of a few buckets.
//
// Thread safety: none (the owner's lock), except Prefetch. Memory: 5 to 10 bytes a key.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/check.h"
#include "core/huge_page.h"

namespace ibid {

class TagTable {
 public:
  static constexpr uint32_t kNumberMax = (1 << 24) - 2;
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  // Memory comes from `pieces` from here on, which must outlive the table. REQUIRES: nothing was
  // inserted.
  void TakeMemoryFrom(HugePagePieces* pieces) {
    buckets_ = Buckets(PieceAllocator<Bucket>(pieces));
  }

  // The number under `hash` for which is_match(number) holds, or kNone.
  template <typename IsMatch>
  uint32_t Find(uint64_t hash, const IsMatch& is_match) const {
    if (buckets_.empty()) return kNone;
    // Once around at most: in a small table all buckets may have been passed at some time.
    size_t at = HomeOf(hash);
    for (size_t looked = 0; looked < buckets_.size(); ++looked, at = Next(at)) {
      const Bucket& bucket = buckets_[at];
      for (const uint32_t slot : bucket.slots) {
        if (slot >> 24 == TagOf(hash) && slot != 0 && is_match(NumberOf(slot))) {
          return NumberOf(slot);
        }
      }
      if (bucket.passed_count == 0) return kNone;
    }
    return kNone;
  }

  // The number that Find is likely to ask for first, or kNone. Looks at one bucket only.
  uint32_t FirstCandidate(uint64_t hash) const {
    if (buckets_.empty()) return kNone;
    for (const uint32_t slot : buckets_[HomeOf(hash)].slots) {
      if (slot >> 24 == TagOf(hash) && slot != 0) return NumberOf(slot);
    }
    return kNone;
  }

  // Hints that a Find of this hash comes soon. Thread-safe.
  void Prefetch(uint64_t hash) const {
    // Only an address, perhaps of a moment ago: a prefetch of memory that is gone does nothing.
    const size_t at = hash & mask_.load(std::memory_order_relaxed);
    __builtin_prefetch(reinterpret_cast<const void*>(address_.load(std::memory_order_relaxed) +
                                                     at * sizeof(Bucket)));
  }

  // REQUIRES: `number` is not in the table. hash_of(n) is the hash under which n was inserted:
  // asked for all of them when the table grows, after prefetch(n) some time before.
  template <typename HashOf, typename PrefetchNumber>
  void Insert(uint64_t hash, uint32_t number, const HashOf& hash_of,
              const PrefetchNumber& prefetch) {
    IBID_CHECK(number <= kNumberMax) << "the table is full: " << number;
    if (count_ >= buckets_.size() * kKeysPerBucketMax) Grow(hash_of, prefetch);
    Place(hash, number);
    ++count_;
  }

  // REQUIRES: `number` was inserted under `hash`.
  void Erase(uint64_t hash, uint32_t number) {
    const uint32_t wanted = SlotOf(hash, number);
    for (size_t at = HomeOf(hash);; at = Next(at)) {
      for (uint32_t& slot : buckets_[at].slots) {
        if (slot != wanted) continue;
        slot = 0;
        --count_;
        return;
      }
      IBID_CHECK(buckets_[at].passed_count > 0) << "number " << number << " is not in the table";
      --buckets_[at].passed_count;
    }
  }

  size_t count() const { return count_; }
  size_t buckets_count() const { return buckets_.size(); }
  // REQUIRES: at < buckets_count().
  template <typename Each>
  void ForEachInBucket(size_t at, const Each& each) const {
    for (const uint32_t slot : buckets_[at].slots) {
      if (slot != 0) each(NumberOf(slot));
    }
  }

 private:
  static constexpr size_t kSlots = 15;
  static constexpr size_t kKeysPerBucketMax = 13;  // on average

  struct alignas(64) Bucket {
    uint32_t slots[kSlots] = {};  // tag << 24 | number + 1; 0: free
    uint32_t passed_count = 0;
  };
  using Buckets = std::vector<Bucket, PieceAllocator<Bucket>>;

  static uint32_t TagOf(uint64_t hash) { return static_cast<uint32_t>(hash >> 56); }
  static uint32_t SlotOf(uint64_t hash, uint32_t number) {
    return TagOf(hash) << 24 | (number + 1);
  }
  static uint32_t NumberOf(uint32_t slot) { return (slot & 0xFFFFFF) - 1; }
  size_t HomeOf(uint64_t hash) const { return hash & (buckets_.size() - 1); }
  size_t Next(size_t at) const { return (at + 1) & (buckets_.size() - 1); }

  void Place(uint64_t hash, uint32_t number) {
    for (size_t at = HomeOf(hash);; at = Next(at)) {
      for (uint32_t& slot : buckets_[at].slots) {
        if (slot != 0) continue;
        slot = SlotOf(hash, number);
        return;
      }
      ++buckets_[at].passed_count;
    }
  }

  template <typename HashOf, typename PrefetchNumber>
  void Grow(const HashOf& hash_of, const PrefetchNumber& prefetch) {
    Buckets old(buckets_.empty() ? 1 : buckets_.size() * 2, buckets_.get_allocator());
    old.swap(buckets_);
    address_.store(reinterpret_cast<uintptr_t>(buckets_.data()), std::memory_order_relaxed);
    mask_.store(buckets_.size() - 1, std::memory_order_relaxed);
    // A bucket ahead: the waits for memory of its numbers overlap.
    for (size_t at = 0; at <= old.size(); ++at) {
      for (size_t i = 0; i < kSlots; ++i) {
        if (at < old.size() && old[at].slots[i] != 0) prefetch(NumberOf(old[at].slots[i]));
        if (at == 0 || old[at - 1].slots[i] == 0) continue;
        const uint32_t number = NumberOf(old[at - 1].slots[i]);
        Place(hash_of(number), number);
      }
    }
  }

  Buckets buckets_{PieceAllocator<Bucket>(nullptr)};  // a power of two of them
  size_t count_ = 0;
  // Of buckets_, for Prefetch.
  std::atomic<uintptr_t> address_{0};
  std::atomic<size_t> mask_{0};
};

}  // namespace ibid
