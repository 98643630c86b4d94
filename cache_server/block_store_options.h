// BlockStoreOptions: what a BlockStore is opened with. Every limit has its unit in its name or
// beside it; reaching one is an error that says that name, unless it says otherwise here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/metrics.h"

namespace rocksdb {
class Env;
}

namespace ibid {

class DeviceMemory;  // core/device_memory.h
class ExtentIo;      // extent_io.h

// When a block is written to disk: after it was published; when it is to leave the host tier; when
// it is used again after it was published.
enum class DiskWriteMode { kThrough, kOnDemotion, kOnSecondUse };

struct BlockStoreOptions {
  uint64_t host_bytes_max = uint64_t{1} << 30;   // the arena; reserved at start
  std::string disk_directory;                    // empty: no disk tier
  uint64_t disk_bytes_max = uint64_t{16} << 30;  // extent files and directory, real allocation
  // Of disk_bytes_max, for the directory. Where that needs more, extent files make room for it.
  uint64_t disk_directory_bytes_reserve = uint64_t{64} << 20;
  DiskWriteMode disk_write = DiskWriteMode::kThrough;
  // Makes the gpu tier's memory, with GpuTier::kStreamsCount streams or more. Null: no gpu tier.
  std::function<absl::StatusOr<std::unique_ptr<DeviceMemory>>()> create_gpu_memory;
  std::string eviction_policy = "hazard";      // one of EvictionPolicyNames
  uint64_t extent_bytes = uint64_t{64} << 20;  // a multiple of 4 KiB, at least the largest payload
  absl::Duration lease_ttl = absl::Seconds(30);
  absl::Duration session_ttl = absl::Seconds(15);      // without a message
  absl::Duration reservation_ttl = absl::Seconds(30);  // offered or reserved, never committed
  uint32_t io_threads_count = 4;
  uint32_t sessions_max = 10'000;
  uint32_t leases_per_session_max = 4'096;
  uint32_t leased_blocks_per_session_max = 8'388'608;  // of all its leases, repetitions counted
  // Of the host tier, that the leases of one session may hold: so one reader that never lets go
  // leaves room for others. A lease counts the blocks that it was the first to hold, as long as it
  // lasts; blocks that only the disk had then take nothing of the host tier, and count nothing. A
  // match is cut where the next block would be too much.
  uint32_t leased_percent_per_session_max = 50;
  uint32_t reservations_per_session_max = 65'536;
  uint32_t reservations_max = 4'194'304;  // of all sessions: some 130 bytes each
  uint32_t namespaces_max = 4'096;
  uint32_t tenants_max = 1'024;
  uint32_t chain_keys_max = 262'144;  // in one Match or Offer
  uint32_t disk_write_queue_max =
      4'096;  // blocks waiting for the disk tier; more are not written through
  uint32_t acquire_queue_max = 16'384;     // reads from the disk and gpu tiers waiting
  uint32_t gpu_promote_queue_max = 4'096;  // blocks waiting to be considered for the gpu tier
  uint32_t event_log_max = 262'144;        // events kept while there are watchers, 80 bytes each
  uint32_t watchers_max = 64;
  // Matches that wait for pending blocks, and keys in all of them: beyond either, a match answers
  // at once with what there is.
  uint32_t waiting_matches_max = 4'096;
  uint32_t waiting_keys_max = 4'194'304;
  uint32_t must_stay_percent_max = 50;  // of each tier, that blocks pinned as kMustStay may take
  uint32_t pins_max = 1'024;
  uint32_t pinned_blocks_max = 1'048'576;  // of all pins: about 200 bytes each
  const Clock* clock = nullptr;            // null: the steady clock
  MetricsRegistry* metrics = nullptr;      // null: none are kept
  // Runs expiry and background moves; false: only RunMaintenance() does (tests with a ManualClock).
  bool has_maintenance_thread = true;
  // Memory for blocks read from disk while the host tier has no room for them.
  uint64_t read_buffer_bytes_max = uint64_t{256} << 20;
  // Takes the arena's memory from the system at start, in the background. False: each page at its
  // first touch, and host_bytes_max may be more than there is (benchmarks of the index alone).
  bool populates_arena = true;
  // Given the access to the extent files, returns the one to use: tests inject faults. Null: the
  // files themselves.
  std::function<std::unique_ptr<ExtentIo>(std::unique_ptr<ExtentIo>)> wrap_extent_io;
  // Where the disk directory's files are, for tests too; outlives the store. Null: the system's.
  rocksdb::Env* directory_env = nullptr;

  // Errors: InvalidArgument that names the option.
  absl::Status Validate() const;
};

}  // namespace ibid
