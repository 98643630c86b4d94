// The yardstick of every round: the same bytes, copied within one process.

#include <cstring>

#include "bench/compare/compared_store.h"
#include "core/host_memory.h"

namespace ibid {
namespace {

class MemcpyStore : public ComparedStore {
 public:
  explicit MemcpyStore(HostMemory memory) : memory_(std::move(memory)) {}

  absl::Status Prepare(const PrefixShape& shape) override {
    shape_ = shape;
    return absl::OkStatus();
  }

  absl::Status Publish(std::span<const ByteView> blocks) override {
    for (size_t i = 0; i < blocks.size(); ++i) {
      std::memcpy(memory_.begin() + i * shape_.block_bytes, blocks[i].data(), blocks[i].size());
    }
    return absl::OkStatus();
  }

  absl::Status Fetch(uint32_t first, std::span<const MutableByteView> into) override {
    for (size_t i = 0; i < into.size(); ++i) {
      std::memcpy(into[i].data(), memory_.begin() + (first + i) * shape_.block_bytes,
                  into[i].size());
    }
    return absl::OkStatus();
  }

  absl::Status Drop() override { return absl::OkStatus(); }

 private:
  HostMemory memory_;
  PrefixShape shape_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ComparedStore>> MakeMemcpy(const ComparedStoreOptions& options) {
  auto memory = HostMemory::CreatePrivate(options.bytes_max);
  if (!memory.ok()) return memory.status();
  std::memset(memory->begin(), 1, options.bytes_max);
  return std::make_unique<MemcpyStore>(*std::move(memory));
}

}  // namespace ibid
