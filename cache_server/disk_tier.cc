#include "cache_server/disk_tier.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/host_memory.h"
#include "core/log.h"

namespace ibid {
namespace {

// Between two log lines of one place.
constexpr int64_t kLogPeriodSeconds = 10;
namespace fs = std::filesystem;

// The file that a trial write goes to: no extent has this number.
constexpr uint32_t kProbeExtent = 999'999;
// How long the tier works with the files it has before it asks a full file system again.
constexpr absl::Duration kFullBackoff = absl::Seconds(10);
// A compaction writes its result before it deletes what it read: this part of the directory more.
constexpr uint64_t kCompactionDivisor = 4;

absl::Status CannotUse(absl::string_view what, const std::string& directory,
                       absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("disk tier: cannot ", what, " ", directory, ": ", why,
                                             "; give a folder that can be used as --disk_dir"));
}

// A mistyped path must not fill somebody's home directory.
absl::Status CheckIsOurs(const std::string& directory) {
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name != "LOCK" && name != "directory" && name != "extents" && name != "lost+found") {
      return absl::FailedPreconditionError(
          absl::StrCat("disk tier: ", directory, " has '", name,
                       "' in it: not empty and not a directory of ibid; give another --disk_dir"));
    }
  }
  return error ? CannotUse("list", directory, error.message()) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DiskTier>> DiskTier::Open(DiskTierOptions options) {
  std::error_code error;
  const bool is_new = fs::create_directories(options.directory, error);
  if (error) return CannotUse("create", options.directory, error.message());
  if (is_new) {
    const fs::path path = fs::absolute(options.directory).lexically_normal();
    IBID_RETURN_IF_ERROR(
        SyncDirectory(path.has_filename() ? path.parent_path() : path.parent_path().parent_path()));
  }
  IBID_RETURN_IF_ERROR(CheckIsOurs(options.directory));
  std::unique_ptr<DiskTier> tier(new DiskTier(std::move(options)));
  IBID_RETURN_IF_ERROR(tier->LockDirectory());
  IBID_RETURN_IF_ERROR(tier->OpenParts());
  return tier;
}

DiskTier::~DiskTier() {
  directory_.reset();
  if (lock_fd_ >= 0) close(lock_fd_);
}

