#include "core/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
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

#ifndef F_SEAL_FUTURE_WRITE  // Linux 5.1; older headers lack it
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

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

absl::StatusOr<HostMemory> HostMemory::Map(int fd, int protection, int flags, size_t bytes) {
  void* const begin = mmap(nullptr, bytes, protection, flags, fd, 0);
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

// `seals` are put on once the memory is mapped.
absl::StatusOr<HostMemory> HostMemory::Create(const std::string& name, size_t bytes, int seals) {
  const int fd = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return MemoryError("memfd_create", bytes);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    const absl::Status status = MemoryError("ftruncate of a memfd", bytes);
    close(fd);
    return status;
  }
  auto memory = Map(fd, PROT_READ | PROT_WRITE, MAP_SHARED, bytes);
  if (!memory.ok() || fcntl(fd, F_ADD_SEALS, seals | F_SEAL_SEAL) == 0) return memory;
  return MemoryError("sealing a memfd", bytes);
}

absl::StatusOr<HostMemory> HostMemory::CreateReadableByOthers(const std::string& name,
                                                              size_t bytes) {
  return Create(name, bytes, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE);
}

absl::StatusOr<HostMemory> HostMemory::CreateForPeer(const std::string& name, size_t bytes) {
  return Create(name, bytes, F_SEAL_SHRINK | F_SEAL_GROW);
}

absl::StatusOr<HostMemory> HostMemory::MapOfPeer(int fd, size_t bytes) {
  struct stat file {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &file) != 0 ||
      static_cast<uint64_t>(file.st_size) < bytes || bytes == 0) {
    close(fd);
    return absl::InvalidArgumentError(
        absl::StrCat("shared memory: not a memfd of ", bytes, " bytes that cannot shrink"));
  }
  return Map(fd, PROT_READ, MAP_SHARED, bytes);
}

absl::StatusOr<int> HostMemory::OpenReadOnly() const {
  const std::string path = absl::StrCat("/proc/self/fd/", fd_);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd >= 0) return fd;
  return absl::UnavailableError(absl::StrCat("open of ", path, ": ", std::strerror(errno)));
}

absl::StatusOr<HostMemory> HostMemory::CreatePrivate(size_t bytes) {
  return Map(-1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, bytes);
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
