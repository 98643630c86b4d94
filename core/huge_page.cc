#include "core/huge_page.h"

#include <sys/mman.h>

#include <bit>
#include <cerrno>
#include <cstring>

#include "core/check.h"

namespace ibid {

void HugePageUnmapper::operator()(std::byte* page) const { munmap(page, kHugePageBytes); }

HugePage MakeHugePage() {
  // Twice as much has an aligned piece in it.
  void* const mapped =
      mmap(nullptr, 2 * kHugePageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  IBID_CHECK(mapped != MAP_FAILED) << "no memory for a table: " << std::strerror(errno);
  std::byte* const begin = static_cast<std::byte*>(mapped);
  const size_t past = reinterpret_cast<uintptr_t>(begin) % kHugePageBytes;
  const size_t before = past == 0 ? 0 : kHugePageBytes - past;
  if (before > 0) munmap(begin, before);
  if (before < kHugePageBytes) munmap(begin + before + kHugePageBytes, kHugePageBytes - before);
  madvise(begin + before, kHugePageBytes, MADV_HUGEPAGE);  // else pages are small: slower
  return HugePage(begin + before);
}

bool HugePagePieces::IsCut(size_t bytes) {
  return std::has_single_bit(bytes) && bytes >= kPieceBytesMin && bytes <= kHugePageBytes;
}

std::byte* HugePagePieces::Allocate(size_t bytes) {
  if (!IsCut(bytes)) {
    return static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64}));
  }
  MutexLock lock(mutex_);
  const size_t count = kHugePageBytes / bytes;
  const uint32_t all = count == 32 ? ~uint32_t{0} : (uint32_t{1} << count) - 1;
  Page* page = nullptr;
  for (Page& each : pages_) {
    if (each.piece_bytes == 0) page = &each;
    if (each.piece_bytes != bytes || each.used == all) continue;
    page = &each;
    break;
  }
  if (page == nullptr) page = &pages_.emplace_back(Page{MakeHugePage()});
  page->piece_bytes = bytes;
  const int place = std::countr_one(page->used);
  page->used |= uint32_t{1} << place;
  return page->memory.get() + static_cast<size_t>(place) * bytes;
}

void HugePagePieces::Free(std::byte* piece, size_t bytes) {
  if (!IsCut(bytes)) {
    ::operator delete (piece, std::align_val_t{64});
    return;
  }
  MutexLock lock(mutex_);
  for (Page& page : pages_) {
    const size_t offset = static_cast<size_t>(piece - page.memory.get());
    if (piece < page.memory.get() || offset >= kHugePageBytes) continue;
    page.used &= ~(uint32_t{1} << (offset / bytes));
    if (page.used == 0) page.piece_bytes = 0;
    return;
  }
  IBID_CHECK(false) << "no piece of these pages";
}

}  // namespace ibid
