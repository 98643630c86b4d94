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

// The same over pieces that arrive one by one. Not thread-safe.
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