absl::Status DiskTier::LockDirectory() {
  const std::string path = options_.directory + "/LOCK";
  lock_fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0640);
  if (lock_fd_ < 0) return CannotUse("open", path, std::strerror(errno));
  if (flock(lock_fd_, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  if (errno != EWOULDBLOCK) return CannotUse("lock", path, std::strerror(errno));
  return absl::FailedPreconditionError(absl::StrCat(
      "disk tier: ", options_.directory,
      " is in use by another running server; stop that one or give another --disk_dir"));
}

absl::Status DiskTier::OpenParts() {
  const std::string extents = options_.directory + "/extents";
  std::error_code error;
  const bool is_new = fs::create_directories(extents, error);
  if (error) return CannotUse("create", extents, error.message());
  IBID_ASSIGN_OR_RETURN(
      directory_, DiskDirectory::Open(options_.directory + "/directory", options_.extent_bytes,
                                      options_.directory_env));
  if (is_new) IBID_RETURN_IF_ERROR(SyncDirectory(options_.directory));
  const uint64_t extent_bytes = directory_->extent_bytes();
  if (extent_bytes != options_.extent_bytes) {
    IBID_LOG(warn,
             "disk tier: {} keeps its extents of {} bytes; extent_bytes {} is for new directories",
             options_.directory, extent_bytes, options_.extent_bytes);
  }
  pages_per_extent_ = static_cast<uint32_t>(extent_bytes / kPageBytes);
  io_ = MakeFileExtentIo(extents);
  if (options_.wrap_extent_io) io_ = options_.wrap_extent_io(std::move(io_));
  auto slots = std::make_unique<ExtentAllocator>(
      options_.bytes_max - options_.directory_bytes_reserve, extent_bytes);
  if (slots->extents_count() >= kProbeExtent) {
    return absl::InvalidArgumentError(absl::StrCat("disk_bytes_max ", options_.bytes_max, " needs ",
                                                   slots->extents_count(), " extents of ",
                                                   extent_bytes, " bytes"));
  }
  IBID_ASSIGN_OR_RETURN(std::vector<bool> has_file, AdoptFiles(*slots));
  MeasureDirectory();
  MutexLock lock(mutex_);
  slots_ = std::move(slots);
  has_file_ = std::move(has_file);
  return absl::OkStatus();
}

// Brings the files that exist to their size under today's budget and deletes those beyond it: their
// records are void.
absl::StatusOr<std::vector<bool>> DiskTier::AdoptFiles(const ExtentAllocator& slots) {
  std::vector<bool> has_file(slots.extents_count());
  IBID_ASSIGN_OR_RETURN(const std::vector<uint32_t> extents, io_->List());
  for (const uint32_t extent : extents) {
    absl::Status status;
    if (extent < slots.extents_count()) {
      status = io_->Prepare(extent, slots.ExtentBytes(extent));
      has_file[extent] = true;
      allocated_bytes_ += slots.ExtentBytes(extent);
    } else {
      status = io_->Remove(extent);
    }
    if (!status.ok()) IBID_LOG(warn, "disk tier: {}", status.message());
  }
  return has_file;
}

bool DiskTier::CanEverFit(uint32_t slot_pages) const {
  MutexLock lock(mutex_);
  return slots_->CanEverFit(slot_pages);
}

std::optional<uint32_t> DiskTier::AllocateSlot(uint32_t slot_pages, uint32_t owner) {
  const int64_t now_ns = absl::ToUnixNanos(Now());
  while (true) {
    std::optional<uint32_t> page;
    uint64_t extent_bytes = 0;
    bool has_file = false;
    {
      MutexLock lock(mutex_);
      if (slots_->blocked_count() > 0 && now_ns >= unblock_at_ns_.load(std::memory_order_relaxed)) {
        slots_->UnblockAll();
      }
      page = slots_->Allocate(slot_pages, owner);
      if (!page.has_value()) return std::nullopt;
      extent_bytes = slots_->ExtentBytes(ExtentOf(*page));
      has_file = has_file_[ExtentOf(*page)];
    }
    if (has_file) return page;
    if (!HasBudgetFor(extent_bytes)) {
      MutexLock lock(mutex_);
      slots_->Free(*page);
      slots_->Block(ExtentOf(*page));
      unblock_at_ns_.store(now_ns + absl::ToInt64Nanoseconds(kFullBackoff),
                           std::memory_order_relaxed);
      continue;
    }
    absl::Status prepared = io_->Prepare(ExtentOf(*page), extent_bytes);
    // Else no block in it would be durable: a loss of power could take the file's name.
    if (prepared.ok()) prepared = io_->SyncNames();
    if (!prepared.ok())
      (void)io_->Remove(ExtentOf(*page));  // what there is of it would take room that nobody counts
    MutexLock lock(mutex_);
    if (prepared.ok()) {
      has_file_[ExtentOf(*page)] = true;
      allocated_bytes_ += extent_bytes;
      full_text_.clear();
      return page;
    }
    // The tier goes on with the files that it has: no other new one is tried before the next trial.
    slots_->Free(*page);
    for (uint32_t extent = 0; extent < has_file_.size(); ++extent) {
      if (!has_file_[extent]) slots_->Block(extent);
    }
    full_text_ = absl::StrCat("full: no file for another extent: ", prepared.message());
    unblock_at_ns_.store(now_ns + absl::ToInt64Nanoseconds(kFullBackoff),
                         std::memory_order_relaxed);
    IBID_LOG_EVERY(kLogPeriodSeconds, warn, "disk tier: {}", full_text_);
  }
}

std::optional<uint32_t> DiskTier::ClaimSlot(const DiskRecord& record, uint32_t owner) {
  const uint64_t slot_pages = RoundUp(record.payload_bytes, kPageBytes) / kPageBytes;
  if (slot_pages == 0 || slot_pages > pages_per_extent_ || record.extent_page >= pages_per_extent_)
    return std::nullopt;
  const uint32_t page = record.extent * pages_per_extent_ + record.extent_page;
  MutexLock lock(mutex_);
  // A file that somebody deleted takes its blocks with it.
  if (record.extent >= slots_->extents_count() || !has_file_[record.extent]) return std::nullopt;
  if (!slots_->Claim(page, static_cast<uint32_t>(slot_pages), owner)) return std::nullopt;
  return page;
}

uint32_t DiskTier::FreeSlot(uint32_t page) {
  MutexLock lock(mutex_);
  return slots_->Free(page);
}

uint32_t DiskTier::SlotPages(uint32_t page) const {
  MutexLock lock(mutex_);
  return slots_->SlotPages(page);
}

std::optional<ExtentAllocator::Clearing> DiskTier::BeginClear(uint32_t victim_pages,
                                                              uint32_t wanted_pages,
                                                              std::span<const uint32_t> except) {
  MutexLock lock(mutex_);
  return slots_->BeginClear(victim_pages, wanted_pages, except);
}

void DiskTier::EndClear(uint32_t extent) {
  MutexLock lock(mutex_);
  slots_->EndClear(extent);
}

ExtentAllocator::Usage DiskTier::usage() const {
  MutexLock lock(mutex_);
  return slots_->usage();
}

uint32_t DiskTier::slots_per_extent_max() const {
  MutexLock lock(mutex_);
  return slots_->slots_per_extent_max();
}

absl::Status DiskTier::WriteSlots(uint32_t page, std::span<const ByteView> slots) {
  const absl::Status status =
      io_->WriteParts(ExtentOf(page), uint64_t{ExtentPageOf(page)} * kPageBytes, slots);
  // Only Commit records a success: a broken directory must not look whole because the bytes could
  // be written.
  if (!status.ok()) health_.OnWrite(status, Now());
  return status;
}

absl::Status DiskTier::ReadSlot(uint32_t page, MutableByteView into) {
  const absl::Status status =
      io_->Read(ExtentOf(page), uint64_t{ExtentPageOf(page)} * kPageBytes, into);
  // A file that somebody deleted says nothing about the disk.
  health_.OnRead(absl::IsNotFound(status) ? absl::OkStatus() : status, Now());
  return status;
}

absl::Status DiskTier::Sync(std::span<const uint32_t> pages) {
  std::vector<uint32_t> extents;
  for (const uint32_t page : pages) extents.push_back(ExtentOf(page));
  std::sort(extents.begin(), extents.end());
  extents.erase(std::unique(extents.begin(), extents.end()), extents.end());
  absl::Status status;
  for (const uint32_t extent : extents) status.Update(io_->Sync(extent));
  if (!status.ok()) health_.OnWrite(status, Now());
  return status;
}

absl::Status DiskTier::Commit(const DiskDirectory::Change& change, bool is_synced) {
  const absl::Status status = directory_->Apply(change, is_synced);
  health_.OnWrite(status, Now());
  return status;
}

void DiskTier::MeasureDirectory() {
  directory_bytes_.store(AllocatedBytesUnder(options_.directory + "/directory"),
                         std::memory_order_relaxed);
}

bool DiskTier::HasBudgetFor(uint64_t extent_bytes) const {
  const uint64_t measured = directory_bytes();
  const uint64_t directory =
      std::max(options_.directory_bytes_reserve, measured + measured / kCompactionDivisor);
  return allocated_bytes() + extent_bytes + directory <= options_.bytes_max;
}

bool DiskTier::is_over_budget() const { return !HasBudgetFor(0); }

bool DiskTier::GiveBackExtent() {
  // A trial read could open the file in the moment in which it is deleted.
  if (is_healing_.exchange(true)) return false;
  std::optional<uint32_t> extent;
  {
    MutexLock lock(mutex_);
    for (uint32_t i = static_cast<uint32_t>(has_file_.size()); i-- > 0 && !extent.has_value();) {
      if (has_file_[i] && slots_->IsEmpty(i)) extent = i;
    }
    if (extent.has_value()) {
      slots_->Block(*extent);
      has_file_[*extent] = false;
      unblock_at_ns_.store(absl::ToUnixNanos(Now()) + absl::ToInt64Nanoseconds(kFullBackoff),
                           std::memory_order_relaxed);
    }
  }
  bool is_removed = false;
  if (extent.has_value()) {
    const absl::Status removed = io_->Remove(*extent);
    is_removed = removed.ok();
    if (!is_removed) IBID_LOG_EVERY(kLogPeriodSeconds, warn, "disk tier: {}", removed.message());
    MutexLock lock(mutex_);
    if (is_removed) {
      allocated_bytes_ -= slots_->ExtentBytes(*extent);
    } else {
      has_file_[*extent] = true;
    }
  }
  is_healing_.store(false);
  return is_removed;
}

void DiskTier::HealIfDue() {
  if (is_healing_.exchange(true)) return;
  if (health_.is_trial_due(Now())) TryToHeal();
  if (health_.is_writable()) TryToGrow();
  is_healing_.store(false);
}

// Of a file that holds blocks, if there is one: a disk that can be read but not written must heal.
absl::Status DiskTier::ProbeRead(MutableByteView into) {
  std::optional<uint32_t> extent;
  {
    MutexLock lock(mutex_);
    const auto it = std::find(has_file_.begin(), has_file_.end(), true);
    if (it != has_file_.end()) extent = static_cast<uint32_t>(it - has_file_.begin());
  }
  if (extent.has_value()) {
    const absl::Status status = io_->Read(*extent, 0, into);
    return absl::IsNotFound(status) ? absl::OkStatus() : status;  // a file that somebody deleted
  }
  IBID_RETURN_IF_ERROR(io_->Prepare(kProbeExtent, into.size()));
  IBID_RETURN_IF_ERROR(io_->Write(kProbeExtent, 0, into));
  return io_->Read(kProbeExtent, 0, into);
}

// A file system that was full may have room again, whether or not anybody asks for it.
void DiskTier::TryToGrow() {
  uint64_t extent_bytes = 0;
  {
    MutexLock lock(mutex_);
    const int64_t now_ns = absl::ToUnixNanos(Now());
    if (full_text_.empty() || now_ns < unblock_at_ns_.load(std::memory_order_relaxed)) return;
    extent_bytes = slots_->ExtentBytes(0);
    unblock_at_ns_.store(now_ns + absl::ToInt64Nanoseconds(kFullBackoff),
                         std::memory_order_relaxed);
  }
  const bool has_room = io_->Prepare(kProbeExtent, extent_bytes).ok();
  (void)io_->Remove(kProbeExtent);
  if (!has_room) return;
  MutexLock lock(mutex_);
  slots_->UnblockAll();
  full_text_.clear();
}

void DiskTier::TryToHeal() {
  static constexpr size_t kProbeBytes = kPageBytes;
  auto probe = HostMemory::CreatePrivate(kProbeBytes);
  if (!probe.ok()) return;
  if (!health_.is_writable() && health_.CanWrite(Now())) {
    absl::Status status = directory_->Heal();
    if (status.ok()) status = io_->Prepare(kProbeExtent, kProbeBytes);
    if (status.ok()) status = io_->Write(kProbeExtent, 0, probe->view());
    health_.OnWrite(status, Now());
    if (status.ok()) IBID_LOG(info, "disk tier: writes work again");
  }
  if (!health_.is_readable() && health_.CanRead(Now())) {
    const absl::Status status = ProbeRead(probe->view());
    health_.OnRead(status, Now());
    if (status.ok()) IBID_LOG(info, "disk tier: reads work again");
  }
  (void)io_->Remove(kProbeExtent);
}

void DiskTier::SetScanError(std::string error) {
  MutexLock lock(mutex_);
  scan_error_ = std::move(error);
}

std::string DiskTier::state() const {
  const std::string health = health_.text();
  if (health != "ok") return health;
  MutexLock lock(mutex_);
  if (!scan_error_.empty()) {
    return absl::StrCat("read-only: ", scan_error_,
                        "; if it stays so, start with another --disk_dir");
  }
  return full_text_.empty() ? "ok" : full_text_;
}

}  // namespace ibid
