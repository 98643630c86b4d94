#include "cache_server/disk_directory.h"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cache_server/extent_allocator.h"
#include "core/check.h"
#include "core/host_memory.h"
#include "core/log.h"
#include "core/random_id.h"

namespace ibid {
namespace {

constexpr char kFormatKey[] = "m";
constexpr char kProbeKey[] = "p";
constexpr absl::string_view kFormatName = "ibid.disk";
constexpr absl::string_view kFormatVersion = "1";
constexpr size_t kBlockKeyBytes = 1 + 4 + 32;
constexpr size_t kBlockValueBytes = 4 + 4 + 8 + 8 + 32 + 4 + 4;
constexpr size_t kNamespaceKeyBytes = 1 + 4;
constexpr size_t kPinKeyBytes = 1 + 8;
constexpr size_t kPinHeadBytes = 4 + 4 + 8;

absl::Status FromRocks(absl::string_view what, const rocksdb::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const std::string text = absl::StrCat("disk directory: ", what, ": ", status.ToString());
  if (status.IsNotFound()) return absl::NotFoundError("");
  if (status.IsNoSpace() || status.subcode() == rocksdb::Status::kNoSpace)
    return absl::ResourceExhaustedError(text);
  return absl::UnavailableError(text);
}

[[gnu::noinline]] rocksdb::Status CallRocks(rocksdb::DB& db, const rocksdb::WriteOptions& options,
                                            rocksdb::WriteBatch& batch) {
  return db.Write(options, &batch);
}

// RocksDB's work and nothing else: tests/tsan_suppressions.txt knows it by this name. It takes two
// functions, because of a function that calls into a library without instrumentation
// ThreadSanitizer knows only who called it.
[[gnu::noinline]] absl::Status WriteBatchByRocks(rocksdb::DB& db,
                                                 const rocksdb::WriteOptions& options,
                                                 rocksdb::WriteBatch& batch) {
  return FromRocks("write", CallRocks(db, options, batch));
}

absl::string_view TextOf(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

void AppendBigEndian(uint32_t value, std::string* out) {
  for (int shift = 24; shift >= 0; shift -= 8)
    out->push_back(static_cast<char>(value >> shift & 0xFF));
}

uint32_t BigEndianAt(const char* at) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(at[i]);
  return value;
}

// All machines that ibid runs on are little-endian; the format is that of memory.
template <typename T>
void Append(const T& value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

template <typename T>
void Take(const char** at, T* value) {
  std::memcpy(value, *at, sizeof(T));
  *at += sizeof(T);
}

std::string NamespaceKeyOf(uint32_t ns) {
  std::string key = "n";
  AppendBigEndian(ns, &key);
  return key;
}

std::string BlockKeyOf(uint32_t ns, const BlockKey& block) {
  std::string key = "b";
  key.reserve(kBlockKeyBytes);
  AppendBigEndian(ns, &key);
  Append(block.digest, &key);
  return key;
}

std::string EncodeNamespace(const DiskNamespace& ns) {
  std::string value;
  Append(ns.id.digest, &value);
  value += ns.layout;
  if (ns.tenant.has_value()) {
    value.push_back('\0');  // which no layout has
    value += *ns.tenant;
  }
  return value;
}

void DecodeNamespace(const rocksdb::Slice& value, DiskNamespace* ns) {
  if (value.size() < sizeof(Digest)) return;
  const char* at = value.data();
  Take(&at, &ns->id.digest);
  const absl::string_view rest = TextOf(value).substr(sizeof(Digest));
  const size_t layout_end = rest.find('\0');
  ns->layout = std::string(rest.substr(0, layout_end));
  if (layout_end != absl::string_view::npos) {
    ns->tenant = std::string(rest.substr(layout_end + 1));
  }
}

std::string PinKeyOf(uint64_t id) {
  std::string key = "P";
  Append(id, &key);
  return key;
}

std::string EncodePin(const DiskPin& pin) {
  std::string value;
  value.reserve(kPinHeadBytes + pin.keys.size() * sizeof(Digest));
  Append(pin.ns, &value);
  Append(pin.priority, &value);
  Append(pin.ends_unix_us, &value);
  for (const BlockKey& key : pin.keys) Append(key.digest, &value);
  return value;
}

void DecodePin(const rocksdb::Slice& value, DiskPin* pin) {
  if (value.size() < kPinHeadBytes || (value.size() - kPinHeadBytes) % sizeof(Digest) != 0) return;
  const char* at = value.data();
  Take(&at, &pin->ns);
  Take(&at, &pin->priority);
  Take(&at, &pin->ends_unix_us);
  pin->keys.resize((value.size() - kPinHeadBytes) / sizeof(Digest));
  for (BlockKey& key : pin->keys) Take(&at, &key.digest);
}

std::string EncodeBlock(const DiskRecord& record) {
  std::string value;
  value.reserve(kBlockValueBytes);
  Append(record.extent, &value);
  Append(record.extent_page, &value);
  Append(record.payload_bytes, &value);
  Append(record.checksum, &value);
  Append(record.parent.digest, &value);
  Append(record.token_count, &value);
  Append(record.position, &value);
  return value;
}

bool DecodeBlock(const rocksdb::Slice& value, DiskRecord* record) {
  if (value.size() != kBlockValueBytes) return false;
  const char* at = value.data();
  Take(&at, &record->extent);
  Take(&at, &record->extent_page);
  Take(&at, &record->payload_bytes);
  Take(&at, &record->checksum);
  Take(&at, &record->parent.digest);
  Take(&at, &record->token_count);
  Take(&at, &record->position);
  return true;
}

rocksdb::Options DirectoryOptions() {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.info_log_level = rocksdb::WARN_LEVEL;
  options.keep_log_file_num = 2;
  options.max_log_file_size = size_t{1} << 20;
  options.max_manifest_file_size = uint64_t{4} << 20;
  // The directory's own overhead on disk and in memory stays small and bounded beside the extents.
  options.write_buffer_size = size_t{8} << 20;
  options.max_write_buffer_number = 2;
  options.max_total_wal_size = uint64_t{16} << 20;
  options.manifest_preallocation_size = 64 << 10;
  options.max_open_files = 256;
  options.max_background_jobs = 2;
  options.allow_fallocate = false;
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(size_t{8} << 20);
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DiskDirectory>> DiskDirectory::Open(const std::string& path,
                                                                   uint64_t extent_bytes,
                                                                   rocksdb::Env* env) {
  std::unique_ptr<DiskDirectory> directory(new DiskDirectory);
  rocksdb::Options options = DirectoryOptions();
  if (env != nullptr) options.env = env;
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(options, path, &db);
  if (!status.ok()) {
    const absl::Status error = FromRocks(absl::StrCat("open ", path), status);
    return absl::Status(error.code(), absl::StrCat(error.message(), "; give another --disk_dir"));
  }
  directory->db_.reset(db);
  IBID_RETURN_IF_ERROR(directory->ReadFormat(extent_bytes));
  return directory;
}

DiskDirectory::~DiskDirectory() = default;

absl::Status DiskDirectory::ReadFormat(uint64_t extent_bytes) {
  std::string format;
  const rocksdb::Status status = db_->Get({}, kFormatKey, &format);
  if (status.IsNotFound()) {
    const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator({}));
    it->SeekToFirst();
    if (it->Valid())
      return absl::FailedPreconditionError(
          "the disk directory has records but no format: it is damaged; give another --disk_dir");
    uuid_ = absl::StrFormat("%016x%016x", RandomId(), RandomId());
    extent_bytes_ = extent_bytes;
    rocksdb::WriteOptions synced;
    synced.sync = true;
    return FromRocks("write format", db_->Put(synced, kFormatKey,
                                              absl::StrCat(kFormatName, " ", kFormatVersion, " ",
                                                           uuid_, " ", extent_bytes_)));
  }
  IBID_RETURN_IF_ERROR(FromRocks("read format", status));
  const std::vector<std::string> fields = absl::StrSplit(format, ' ');
  if (fields.size() != 4 || fields[0] != kFormatName || fields[1] != kFormatVersion ||
      !absl::SimpleAtoi(fields[3], &extent_bytes_)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the disk directory has format '", format, "'; this server reads '",
                     kFormatName, " ", kFormatVersion, "'; give another --disk_dir"));
  }
  if (extent_bytes_ == 0 || extent_bytes_ % kPageBytes != 0 || extent_bytes_ > kExtentBytesMax) {
    return absl::FailedPreconditionError(
        absl::StrCat("the disk directory says that its extents have ", extent_bytes_,
                     " bytes: it is damaged; give another --disk_dir"));
  }
  uuid_ = fields[2];
  return absl::OkStatus();
}

absl::Status DiskDirectory::Apply(const Change& change, bool is_synced) {
  if (change.is_empty()) return absl::OkStatus();
  rocksdb::WriteBatch batch;
  for (const DiskNamespace& ns : change.put_namespaces) {
    batch.Put(NamespaceKeyOf(ns.number), EncodeNamespace(ns));
  }
  for (const auto& [ns, key] : change.delete_blocks) batch.Delete(BlockKeyOf(ns, key));
  for (const DiskRecord& record : change.put_blocks)
    batch.Put(BlockKeyOf(record.ns, record.key), EncodeBlock(record));
  for (const uint32_t ns : change.delete_namespaces) batch.Delete(NamespaceKeyOf(ns));
  for (const DiskPin& pin : change.put_pins) batch.Put(PinKeyOf(pin.id), EncodePin(pin));
  for (const uint64_t pin : change.delete_pins) batch.Delete(PinKeyOf(pin));
  rocksdb::WriteOptions options;
  options.sync = is_synced;
  return WriteBatchByRocks(*db_, options, batch);
}

absl::StatusOr<DiskRecord> DiskDirectory::Lookup(uint32_t ns, const BlockKey& key) const {
  rocksdb::PinnableSlice value;
  const rocksdb::Status status =
      db_->Get({}, db_->DefaultColumnFamily(), BlockKeyOf(ns, key), &value);
  IBID_RETURN_IF_ERROR(FromRocks("read", status));
  DiskRecord record;
  record.ns = ns;
  record.key = key;
  if (!DecodeBlock(value, &record)) return absl::DataLossError("disk directory: malformed record");
  return record;
}

absl::StatusOr<std::vector<DiskNamespace>> DiskDirectory::Namespaces() const {
  std::vector<DiskNamespace> all;
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator({}));
  for (it->Seek("n"); it->Valid() && it->key().starts_with("n"); it->Next()) {
    if (it->key().size() != kNamespaceKeyBytes) continue;
    DiskNamespace& ns = all.emplace_back();
    ns.number = BigEndianAt(it->key().data() + 1);
    DecodeNamespace(it->value(), &ns);  // malformed: its number is taken
  }
  IBID_RETURN_IF_ERROR(FromRocks("read namespaces", it->status()));
  return all;
}

