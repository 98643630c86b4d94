// ComparedStore: one of the systems that bench/compare runs side by side, as one client sees it.
// Whatever a system needs beside the bytes (keys, requests) is made in Prepare, which is not timed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/checksum.h"

namespace ibid {

// The blocks of one prefix; two prefixes with equal fields have equal keys and equal bytes.
struct PrefixShape {
  uint32_t seed = 0;
  uint32_t blocks_count = 0;
  uint64_t block_bytes = 0;
};

// Thread safety: owned by one thread, which every call blocks until all is done.
class ComparedStore {
 public:
  virtual ~ComparedStore() = default;

  // Chooses the prefix that the calls below are about.
  virtual absl::Status Prepare(const PrefixShape& shape) = 0;

  // Returns once the store has acknowledged every block of the prefix. REQUIRES: one view a block.
  virtual absl::Status Publish(std::span<const ByteView> blocks) = 0;

  // Finds blocks [first, first + into.size()) and copies them into the caller's memory.
  // Errors: NotFound (a block is missing).
  virtual absl::Status Fetch(uint32_t first, std::span<const MutableByteView> into) = 0;

  // Removes the whole prefix, so that the next one finds room in memory that was touched before.
  virtual absl::Status Drop() = 0;
};

struct ComparedStoreOptions {
  std::string system;      // ibid, redis, memcached or memcpy
  std::string address;     // host:port; not for memcpy
  std::string transport;   // ibid: how bytes travel
  uint64_t bytes_max = 0;  // memcpy: the largest prefix
};

// Connects, and waits (a bounded time) until the system answers.
// Errors: InvalidArgument (no such system), Unavailable.
absl::StatusOr<std::unique_ptr<ComparedStore>> ConnectIbid(const ComparedStoreOptions& options);
absl::StatusOr<std::unique_ptr<ComparedStore>> ConnectText(const ComparedStoreOptions& options);
// The yardstick: no store, only a copy into memory of the same process and back.
absl::StatusOr<std::unique_ptr<ComparedStore>> MakeMemcpy(const ComparedStoreOptions& options);

}  // namespace ibid
