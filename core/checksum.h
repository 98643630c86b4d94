// XXH3-64: made by the publisher of a block, verified wherever its bytes came from elsewhere.
// Always on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace ibid {

using ByteView = std::span<const std::byte>;
using MutableByteView = std::span<std::byte>;

uint64_t Checksum(ByteView bytes);

// Copies `from` to `to` and returns the checksum of `from`, a piece at a time while it is in the
// processor's cache. Large blocks are written past the cache, which is faster than memcpy and keeps
// the cache for others. Who may write to `from` meanwhile must be found out by other means: a piece
// is read twice. REQUIRES: the same size.
uint64_t CopyLarge(ByteView from, MutableByteView to);

// The checksum over pieces that arrive one by one. Not thread-safe.
class ChecksumStream {
 public:
  ChecksumStream();
  ~ChecksumStream();
  ChecksumStream(const ChecksumStream&) = delete;
  ChecksumStream& operator=(const ChecksumStream&) = delete;

  void Add(ByteView piece);
  uint64_t Finish() const;  // of all pieces so far
  void Reset();

 private:
  void* state_;
};

}  // namespace ibid
