// Page-aligned host memory, optionally in a memfd so that it can be handed to other processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "core/checksum.h"

namespace ibid {

// Where O_DIRECT, slots and pages start.
inline constexpr size_t kPageBytes = 4096;

inline constexpr size_t RoundUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// What this process could take at most: the system's available memory, or the limit of its control
// groups (cgroup v2) if that is less. The largest number when the system does not say.
uint64_t AvailableMemory();

// Owns one mapping. Move-only. The memory is zero and aligned to kPageBytes.
class HostMemory {
 public:
  // A shared mapping of a new memfd called `name`, whose pages are taken from the system at first
  // touch, for other processes to look into: of a size that nobody can change (a smaller one would
  // kill whoever reads it), and that nobody but this process can write to. Errors:
  // ResourceExhausted (text: the size asked for and what the system said).
  static absl::StatusOr<HostMemory> CreateReadableByOthers(const std::string& name, size_t bytes);
  // The same, for one other process to read; the size cannot be changed, the bytes can.
  static absl::StatusOr<HostMemory> CreateForPeer(const std::string& name, size_t bytes);
  // Maps what another process made by one of the two above; takes over `fd`, also on errors.
  // Errors: InvalidArgument (not a memfd, smaller than `bytes`, or its size can be changed),
  // ResourceExhausted.
  static absl::StatusOr<HostMemory> MapOfPeer(int fd, size_t bytes);
  // A private anonymous mapping.
  static absl::StatusOr<HostMemory> CreatePrivate(size_t bytes);

  HostMemory() = default;
  HostMemory(HostMemory&& other) noexcept { *this = std::move(other); }
  HostMemory& operator=(HostMemory&& other) noexcept;
  ~HostMemory();

  std::byte* begin() const { return begin_; }
  size_t size() const { return size_; }
  MutableByteView view() const { return {begin_, size_}; }
  int fd() const { return fd_; }  // -1 for a private mapping
  // A descriptor of the memfd that can only be read; the caller's to close. Errors: Unavailable.
  absl::StatusOr<int> OpenReadOnly() const;

 private:
  static absl::StatusOr<HostMemory> Create(const std::string& name, size_t bytes, int seals);
  static absl::StatusOr<HostMemory> Map(int fd, int protection, int flags, size_t bytes);

  std::byte* begin_ = nullptr;
  size_t size_ = 0;
  int fd_ = -1;
};

}  // namespace ibid
