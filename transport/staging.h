// Memory that payloads are copied to when they must be sent although their owner may go before gRPC
// is done with them.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/checksum.h"
#include "core/host_memory.h"
#include "core/mutex.h"

namespace ibid {

// What a pool keeps for reuse; more is given back to the system. Fresh memory is up to 30 times
// slower than used one.
inline constexpr size_t kStagingBytesRetainedMax = size_t{64} << 20;

// Thread-safe. Buffers may outlive the pool's other owners: they come back when the last reference
// goes.
class StagingPool : public std::enable_shared_from_this<StagingPool> {
 public:
  struct Buffer {
    MutableByteView bytes;
    std::shared_ptr<const void> owner;  // of `bytes`; null when the system has no memory left
  };
  Buffer Take(size_t bytes_count);

 private:
  void GiveBack(HostMemory memory);

  Mutex mutex_;
  std::vector<HostMemory> free_ IBID_GUARDED_BY(mutex_);
  size_t free_bytes_ IBID_GUARDED_BY(mutex_) = 0;
};

}  // namespace ibid
