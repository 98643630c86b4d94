// Cuts a tier's room into extents and each extent into slots of one size. An empty extent may take
// any size again, so that mixed block sizes do not fragment the tier for ever. It moves no bytes:
// pages are 4 KiB and numbered from 0.
//
//   pages   0                1024              2048             3072
//           | extent 0       | extent 1        | extent 2       | (the last one may be shorter)
//           |s0|s1|s2|s3|..  | s0   | s1   |   | free: any size |
//            slot = 3 pages    slot = 400 pages
//
// Thread safety: none (the owner's lock). Cost: O(1) amortised to allocate and free, O(extents) to
// clear.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

namespace ibid {

inline constexpr uint64_t kExtentBytesMax = uint64_t{1} << 40;

inline constexpr uint32_t kNoPage = 0xFFFFFFFF;

class ExtentAllocator {
 public:
  struct Slot {
    uint32_t page;
    uint32_t owner;
  };
  // An extent that is being emptied: nothing is allocated in it until EndClear.
  struct Clearing {
    uint32_t extent;
    std::vector<Slot> slots;  // in use when it began
  };
  struct Usage {
    uint64_t total_bytes = 0;
    uint64_t used_bytes = 0;          // slots in use
    uint64_t cut_bytes = 0;           // extents that have a slot size
    uint64_t largest_free_bytes = 0;  // the largest slot that could be had now
    uint64_t slots_count = 0;         // in use
  };

  // REQUIRES: extent_bytes is a multiple of 4 KiB; bytes < 16 TiB.
  ExtentAllocator(uint64_t bytes, uint64_t extent_bytes);

  uint32_t extents_count() const { return static_cast<uint32_t>(extents_.size()); }
  uint32_t ExtentOf(uint32_t page) const { return page / pages_per_extent_; }
  uint64_t ExtentBytes(uint32_t extent) const;
  // Whether a slot of this size could exist at all in an empty tier.
  bool CanEverFit(uint32_t slot_pages) const;

  // The first page of a free slot; nothing when there is none of this size and no empty extent.
  std::optional<uint32_t> Allocate(uint32_t slot_pages, uint32_t owner);
  // Takes exactly this slot. False when it is in use, out of range, or its extent has another slot
  // size.
  bool Claim(uint32_t page, uint32_t slot_pages, uint32_t owner);
  // REQUIRES: `page` starts a slot in use. Returns its size in pages.
  uint32_t Free(uint32_t page);
  uint32_t SlotPages(uint32_t page) const;

  // The sparsest extent cut for `victim_pages` whose slots in use all have room in other extents of
  // that size, and which could hold a slot of `wanted_pages`. Extents in `except` are passed over.
  std::optional<Clearing> BeginClear(uint32_t victim_pages, uint32_t wanted_pages,
                                     std::span<const uint32_t> except);
  void EndClear(uint32_t extent);

  bool IsEmpty(uint32_t extent) const { return empty_.contains(extent); }
  // Takes an empty extent out of use until UnblockAll (its file cannot be made now).
  void Block(uint32_t extent);
  void UnblockAll();
  uint32_t blocked_count() const { return blocked_count_; }

  Usage usage() const;
  // The largest number of slots that any extent in use has.
  uint32_t slots_per_extent_max() const;

 private:
  struct Extent {
    uint32_t pages = 0;
    uint32_t slot_pages = 0;  // 0: empty, any size
    uint32_t slots = 0;
    uint32_t used = 0;
    uint32_t hint = 0;  // no free slot in a word before this one
    bool is_clearing = false;
    bool is_blocked = false;
    std::vector<uint64_t> free_bits;
    std::unique_ptr<uint32_t[]> owners;
  };
  struct SizeClass {
    std::set<uint32_t> extents;
    std::set<uint32_t> open;  // with a free slot, not being cleared
    uint64_t free_slots = 0;  // of the open ones
  };

  void Cut(uint32_t index, uint32_t slot_pages);
  void Uncut(uint32_t index);
  uint32_t TakeFreeSlot(Extent& extent);
  void MarkUsed(uint32_t index, uint32_t slot, uint32_t owner);
  void SetOpen(uint32_t index, bool is_open);

  const uint64_t total_bytes_;
  const uint32_t pages_per_extent_;
  std::vector<Extent> extents_;
  std::set<uint32_t> empty_;  // neither cut nor blocked
  std::map<uint32_t, SizeClass> classes_;
  uint64_t used_pages_ = 0;
  uint64_t slots_used_ = 0;
  uint64_t cut_pages_ = 0;
  uint32_t blocked_count_ = 0;
};

}  // namespace ibid
