#include "core/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ibid {
namespace {

absl::Status MemoryError(absl::string_view call, size_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat(call, " of ", bytes, " bytes of host memory failed: ", std::strerror(errno)));
}

// The least limit of the process's control group and those that it is in.
uint64_t ControlGroupLimit() {
  uint64_t limit = std::numeric_limits<uint64_t>::max();
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!absl::StartsWith(line, "0::/")) continue;
    for (std::string path = line.substr(3); !path.empty(); path.erase(path.rfind('/'))) {
      std::ifstream file(absl::StrCat("/sys/fs/cgroup", path, "/memory.max"));
      uint64_t bytes = 0;
      if (file >> bytes) limit = std::min(limit, bytes);  // else it is "max", or there is no file
    }
  }
  return limit;
}

}  // namespace

uint64_t AvailableMemory() {
  uint64_t available = std::numeric_limits<uint64_t>::max();
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    uint64_t kilobytes = 0;
    if (word == "MemAvailable:" && file >> kilobytes) available = kilobytes << 10;
  }
  return std::min(available, ControlGroupLimit());
}

absl::StatusOr<HostMemory> HostMemory::Map(int fd, int flags, size_t bytes) {
  void* const begin = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (begin == MAP_FAILED) {
    const absl::Status status = MemoryError("mmap", bytes);
    if (fd >= 0) close(fd);
    return status;
  }
  HostMemory memory;
  memory.begin_ = static_cast<std::byte*>(begin);
  memory.size_ = bytes;
  memory.fd_ = fd;
  return memory;
}

absl::StatusOr<HostMemory> HostMemory::CreateShared(const std::string& name, size_t bytes) {
  const int fd = memfd_create(name.c_str(), MFD_CLOEXEC);
  if (fd < 0) return MemoryError("memfd_create", bytes);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    const absl::Status status = MemoryError("ftruncate of a memfd", bytes);
    close(fd);
    return status;
  }
  return Map(fd, MAP_SHARED, bytes);
}

absl::StatusOr<HostMemory> HostMemory::CreatePrivate(size_t bytes) {
  return Map(-1, MAP_PRIVATE | MAP_ANONYMOUS, bytes);
}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  std::swap(begin_, other.begin_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  return *this;
}

HostMemory::~HostMemory() {
  if (begin_ != nullptr) munmap(begin_, size_);
  if (fd_ >= 0) close(fd_);
}

}  // namespace ibid
