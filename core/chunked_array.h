// An array that grows without moving: no pause and no second copy when it does.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "core/huge_page.h"

namespace ibid {

// Thread-compatible. Elements are value-initialised and live until the array dies.
template <typename T>
class ChunkedArray {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  // REQUIRES: i < size().
  T& operator[](size_t i) { return At(i); }
  const T& operator[](size_t i) const { return At(i); }

  size_t size() const { return size_; }

  void EnsureSize(size_t count) {
    while (size_ < count) Grow();
  }

 private:
  // Powers of two. Elements are made in steps, so that a small array takes little memory and no
  // call takes long.
  static constexpr size_t kStepCount = 4096;
  static constexpr size_t kPageCount = [] {
    size_t count = kStepCount;
    while (2 * count * sizeof(T) <= kHugePageBytes) count *= 2;
    return count;
  }();
  static_assert(kPageCount * sizeof(T) <= kHugePageBytes);

  T& At(size_t i) const {
    return std::launder(reinterpret_cast<T*>(pages_[i / kPageCount].get()))[i % kPageCount];
  }

  void Grow() {
    if (size_ % kPageCount == 0) pages_.push_back(MakeHugePage());
    std::byte* const page = pages_.back().get();
    for (size_t end = size_ + kStepCount; size_ < end; ++size_)
      new (page + size_ % kPageCount * sizeof(T)) T();
  }

  std::vector<HugePage> pages_;
  size_t size_ = 0;
};

}  // namespace ibid
