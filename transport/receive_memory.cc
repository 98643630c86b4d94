#include "transport/receive_memory.h"

#include <malloc.h>

namespace ibid {

void KeepReceiveMemory() {
  constexpr int kMmapThresholdBytesMax = 32 << 20;  // the largest that glibc takes
  mallopt(M_MMAP_THRESHOLD, kMmapThresholdBytesMax);
  mallopt(M_TRIM_THRESHOLD, kReceiveMemoryKeptBytes);
}

}  // namespace ibid
