// Invariants:
// - An extent is in exactly one of: empty_, blocked, one size class. It is in a class if and only
// if used > 0, except
//   between Cut and the first slot taken.
// - An extent of a class is in `open` if and only if it has a free slot and is not being cleared;
// `free_slots` is the sum
//   over `open`.
// - A bit of free_bits is set if and only if the slot is free; words before `hint` are zero.
#include "cache_server/extent_allocator.h"

#include <algorithm>
#include <bit>

#include "core/check.h"
#include "core/host_memory.h"

namespace ibid {

ExtentAllocator::ExtentAllocator(uint64_t bytes, uint64_t extent_bytes)
    : total_bytes_(bytes / kPageBytes * kPageBytes), pages_per_extent_(extent_bytes / kPageBytes) {
  IBID_CHECK(extent_bytes > 0 && extent_bytes % kPageBytes == 0) << extent_bytes;
  IBID_CHECK(bytes / kPageBytes < kNoPage) << bytes << " bytes do not fit 32-bit page numbers";
  const uint64_t pages = bytes / kPageBytes;
  for (uint64_t at = 0; at < pages; at += pages_per_extent_) {
    empty_.insert(empty_.end(), static_cast<uint32_t>(extents_.size()));
    extents_.emplace_back().pages =
        static_cast<uint32_t>(std::min<uint64_t>(pages_per_extent_, pages - at));
  }
}

uint64_t ExtentAllocator::ExtentBytes(uint32_t extent) const {
  return uint64_t{extents_[extent].pages} * kPageBytes;
}

bool ExtentAllocator::CanEverFit(uint32_t slot_pages) const {
  return !extents_.empty() && slot_pages > 0 && slot_pages <= extents_.front().pages;
}

void ExtentAllocator::Cut(uint32_t index, uint32_t slot_pages) {
  Extent& extent = extents_[index];
  empty_.erase(index);
  extent.slot_pages = slot_pages;
  extent.slots = extent.pages / slot_pages;
  extent.used = extent.hint = 0;
  extent.free_bits.assign((extent.slots + 63) / 64, ~uint64_t{0});
  if (extent.slots % 64 != 0) extent.free_bits.back() = (uint64_t{1} << (extent.slots % 64)) - 1;
  extent.owners = std::make_unique<uint32_t[]>(extent.slots);
  cut_pages_ += extent.pages;
  classes_[slot_pages].extents.insert(index);
  SetOpen(index, true);
}

void ExtentAllocator::Uncut(uint32_t index) {
  Extent& extent = extents_[index];
  SetOpen(index, false);
  const auto it = classes_.find(extent.slot_pages);
  it->second.extents.erase(index);
  if (it->second.extents.empty()) classes_.erase(it);
  cut_pages_ -= extent.pages;
  extent.slot_pages = extent.slots = 0;
  extent.free_bits = {};
  extent.owners.reset();
  if (!extent.is_clearing) empty_.insert(index);
}

void ExtentAllocator::SetOpen(uint32_t index, bool is_open) {
  const Extent& extent = extents_[index];
  SizeClass& size_class = classes_[extent.slot_pages];
  const uint32_t free = extent.slots - extent.used;
  if (is_open && size_class.open.insert(index).second) size_class.free_slots += free;
  if (!is_open && size_class.open.erase(index) > 0) size_class.free_slots -= free;
}

uint32_t ExtentAllocator::TakeFreeSlot(Extent& extent) {
  while (extent.free_bits[extent.hint] == 0) ++extent.hint;
  return extent.hint * 64 + std::countr_zero(extent.free_bits[extent.hint]);
}

void ExtentAllocator::MarkUsed(uint32_t index, uint32_t slot, uint32_t owner) {
  Extent& extent = extents_[index];
  SetOpen(index, false);
  extent.free_bits[slot / 64] &= ~(uint64_t{1} << (slot % 64));
  extent.owners[slot] = owner;
  ++extent.used;
  ++slots_used_;
  used_pages_ += extent.slot_pages;
  if (extent.used < extent.slots && !extent.is_clearing) SetOpen(index, true);
}

std::optional<uint32_t> ExtentAllocator::Allocate(uint32_t slot_pages, uint32_t owner) {
  IBID_CHECK(slot_pages > 0);
  uint32_t index = kNoPage;
  const auto it = classes_.find(slot_pages);
  if (it != classes_.end() && !it->second.open.empty()) {
    // The lowest one: high extents drain and can be given to another size.
    index = *it->second.open.begin();
  } else {
    // Only the last extent can be too short.
    for (const uint32_t candidate : empty_) {
      if (extents_[candidate].pages < slot_pages) continue;
      index = candidate;
      break;
    }
    if (index == kNoPage) return std::nullopt;
    Cut(index, slot_pages);
  }
  const uint32_t slot = TakeFreeSlot(extents_[index]);
  MarkUsed(index, slot, owner);
  return index * pages_per_extent_ + slot * slot_pages;
}

bool ExtentAllocator::Claim(uint32_t page, uint32_t slot_pages, uint32_t owner) {
  const uint32_t index = ExtentOf(page);
  if (index >= extents_.size() || slot_pages == 0) return false;
  Extent& extent = extents_[index];
  const uint32_t offset = page % pages_per_extent_;
  if (extent.slot_pages == 0) {
    if (extent.is_blocked || extent.is_clearing) return false;
    if (offset % slot_pages != 0 || offset + slot_pages > extent.pages) return false;
    Cut(index, slot_pages);
  }
  const uint32_t slot = offset / slot_pages;
  if (extent.slot_pages != slot_pages || offset % slot_pages != 0 || slot >= extent.slots)
    return false;
  if ((extent.free_bits[slot / 64] >> (slot % 64) & 1) == 0) return false;
  MarkUsed(index, slot, owner);
  return true;
}

uint32_t ExtentAllocator::Free(uint32_t page) {
  const uint32_t index = ExtentOf(page);
  IBID_CHECK(index < extents_.size()) << "page " << page;
  Extent& extent = extents_[index];
  const uint32_t slot_pages = extent.slot_pages;
  IBID_CHECK(slot_pages > 0 && page % pages_per_extent_ % slot_pages == 0)
      << "page " << page << " starts no slot";
  const uint32_t slot = page % pages_per_extent_ / slot_pages;
  IBID_CHECK((extent.free_bits[slot / 64] >> (slot % 64) & 1) == 0)
      << "page " << page << " was freed twice";
  SetOpen(index, false);
  extent.free_bits[slot / 64] |= uint64_t{1} << (slot % 64);
  extent.hint = std::min(extent.hint, slot / 64);
  --extent.used;
  --slots_used_;
  used_pages_ -= slot_pages;
  if (extent.used == 0) {
    Uncut(index);
  } else if (!extent.is_clearing) {
    SetOpen(index, true);
  }
  return slot_pages;
}

uint32_t ExtentAllocator::SlotPages(uint32_t page) const {
  return extents_[ExtentOf(page)].slot_pages;
}

std::optional<ExtentAllocator::Clearing> ExtentAllocator::BeginClear(
    uint32_t victim_pages, uint32_t wanted_pages, std::span<const uint32_t> except) {
  const auto it = classes_.find(victim_pages);
  if (it == classes_.end()) return std::nullopt;
  uint32_t best = kNoPage;
  for (const uint32_t index : it->second.extents) {
    const Extent& extent = extents_[index];
    if (extent.is_clearing || extent.pages < wanted_pages) continue;
    if (std::find(except.begin(), except.end(), index) != except.end()) continue;
    if (best == kNoPage || extent.used < extents_[best].used) best = index;
  }
  if (best == kNoPage) return std::nullopt;
  Extent& extent = extents_[best];
  const uint64_t own_free = it->second.open.contains(best) ? extent.slots - extent.used : 0;
  if (it->second.free_slots - own_free < extent.used) return std::nullopt;
  SetOpen(best, false);
  extent.is_clearing = true;
  Clearing clearing{best, {}};
  for (uint32_t slot = 0; slot < extent.slots; ++slot) {
    if ((extent.free_bits[slot / 64] >> (slot % 64) & 1) != 0) continue;
    clearing.slots.push_back({best * pages_per_extent_ + slot * victim_pages, extent.owners[slot]});
  }
  return clearing;
}

void ExtentAllocator::EndClear(uint32_t index) {
  Extent& extent = extents_[index];
  IBID_CHECK(extent.is_clearing) << "extent " << index;
  extent.is_clearing = false;
  if (extent.slot_pages == 0) {
    empty_.insert(index);
  } else if (extent.used < extent.slots) {
    SetOpen(index, true);
  }
}

void ExtentAllocator::Block(uint32_t index) {
  if (empty_.erase(index) == 0) return;
  extents_[index].is_blocked = true;
  ++blocked_count_;
}

void ExtentAllocator::UnblockAll() {
  for (uint32_t index = 0; index < extents_.size() && blocked_count_ > 0; ++index) {
    if (!extents_[index].is_blocked) continue;
    extents_[index].is_blocked = false;
    --blocked_count_;
    empty_.insert(index);
  }
}

ExtentAllocator::Usage ExtentAllocator::usage() const {
  Usage usage;
  usage.total_bytes = total_bytes_;
  usage.used_bytes = used_pages_ * kPageBytes;
  usage.cut_bytes = cut_pages_ * kPageBytes;
  usage.slots_count = slots_used_;
  uint32_t largest = empty_.empty() ? 0 : extents_[*empty_.begin()].pages;
  for (const auto& [slot_pages, size_class] : classes_) {
    if (!size_class.open.empty()) largest = std::max(largest, slot_pages);
  }
  usage.largest_free_bytes = uint64_t{largest} * kPageBytes;
  return usage;
}

uint32_t ExtentAllocator::slots_per_extent_max() const {
  return classes_.empty() ? 1 : pages_per_extent_ / classes_.begin()->first;
}

}  // namespace ibid
