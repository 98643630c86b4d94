// The disk tier: extent files for the bytes, a directory for where they are, the books of free
// room, and its health. It knows pages and records; which block is where in memory is the index's
// business.
//
//   <directory>/LOCK               held by the one server that has it open
//   <directory>/directory/         RocksDB: disk_directory.h
//   <directory>/extents/NNNNNN.ext preallocated, slots of one size each: extent_io.h,
//   extent_allocator.h
//
// Order of a write: slot allocated -> bytes written -> [synced, if durable] -> directory record
// (the commit point). Order of a removal: record deleted -> slot freed. So at any instant a record
// names a slot that holds its bytes, and a slot without a record is free; what a loss of power
// reorders is caught by the checksum.
//
// Budget: extent files and directory together never exceed `bytes_max`, in real allocation. The
// directory has `directory_bytes_reserve` of it. It has about 150 bytes a block and up to 32 MiB of
// logs; where it is measured to need more, and a quarter of that for its compactions, no further
// extent file is made, and those that there are make room. Between two measurements it can grow.
//
// Thread safety: every method, from any thread, except that AllocateSlot and GiveBackExtent belong
// to one thread (the disk writer). Blocks for I/O: never called under a lock.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache_server/disk_directory.h"
#include "cache_server/disk_health.h"
#include "cache_server/extent_allocator.h"
#include "cache_server/extent_io.h"
#include "core/clock.h"
#include "core/metrics.h"
#include "core/mutex.h"

namespace ibid {

struct DiskTierOptions {
  std::string directory;
  uint64_t bytes_max = 0;
  uint64_t directory_bytes_reserve = 0;  // less than bytes_max
  uint64_t extent_bytes = 0;
  const Clock* clock = nullptr;
  // Given the real one, returns the one to use: tests inject faults. Null: the real one.
  std::function<std::unique_ptr<ExtentIo>(std::unique_ptr<ExtentIo>)> wrap_extent_io;
  rocksdb::Env* directory_env = nullptr;  // DiskDirectory::Open
};

class DiskTier {
 public:
  // Errors: InvalidArgument, FailedPrecondition (in use by another server; another format; a
  // directory of something else), Unavailable.
  static absl::StatusOr<std::unique_ptr<DiskTier>> Open(DiskTierOptions options);
  ~DiskTier();

  DiskDirectory& directory() { return *directory_; }
  DiskHealth& health() { return health_; }
  absl::Time Now() const { return options_.clock->Now(); }

  bool CanEverFit(uint32_t slot_pages) const IBID_EXCLUDES(mutex_);
  // A free slot in a file that exists; nothing when room must be made first, or no file can be
  // made.
  std::optional<uint32_t> AllocateSlot(uint32_t slot_pages, uint32_t owner) IBID_EXCLUDES(mutex_);
  // Books a slot that the directory has, by `record`; its page. Nothing when it is out of range,
  // has no file, overlaps another or has the wrong size: the record is then void.
  std::optional<uint32_t> ClaimSlot(const DiskRecord& record, uint32_t owner) IBID_EXCLUDES(mutex_);
  // REQUIRES: no record names the slot. Returns its size in pages.
  uint32_t FreeSlot(uint32_t page) IBID_EXCLUDES(mutex_);
  std::optional<ExtentAllocator::Clearing> BeginClear(uint32_t victim_pages, uint32_t wanted_pages,
                                                      std::span<const uint32_t> except)
      IBID_EXCLUDES(mutex_);
  void EndClear(uint32_t extent) IBID_EXCLUDES(mutex_);
  uint32_t SlotPages(uint32_t page) const IBID_EXCLUDES(mutex_);
  ExtentAllocator::Usage usage() const IBID_EXCLUDES(mutex_);
  uint32_t slots_per_extent_max() const IBID_EXCLUDES(mutex_);

  // Whole slots: `bytes` is a multiple of 4 KiB, aligned to it. They record the health.
  absl::Status WriteSlot(uint32_t page, ByteView bytes) { return WriteSlots(page, {&bytes, 1}); }
  // Slots of one extent that lie one behind the other, from `page` on.
  absl::Status WriteSlots(uint32_t page, std::span<const ByteView> slots);
  absl::Status ReadSlot(uint32_t page, MutableByteView into);
  // The extents that hold these pages survive a loss of power.
  absl::Status Sync(std::span<const uint32_t> pages);
  // DiskDirectory::Apply, recorded in the health.
  absl::Status Commit(const DiskDirectory::Change& change, bool is_synced);

  uint32_t ExtentOf(uint32_t page) const { return page / pages_per_extent_; }
  uint32_t ExtentPageOf(uint32_t page) const { return page % pages_per_extent_; }
  uint32_t pages_per_extent() const { return pages_per_extent_; }

  // When a trial is due: tries the directory and a small file, so that the tier heals without
  // traffic too.
  void HealIfDue();
  // Looks what the directory takes.
  void MeasureDirectory();
  uint64_t directory_bytes() const { return directory_bytes_.load(std::memory_order_relaxed); }
  bool is_over_budget() const;
  // Deletes the file of an extent that has no slot in use. False when there is none.
  bool GiveBackExtent() IBID_EXCLUDES(mutex_);
  // What the extent files take, in bytes.
  uint64_t allocated_bytes() const { return allocated_bytes_.load(std::memory_order_relaxed); }
  // The directory cannot be scanned, so nothing is written; empty: it can.
  void SetScanError(std::string error) IBID_EXCLUDES(mutex_);
  // "ok", or what is wrong.
  std::string state() const;

 private:
  explicit DiskTier(DiskTierOptions options) : options_(std::move(options)) {}
  absl::Status LockDirectory();
  absl::Status OpenParts();
  void TryToHeal();
  void TryToGrow();
  absl::Status ProbeRead(MutableByteView into);
  bool HasBudgetFor(uint64_t extent_bytes) const;
  absl::StatusOr<std::vector<bool>> AdoptFiles(const ExtentAllocator& slots);

  const DiskTierOptions options_;
  int lock_fd_ = -1;
  uint32_t pages_per_extent_ = 0;
  std::unique_ptr<ExtentIo> io_;
  std::unique_ptr<DiskDirectory> directory_;
  DiskHealth health_;
  std::atomic<uint64_t> allocated_bytes_{0};
  std::atomic<uint64_t> directory_bytes_{0};  // when it was measured last
  std::atomic<int64_t> unblock_at_ns_{0};
  std::atomic<bool> is_healing_{false};

  mutable Mutex mutex_;
  std::unique_ptr<ExtentAllocator> slots_ IBID_PT_GUARDED_BY(mutex_);
  std::vector<bool> has_file_ IBID_GUARDED_BY(mutex_);
  std::string full_text_ IBID_GUARDED_BY(mutex_);
  std::string scan_error_ IBID_GUARDED_BY(mutex_);
};

}  // namespace ibid
