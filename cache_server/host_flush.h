// Has the disk writer write what only the host tier holds, before the server ends or at an
// operator's word.
//
// Thread safety: none; one run, on one thread. The store serves meanwhile.
#pragma once

#include <functional>
#include <vector>

#include "cache_server/residency.h"

namespace ibid {

class HostFlush {
 public:
  HostFlush(StoreParts& parts, Residency& residency) : parts_(parts), residency_(residency) {}

  // See BlockStore::KeepOnDisk.
  KeepResult Run(absl::Duration timeout, const std::function<bool()>& is_stopped);

 private:
  struct Block {
    EntryId id;
    uint32_t position;
    uint32_t ns;
  };

  // One reference is counted for each.
  std::vector<Block> HostOnlyBlocks();
  bool IsOnDisk(EntryId id);
  bool IsHostOnly(EntryId id);
  bool Queue(const Block& block, absl::Time until, const std::function<bool()>& is_stopped);
  bool WaitUntilIdle(absl::Time until, const std::function<bool()>& is_stopped);

  StoreParts& parts_;
  Residency& residency_;
  const SteadyClock clock_;
};

}  // namespace ibid