absl::StatusOr<std::vector<DiskPin>> DiskDirectory::Pins() const {
  std::vector<DiskPin> all;
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator({}));
  for (it->Seek("P"); it->Valid() && it->key().starts_with("P"); it->Next()) {
    if (it->key().size() != kPinKeyBytes) continue;
    DiskPin& pin = all.emplace_back();
    const char* at = it->key().data() + 1;
    Take(&at, &pin.id);
    DecodePin(it->value(), &pin);
  }
  IBID_RETURN_IF_ERROR(FromRocks("read pins", it->status()));
  return all;
}

absl::Status DiskDirectory::Scan(
    const std::function<bool(const DiskRecord&)>& each,
    const std::function<void(uint32_t, const BlockKey&)>& malformed) const {
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  options.readahead_size = size_t{1} << 20;
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(options));
  for (it->Seek("b"); it->Valid() && it->key().starts_with("b"); it->Next()) {
    if (it->key().size() != kBlockKeyBytes) continue;
    DiskRecord record;
    record.ns = BigEndianAt(it->key().data() + 1);
    std::memcpy(record.key.digest.data(), it->key().data() + 5, sizeof(Digest));
    if (!DecodeBlock(it->value(), &record)) {
      malformed(record.ns, record.key);
    } else if (!each(record)) {
      return absl::OkStatus();
    }
  }
  return FromRocks("scan", it->status());
}

absl::Status DiskDirectory::Heal() {
  if (const rocksdb::Status status = db_->Resume(); !status.ok())
    return FromRocks("resume", status);
  rocksdb::WriteOptions synced;
  synced.sync = true;
  return FromRocks("probe", db_->Put(synced, kProbeKey, ""));
}

}  // namespace ibid
