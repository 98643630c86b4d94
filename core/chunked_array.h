// An array that grows without moving: no pause and no second copy when it does.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace ibid {

// Thread-compatible. Elements are value-initialised and live until the array dies.
template <typename T, size_t kChunkCount>
class ChunkedArray {
 public:
  // REQUIRES: i < size().
  T& operator[](size_t i) { return chunks_[i / kChunkCount][i % kChunkCount]; }
  const T& operator[](size_t i) const { return chunks_[i / kChunkCount][i % kChunkCount]; }

  size_t size() const { return chunks_.size() * kChunkCount; }

  void EnsureSize(size_t count) {
    while (size() < count) chunks_.push_back(std::make_unique<T[]>(kChunkCount));
  }

 private:
  std::vector<std::unique_ptr<T[]>> chunks_;
};

}  // namespace ibid
