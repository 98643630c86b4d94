#include "cache_server/gpu_tier.h"

#include <future>
#include <utility>

#include "core/check.h"
#include "core/host_memory.h"

namespace ibid {
namespace {

constexpr DeviceMemory::Stream kIn = 0;
constexpr DeviceMemory::Stream kOut = 1;
constexpr DeviceMemory::Stream kWithin = 2;

// Begins a copy and waits until it is done.
template <typename Begin>
absl::Status Await(const Begin& begin) {
  std::promise<absl::Status> promise;
  std::future<absl::Status> result = promise.get_future();
  begin([&promise](absl::Status status) { promise.set_value(std::move(status)); });
  return result.get();
}

}  // namespace

GpuTier::GpuTier(std::unique_ptr<DeviceMemory> memory, uint64_t extent_bytes)
    : slots_(memory->bytes(), extent_bytes), memory_(std::move(memory)) {
  IBID_CHECK(memory_->streams_count() >= kStreamsCount) << memory_->streams_count();
}

bool GpuTier::CanEverFit(uint32_t slot_pages) const {
  MutexLock lock(mutex_);
  return slots_.CanEverFit(slot_pages);
}

std::optional<uint32_t> GpuTier::Allocate(uint32_t slot_pages, uint32_t owner) {
  MutexLock lock(mutex_);
  return slots_.Allocate(slot_pages, owner);
}

uint32_t GpuTier::Free(uint32_t page) {
  MutexLock lock(mutex_);
  return slots_.Free(page);
}

uint32_t GpuTier::SlotPages(uint32_t page) const {
  MutexLock lock(mutex_);
  return slots_.SlotPages(page);
}

std::optional<ExtentAllocator::Clearing> GpuTier::BeginClear(uint32_t victim_pages,
                                                             uint32_t wanted_pages,
                                                             std::span<const uint32_t> except) {
  MutexLock lock(mutex_);
  return slots_.BeginClear(victim_pages, wanted_pages, except);
}

void GpuTier::EndClear(uint32_t extent) {
  MutexLock lock(mutex_);
  slots_.EndClear(extent);
}

ExtentAllocator::Usage GpuTier::usage() const {
  MutexLock lock(mutex_);
  return slots_.usage();
}

uint32_t GpuTier::slots_per_extent_max() const {
  MutexLock lock(mutex_);
  return slots_.slots_per_extent_max();
}

void GpuTier::Write(uint32_t page, ByteView from, DeviceMemory::Done done) {
  memory_->CopyFromHost(kIn, uint64_t{page} * kPageBytes, from, std::move(done));
}

absl::Status GpuTier::Read(uint32_t page, MutableByteView to) {
  return Await([&](DeviceMemory::Done done) {
    memory_->CopyToHost(kOut, uint64_t{page} * kPageBytes, to, std::move(done));
  });
}

absl::Status GpuTier::Move(uint32_t from, uint32_t to, uint64_t bytes) {
  return Await([&](DeviceMemory::Done done) {
    memory_->CopyWithin(kWithin, uint64_t{from} * kPageBytes, uint64_t{to} * kPageBytes, bytes,
                        std::move(done));
  });
}

}  // namespace ibid
