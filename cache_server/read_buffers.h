// Page-aligned buffers for blocks that are read from disk and find no room in the host tier. Freed
// ones are kept for the next read, because the first touch of new memory costs more than the read.
//
// Thread safety: every method, from any thread. A buffer goes back when its last owner drops it,
// which must be before the pool dies. Limit: read_buffer_bytes_max, of buffers in use and kept.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/host_memory.h"
#include "core/mutex.h"

namespace ibid {

class ReadBuffers {
 public:
  using Buffer = std::shared_ptr<HostMemory>;

  explicit ReadBuffers(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  // At least `bytes` long. Errors: ResourceExhausted (read_buffer_bytes_max; or the system has no
  // memory).
  absl::StatusOr<Buffer> Take(uint64_t bytes);

 private:
  void GiveBack(HostMemory memory);

  const uint64_t bytes_max_;
  Mutex mutex_;
  uint64_t bytes_ IBID_GUARDED_BY(mutex_) = 0;  // of all buffers, in use and kept
  std::vector<HostMemory> kept_ IBID_GUARDED_BY(mutex_);
};

}  // namespace ibid
