#include "cache_server/host_arena.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/log.h"

namespace ibid {
namespace {

// Linux 5.14; older headers lack it.
constexpr int kPopulateWrite = 23;
// Small enough that the thread stops soon.
constexpr size_t kPopulatePieceBytes = size_t{16} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<HostArena>> HostArena::Create(uint64_t bytes, uint64_t extent_bytes,
                                                             bool is_populated) {
  IBID_ASSIGN_OR_RETURN(HostMemory memory, HostMemory::CreateReadableByOthers("ibid-arena", bytes));
  const size_t pages = RoundUp(bytes, kPageBytes) / kPageBytes;
  IBID_ASSIGN_OR_RETURN(HostMemory generations, HostMemory::CreateReadableByOthers(
                                                    "ibid-generations", pages * sizeof(uint32_t)));
  return std::unique_ptr<HostArena>(
      new HostArena(std::move(memory), std::move(generations), extent_bytes, is_populated));
}

HostArena::HostArena(HostMemory memory, HostMemory generations, uint64_t extent_bytes,
                     bool is_populated)
    : TierSlots(memory.size(), extent_bytes),
      memory_(std::move(memory)),
      generations_(std::move(generations)) {
  if (!is_populated) return;
  populate_thread_ = std::thread([this] { Populate(); });
  pthread_setname_np(populate_thread_.native_handle(), "ibid-populate");
}

HostArena::~HostArena() {
  is_stopping_.store(true, std::memory_order_relaxed);
  if (populate_thread_.joinable()) populate_thread_.join();
}

uint32_t HostArena::Free(uint32_t page) {
  const uint32_t pages = SlotPages(page);
  for (uint32_t i = page; i < page + pages; ++i) {
    std::atomic<uint32_t>& generation = GenerationOf(i);  // the slot's owner alone changes it
    generation.store(generation.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);  // before what the next owner writes
  return TierSlots::Free(page);
}

// The first touch of a page is up to 30 times slower than the next: pages are allocated and mapped
// here, ahead of the requests. Neither call changes a byte, so slots may be written meanwhile.
void HostArena::Populate() {
  // Huge pages where the system has them for shared memory (shmem_enabled): a hint, no more.
  (void)madvise(memory_.begin(), memory_.size(), MADV_HUGEPAGE);
  for (size_t at = 0; at < memory_.size() && !is_stopping_.load(std::memory_order_relaxed);
       at += kPopulatePieceBytes) {
    const size_t bytes = std::min(kPopulatePieceBytes, memory_.size() - at);
    if (fallocate(memory_.fd(), 0, static_cast<off_t>(at), static_cast<off_t>(bytes)) != 0) {
      IBID_LOG(warn, "host arena: {} of {} bytes are populated; the system refused more: {}", at,
               memory_.size(), std::strerror(errno));
      return;
    }
    // A kernel without it maps the pages at their first touch.
    (void)madvise(memory_.begin() + at, bytes, kPopulateWrite);
  }
  is_populated_.store(true, std::memory_order_release);
}

}  // namespace ibid
