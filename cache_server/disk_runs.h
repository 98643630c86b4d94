// Which slots of a batch lie one behind the other, and so can be written by few, long calls, from
// the first to the last: a pure plan.
//
// It keeps the pieces few that a fresh file consists of while it is filled. The inode of ext4 has
// room for four; a fifth takes a block of the disk, which is freed, and where the file system is
// mounted with `discard` given back to the device with everybody waiting, when the pieces have
// grown together again.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ibid {

struct DiskSlot {
  uint32_t page;
  uint32_t pages_count;
};

// Numbers of slots, in their order on disk.
using DiskRun = std::vector<size_t>;

// The runs of each extent, as long as can be, in the order of the disk; every slot is in one run.
// REQUIRES: slots do not overlap.
std::vector<std::vector<DiskRun>> RunsByExtent(std::span<const DiskSlot> slots,
                                               uint32_t pages_per_extent);

}  // namespace ibid
