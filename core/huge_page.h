// Memory for large tables that are read all over the place: in 2 MiB pieces, of one page each where
// the system has such pages, so that a read does not wait for the page tables as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "core/mutex.h"

namespace ibid {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

struct HugePageUnmapper {
  void operator()(std::byte* page) const;
};
// kHugePageBytes of zeros, aligned to kHugePageBytes.
using HugePage = std::unique_ptr<std::byte, HugePageUnmapper>;

// As operator new, it ends the process when there is no memory.
HugePage MakeHugePage();

// Cuts such pages into pieces for tables that double as they grow. What is not a power of two from
// kPieceBytesMin up to a whole page comes from operator new.
//
// Thread safety: every method. Its lock is taken under any other, and none under it.
class HugePagePieces {
 public:
  static constexpr size_t kPieceBytesMin = size_t{64} << 10;

  // Aligned to a cache line; not cleared.
  std::byte* Allocate(size_t bytes);
  // `piece` came from Allocate(bytes).
  void Free(std::byte* piece, size_t bytes);

 private:
  struct Page {
    HugePage memory;
    size_t piece_bytes = 0;  // 0: no piece of it is in use
    uint32_t used = 0;       // a bit for each piece
  };
  static bool IsCut(size_t bytes);

  Mutex mutex_;
  std::vector<Page> pages_ IBID_GUARDED_BY(mutex_);
};

// For standard containers. Without pieces it is operator new.
template <typename T>
class PieceAllocator {
 public:
  using value_type = T;
  using propagate_on_container_swap = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;

  explicit PieceAllocator(HugePagePieces* pieces) : pieces_(pieces) {}

  T* allocate(size_t count) {
    static_assert(alignof(T) <= 64);
    if (pieces_ != nullptr) return reinterpret_cast<T*>(pieces_->Allocate(count * sizeof(T)));
    return static_cast<T*>(::operator new (count * sizeof(T), std::align_val_t{64}));
  }
  void deallocate(T* piece, size_t count) {
    if (pieces_ != nullptr) {
      pieces_->Free(reinterpret_cast<std::byte*>(piece), count * sizeof(T));
    } else {
      ::operator delete (piece, std::align_val_t{64});
    }
  }
  bool operator==(const PieceAllocator&) const = default;

 private:
  HugePagePieces* pieces_;
};

}  // namespace ibid
