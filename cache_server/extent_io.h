// The disk tier's files, and nothing else of the disk: every read and write of block bytes goes
// through here, so that tests put errors, tears, flipped bits and a full disk behind it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/checksum.h"

namespace ibid {

// Thread-safe, except that Prepare and Remove of one extent overlap with no other call on it.
// Offsets, sizes and addresses are multiples of 4 KiB. Errors: ResourceExhausted (the file system
// is full), NotFound (no such file, or shorter than asked), Unavailable (all else the system says).
class ExtentIo {
 public:
  virtual ~ExtentIo() = default;

  // Makes the file of `extent`, exactly so long, and takes its room from the file system;
  // idempotent. Afterwards a write needs no more room.
  virtual absl::Status Prepare(uint32_t extent, uint64_t bytes) = 0;
  virtual absl::Status Write(uint32_t extent, uint64_t offset, ByteView bytes) = 0;
  // Writes the parts one behind the other from `offset` on. After an error nobody knows which of
  // them were written.
  virtual absl::Status WriteParts(uint32_t extent, uint64_t offset,
                                  std::span<const ByteView> parts);
  virtual absl::Status Read(uint32_t extent, uint64_t offset, MutableByteView into) = 0;
  // What was written to the extent survives a loss of power, if its file does.
  virtual absl::Status Sync(uint32_t extent) = 0;
  // The files that were made so far survive a loss of power.
  virtual absl::Status SyncNames() = 0;
  // Deletes the file; fine when there is none.
  virtual absl::Status Remove(uint32_t extent) = 0;
  // The extents that have a file.
  virtual absl::StatusOr<std::vector<uint32_t>> List() = 0;
};

// Files `NNNNNN.ext` in `directory`, which exists. With O_DIRECT where the file system allows it,
// so that block bytes go from and to the slots without a copy in the page cache. Keeps each file
// that was used open.
std::unique_ptr<ExtentIo> MakeFileExtentIo(std::string directory);

// The names in a directory survive a loss of power: POSIX promises that of no file that was made
// and synced itself. Errors: those of ExtentIo.
absl::Status SyncDirectory(const std::string& directory);

// Space that the files of a directory really take, directories below included. 0 when it cannot be
// read.
uint64_t AllocatedBytesUnder(const std::string& directory);

}  // namespace ibid
