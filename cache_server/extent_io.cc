#include "cache_server/extent_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/log.h"
#include "core/mutex.h"

namespace ibid {
namespace {

// Parts given to the system at a time; at most IOV_MAX, which is 1,024.
constexpr size_t kPartsMax = 256;

absl::Status SystemError(absl::string_view call, absl::string_view path, int error) {
  const std::string text = absl::StrCat(call, " ", path, ": ", std::strerror(error));
  // The process is short of something: it says nothing about what is on the disk.
  const bool is_short = error == EMFILE || error == ENFILE || error == ENOMEM;
  if (error == ENOSPC || error == EDQUOT || is_short) return absl::ResourceExhaustedError(text);
  if (error == ENOENT) return absl::NotFoundError(text);
  return absl::UnavailableError(text);
}

class OpenFile {
 public:
  explicit OpenFile(int fd) : fd_(fd) {}
  ~OpenFile() { close(fd_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

class FileExtentIo final : public ExtentIo {
 public:
  explicit FileExtentIo(std::string directory) : directory_(std::move(directory)) {}

  absl::Status Prepare(uint32_t extent, uint64_t bytes) override {
    IBID_ASSIGN_OR_RETURN(const FilePtr file, FileOf(extent, O_CREAT));
    struct stat status;
    if (fstat(file->fd(), &status) != 0) return SystemError("stat", PathOf(extent), errno);
    if (static_cast<uint64_t>(status.st_size) > bytes &&
        ftruncate(file->fd(), static_cast<off_t>(bytes)) != 0) {
      return SystemError("ftruncate", PathOf(extent), errno);
    }
    // posix_fallocate would write zeros where the file system cannot allocate; plain fallocate says
    // so instead.
    if (fallocate(file->fd(), 0, 0, static_cast<off_t>(bytes)) == 0) return absl::OkStatus();
    const int error = errno;
    if (error == EOPNOTSUPP) {
      return ftruncate(file->fd(), static_cast<off_t>(bytes)) == 0
                 ? absl::OkStatus()
                 : SystemError("ftruncate", PathOf(extent), errno);
    }
    return SystemError("fallocate", PathOf(extent), error);
  }

  absl::Status Write(uint32_t extent, uint64_t offset, ByteView bytes) override {
    IBID_ASSIGN_OR_RETURN(const FilePtr file, FileOf(extent, 0));
    while (!bytes.empty()) {
      const ssize_t count =
          pwrite(file->fd(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return SystemError("write", PathOf(extent), count < 0 ? errno : EIO);
      bytes = bytes.subspan(static_cast<size_t>(count));
      offset += static_cast<uint64_t>(count);
    }
    return absl::OkStatus();
  }

  absl::Status WriteParts(uint32_t extent, uint64_t offset,
                          std::span<const ByteView> parts) override {
    IBID_ASSIGN_OR_RETURN(const FilePtr file, FileOf(extent, 0));
    while (!parts.empty()) {
      const std::span<const ByteView> now = parts.first(std::min(parts.size(), kPartsMax));
      std::vector<iovec> vectors;
      uint64_t bytes = 0;
      for (const ByteView part : now) {
        vectors.push_back({const_cast<std::byte*>(part.data()), part.size()});
        bytes += part.size();
      }
      const ssize_t count = pwritev(file->fd(), vectors.data(), static_cast<int>(vectors.size()),
                                    static_cast<off_t>(offset));
      if (count < 0 && errno != EINTR) return SystemError("write", PathOf(extent), errno);
      // A call that did less is repeated the plain way, which also finds out why.
      if (static_cast<uint64_t>(std::max<ssize_t>(count, 0)) < bytes) {
        IBID_RETURN_IF_ERROR(ExtentIo::WriteParts(extent, offset, now));
      }
      offset += bytes;
      parts = parts.subspan(now.size());
    }
    return absl::OkStatus();
  }

  absl::Status Read(uint32_t extent, uint64_t offset, MutableByteView into) override {
    IBID_ASSIGN_OR_RETURN(const FilePtr file, FileOf(extent, 0));
    while (!into.empty()) {
      const ssize_t count = pread(file->fd(), into.data(), into.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return SystemError("read", PathOf(extent), errno);
      if (count == 0)
        return absl::NotFoundError(absl::StrCat(PathOf(extent), " ends before ", offset));
      into = into.subspan(static_cast<size_t>(count));
      offset += static_cast<uint64_t>(count);
    }
    return absl::OkStatus();
  }

  absl::Status Sync(uint32_t extent) override {
    IBID_ASSIGN_OR_RETURN(const FilePtr file, FileOf(extent, 0));
    return fdatasync(file->fd()) == 0 ? absl::OkStatus()
                                      : SystemError("fdatasync", PathOf(extent), errno);
  }

  absl::Status SyncNames() override { return SyncDirectory(directory_); }

  absl::Status Remove(uint32_t extent) override {
    {
      MutexLock lock(mutex_);
      files_.erase(extent);
    }
    if (unlink(PathOf(extent).c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
    return SystemError("unlink", PathOf(extent), errno);
  }

  absl::StatusOr<std::vector<uint32_t>> List() override {
    std::vector<uint32_t> extents;
    std::error_code error;
    for (std::filesystem::directory_iterator it(directory_, error), end; !error && it != end;
         it.increment(error)) {
      uint32_t extent = 0;
      if (it->path().extension() == ".ext" &&
          absl::SimpleAtoi(it->path().stem().string(), &extent)) {
        extents.push_back(extent);
      }
    }
    if (error)
      return absl::UnavailableError(absl::StrCat("list ", directory_, ": ", error.message()));
    return extents;
  }

 private:
  using FilePtr = std::shared_ptr<OpenFile>;

  std::string PathOf(uint32_t extent) const {
    return absl::StrFormat("%s/%06d.ext", directory_, extent);
  }

  absl::StatusOr<FilePtr> FileOf(uint32_t extent, int create_flag) {
    {
      MutexLock lock(mutex_);
      const auto it = files_.find(extent);
      if (it != files_.end()) return it->second;
    }
    const std::string path = PathOf(extent);
    const int flags = O_RDWR | O_CLOEXEC | create_flag;
    int fd = is_direct_.load(std::memory_order_relaxed) ? open(path.c_str(), flags | O_DIRECT, 0640)
                                                        : -1;
    if (fd < 0 && (errno == EINVAL || !is_direct_.load(std::memory_order_relaxed))) {
      fd = open(path.c_str(), flags, 0640);
      if (fd >= 0 && is_direct_.exchange(false)) {
        IBID_LOG(warn, "disk tier: {} has no O_DIRECT; block bytes go through the page cache",
                 directory_);
      }
    }
    if (fd < 0) return SystemError("open", path, errno);
    auto file = std::make_shared<OpenFile>(fd);
    MutexLock lock(mutex_);
    return files_.emplace(extent, std::move(file)).first->second;
  }

  const std::string directory_;
  std::atomic<bool> is_direct_{true};
  Mutex mutex_;
  absl::flat_hash_map<uint32_t, FilePtr> files_ IBID_GUARDED_BY(mutex_);
};

}  // namespace

absl::Status ExtentIo::WriteParts(uint32_t extent, uint64_t offset,
                                  std::span<const ByteView> parts) {
  for (const ByteView part : parts) {
    IBID_RETURN_IF_ERROR(Write(extent, offset, part));
    offset += part.size();
  }
  return absl::OkStatus();
}

std::unique_ptr<ExtentIo> MakeFileExtentIo(std::string directory) {
  return std::make_unique<FileExtentIo>(std::move(directory));
}

absl::Status SyncDirectory(const std::string& directory) {
  const int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return SystemError("open", directory, errno);
  const OpenFile file(fd);
  // EINVAL: a file system that cannot, and has nothing to be asked for.
  if (fsync(fd) == 0 || errno == EINVAL) return absl::OkStatus();
  return SystemError("fsync", directory, errno);
}

uint64_t AllocatedBytesUnder(const std::string& directory) {
  uint64_t bytes = 0;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    struct stat status;
    if (stat(it->path().c_str(), &status) == 0 && S_ISREG(status.st_mode)) {
      bytes += static_cast<uint64_t>(status.st_blocks) * 512;
    }
  }
  return bytes;
}

}  // namespace ibid
