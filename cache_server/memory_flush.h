// Has the disk writer write what only memory holds, that of the host and that of the device, before
// the server ends or at an operator's word.
//
// Thread safety: none; one run, on one thread. The store serves meanwhile.
#pragma once

#include <functional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cache_server/gpu_mover.h"
#include "cache_server/residency.h"

namespace ibid {

class MemoryFlush {
 public:
  MemoryFlush(StoreParts& parts, Residency& residency, GpuMover& mover)
      : parts_(parts), residency_(residency), mover_(mover) {}

  // See BlockStore::KeepOnDisk.
  KeepResult Run(absl::Duration timeout, const std::function<bool()>& is_stopped);

 private:
  struct Block {
    EntryId id;
    uint32_t position;
    uint32_t ns;
    KeepPriority priority;
  };

  // More than the tier, or the quota of an owner, can hold would wash out what was written first.
  struct Rooms {
    uint64_t bytes = 0;
    absl::flat_hash_map<OwnerId, uint64_t> bytes_of;
  };
  using Wanted = bool (*)(const IndexEntry& entry);

  static bool IsInHostOnly(const IndexEntry& entry);
  static bool IsInGpuOnly(const IndexEntry& entry);
  // Those of the highest priority first, as they would be the last to be evicted; of one priority
  // in order of their position. One reference is counted for each.
  std::vector<Block> BlocksThat(Wanted wanted);
  // The disk writer is told of the blocks; those that only the gpu tier has are copied down first.
  void Write(const std::vector<Block>& blocks, bool from_gpu, absl::Time until,
             const std::function<bool()>& is_stopped, Rooms* rooms);
  bool CopyDown(EntryId id, absl::Time until, const std::function<bool()>& is_stopped);
  bool Queue(const Block& block, bool from_gpu, absl::Time until,
             const std::function<bool()>& is_stopped);
  void Count(const std::vector<Block>& blocks, bool from_gpu, KeepResult* result);
  bool WaitUntilIdle(absl::Time until, const std::function<bool()>& is_stopped);

  StoreParts& parts_;
  Residency& residency_;
  GpuMover& mover_;
  const SteadyClock clock_;
};

}  // namespace ibid
