// What the disk tier holds and where: one record a block, in RocksDB. A write batch of it is the
// commit point of the tier.
//
// Formats: docs/formats.md, "Disk directory".
//
// Thread safety: every method, from any thread. Blocks for I/O: never called under a lock.
// Durability: a write survives the death of the process when it returns; a loss of power only with
// `is_synced`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/block_key.h"

namespace rocksdb {
class DB;
class Env;
}  // namespace rocksdb

namespace ibid {

struct DiskRecord {
  uint32_t ns = 0;
  BlockKey key;
  uint32_t extent = 0;
  uint32_t extent_page = 0;
  uint64_t payload_bytes = 0;
  uint64_t checksum = 0;
  BlockKey parent;
  uint32_t token_count = 0;
  uint32_t position = 0;
};

struct DiskNamespace {
  uint32_t number = 0;
  NamespaceId id;
  std::string layout;
  std::optional<std::string> tenant;  // nothing: nobody's, or recorded before tenants were
};

struct DiskPin {
  uint64_t id = 0;
  uint32_t ns = 0;
  uint32_t priority = 0;
  int64_t ends_unix_us = 0;
  std::vector<BlockKey> keys;
};

class DiskDirectory {
 public:
  // One atomic change.
  struct Change {
    std::vector<DiskNamespace> put_namespaces;
    std::vector<DiskRecord> put_blocks;
    std::vector<std::pair<uint32_t, BlockKey>> delete_blocks;
    std::vector<uint32_t> delete_namespaces;
    std::vector<DiskPin> put_pins;
    std::vector<uint64_t> delete_pins;
    bool is_empty() const {
      return put_namespaces.empty() && put_blocks.empty() && delete_blocks.empty() &&
             delete_namespaces.empty() && put_pins.empty() && delete_pins.empty();
    }
  };

  // Opens the directory at `path`, or makes an empty one with `extent_bytes`. `env` has the files,
  // for tests, and must outlive the directory; null: the system's. Errors: FailedPrecondition
  // (another format, or open elsewhere), Unavailable (cannot be read or written).
  static absl::StatusOr<std::unique_ptr<DiskDirectory>> Open(const std::string& path,
                                                             uint64_t extent_bytes,
                                                             rocksdb::Env* env = nullptr);
  ~DiskDirectory();

  // Of the directory when it was made.
  uint64_t extent_bytes() const { return extent_bytes_; }
  const std::string& uuid() const { return uuid_; }

  // Errors: ResourceExhausted (no room), Unavailable; nothing of the change is then visible.
  absl::Status Apply(const Change& change, bool is_synced);
  // Errors: NotFound, DataLoss (the record is malformed), Unavailable.
  absl::StatusOr<DiskRecord> Lookup(uint32_t ns, const BlockKey& key) const;
  // A malformed record has an empty layout.
  absl::StatusOr<std::vector<DiskNamespace>> Namespaces() const;
  // A malformed record has no keys.
  absl::StatusOr<std::vector<DiskPin>> Pins() const;
  // Calls `each` for the blocks there were when it began, in order of key, until it returns false.
  // A malformed record is given to `malformed` as its key.
  absl::Status Scan(const std::function<bool(const DiskRecord&)>& each,
                    const std::function<void(uint32_t ns, const BlockKey&)>& malformed) const;
  // Tries to leave an error state and to write. Errors as Apply.
  absl::Status Heal();

 private:
  DiskDirectory() = default;
  absl::Status ReadFormat(uint64_t extent_bytes);

  std::unique_ptr<rocksdb::DB> db_;
  std::string uuid_;
  uint64_t extent_bytes_ = 0;
};

}  // namespace ibid
