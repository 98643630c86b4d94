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
    : TierSlots(memory->bytes(), extent_bytes), memory_(std::move(memory)) {
  IBID_CHECK(memory_->streams_count() >= kStreamsCount) << memory_->streams_count();
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
