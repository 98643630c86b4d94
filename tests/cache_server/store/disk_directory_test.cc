#include "cache_server/disk_directory.h"

#include <gtest/gtest.h>
#include <rocksdb/db.h>

#include "tests/cache_server/store/store_harness.h"

namespace ibid {
namespace {

DiskRecord RecordOf(uint32_t ns, const ChainLink& link) {
  DiskRecord record;
  record.ns = ns;
  record.key = link.key;
  record.parent = link.parent;
  record.extent = 5;
  record.extent_page = 17;
  record.payload_bytes = 4096;
  record.checksum = 0x1122334455667788;
  record.token_count = link.token_count;
  record.position = link.position;
  return record;
}

TEST(DiskDirectory, GivesBackEveryFieldOfARecordAfterItIsReopened) {
  TempDir temp;
  const NamespaceId ns = NamespaceOf("m");
  const ChainLink link = ChainOf(ns, 1, 3)[2];
  const DiskRecord record = RecordOf(7, link);
  std::string uuid;
  {
    auto directory = *DiskDirectory::Open(temp.path() + "/d", 1 << 20);
    uuid = directory->uuid();
    DiskDirectory::Change change;
    change.put_blocks.push_back(record);
    change.put_namespaces.push_back({7, ns, LayoutOfPages(1).ToString()});
    ASSERT_TRUE(directory->Apply(change, /*is_synced=*/true).ok());
  }
  auto directory = *DiskDirectory::Open(temp.path() + "/d", 1 << 21);
  EXPECT_EQ(directory->uuid(), uuid);
  EXPECT_EQ(directory->extent_bytes(), uint64_t{1} << 20)
      << "the directory's own, not today's option";
  const auto found = directory->Lookup(7, link.key);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->parent, record.parent);
  EXPECT_EQ(found->extent, record.extent);
  EXPECT_EQ(found->extent_page, record.extent_page);
  EXPECT_EQ(found->payload_bytes, record.payload_bytes);
  EXPECT_EQ(found->checksum, record.checksum);
  EXPECT_EQ(found->token_count, record.token_count);
  EXPECT_EQ(found->position, record.position);
  EXPECT_TRUE(absl::IsNotFound(directory->Lookup(8, link.key).status()));
  const auto namespaces = directory->Namespaces();
  ASSERT_EQ(namespaces->size(), 1u);
  EXPECT_EQ((*namespaces)[0].number, 7u);
  EXPECT_EQ((*namespaces)[0].id, ns);
  EXPECT_EQ((*namespaces)[0].layout, LayoutOfPages(1).ToString());
}

TEST(DiskDirectory, ANamespaceHasATenantANamelessOneOrNone) {
  TempDir temp;
  const std::string layout = LayoutOfPages(1).ToString();
  {
    auto directory = *DiskDirectory::Open(temp.path() + "/d", 1 << 20);
    DiskDirectory::Change change;
    change.put_namespaces.push_back({1, NamespaceOf("a"), layout, "batch"});
    change.put_namespaces.push_back({2, NamespaceOf("b"), layout, ""});
    change.put_namespaces.push_back({3, NamespaceOf("c"), layout, std::nullopt});
    ASSERT_TRUE(directory->Apply(change, /*is_synced=*/true).ok());
  }
  auto directory = *DiskDirectory::Open(temp.path() + "/d", 1 << 20);
  const auto namespaces = *directory->Namespaces();
  ASSERT_EQ(namespaces.size(), 3u);
  for (const DiskNamespace& each : namespaces) EXPECT_EQ(each.layout, layout);
  EXPECT_EQ(namespaces[0].tenant, "batch");
  EXPECT_EQ(namespaces[1].tenant, "");
  EXPECT_EQ(namespaces[2].tenant, std::nullopt);
}

// The record format is fixed: a change needs another version.
TEST(DiskDirectory, WritesTheDocumentedBytes) {
  TempDir temp;
  DiskRecord record;
  record.ns = 0x01020304;
  record.key.digest.fill(0xAA);
  record.parent.digest.fill(0xBB);
  record.extent = 1;
  record.extent_page = 2;
  record.payload_bytes = 3;
  record.checksum = 4;
  record.token_count = 5;
  record.position = 6;
  {
    auto directory = *DiskDirectory::Open(temp.path() + "/d", 4096);
    DiskDirectory::Change change;
    change.put_blocks.push_back(record);
    ASSERT_TRUE(directory->Apply(change, false).ok());
  }
  rocksdb::DB* raw = nullptr;
  ASSERT_TRUE(rocksdb::DB::Open({}, temp.path() + "/d", &raw).ok());
  const std::unique_ptr<rocksdb::DB> db(raw);
  std::string value;
  ASSERT_TRUE(db->Get({}, "m", &value).ok());
  EXPECT_EQ(value.substr(0, 12), "ibid.disk 1 ");
  EXPECT_EQ(value.size(), 12 + 32 + 5u) << value;
  ASSERT_TRUE(db->Get({}, std::string("b\x01\x02\x03\x04") + std::string(32, '\xAA'), &value).ok());
  EXPECT_EQ(value, std::string("\1\0\0\0\2\0\0\0\3\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0", 24) +
                       std::string(32, '\xBB') + std::string("\5\0\0\0\6\0\0\0", 8));
}

// failures 8
TEST(DiskDirectory, RefusesAnotherFormat) {
  TempDir temp;
  { auto directory = *DiskDirectory::Open(temp.path() + "/d", 4096); }
  {
    rocksdb::DB* raw = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open({}, temp.path() + "/d", &raw).ok());
    const std::unique_ptr<rocksdb::DB> db(raw);
    ASSERT_TRUE(db->Put({}, "m", "ibid.disk 2 00000000000000000000000000000000 4096").ok());
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(DiskDirectory::Open(temp.path() + "/d", 4096).status()));
}

TEST(DiskDirectory, RefusesExtentsThatCannotBe) {
  for (const char* bytes : {"0", "5000", "18446744073709547520", "many"}) {
    TempDir temp;
    { auto directory = *DiskDirectory::Open(temp.path() + "/d", 4096); }
    {
      rocksdb::DB* raw = nullptr;
      ASSERT_TRUE(rocksdb::DB::Open({}, temp.path() + "/d", &raw).ok());
      const std::unique_ptr<rocksdb::DB> db(raw);
      const std::string uuid(32, '0');
      ASSERT_TRUE(db->Put({}, "m", "ibid.disk 1 " + uuid + " " + bytes).ok());
    }
    const absl::Status status = DiskDirectory::Open(temp.path() + "/d", 4096).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << bytes << ": " << status;
    EXPECT_NE(status.message().find("--disk_dir"), std::string::npos) << status;
  }
}

TEST(DiskDirectory, TheNumberOfAMalformedNamespaceIsKnown) {
  TempDir temp;
  { auto directory = *DiskDirectory::Open(temp.path() + "/d", 4096); }
  {
    rocksdb::DB* raw = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open({}, temp.path() + "/d", &raw).ok());
    const std::unique_ptr<rocksdb::DB> db(raw);
    ASSERT_TRUE(db->Put({}, std::string("n\0\0\0\7", 5), "short").ok());
  }
  const auto stored = *(*DiskDirectory::Open(temp.path() + "/d", 4096))->Namespaces();
  ASSERT_EQ(stored.size(), 1u);
  EXPECT_EQ(stored[0].number, 7u);
  EXPECT_EQ(stored[0].layout, "");
}

TEST(DiskDirectory, ScansBlocksAndTellsMalformedRecords) {
  TempDir temp;
  const std::vector<ChainLink> chain = ChainOf(NamespaceOf("m"), 1, 10);
  {
    auto directory = *DiskDirectory::Open(temp.path() + "/d", 4096);
    DiskDirectory::Change change;
    for (const ChainLink& link : chain) change.put_blocks.push_back(RecordOf(1, link));
    ASSERT_TRUE(directory->Apply(change, false).ok());
    DiskDirectory::Change removal;
    removal.delete_blocks.push_back({1, chain[3].key});
    ASSERT_TRUE(directory->Apply(removal, false).ok());
  }
  {
    rocksdb::DB* raw = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open({}, temp.path() + "/d", &raw).ok());
    const std::unique_ptr<rocksdb::DB> db(raw);
    std::string key("b\0\0\0\1", 5);
    key += std::string(DigestBytes(chain[4].key.digest));
    ASSERT_TRUE(db->Put({}, key, "short").ok());
  }
  auto directory = *DiskDirectory::Open(temp.path() + "/d", 4096);
  int good = 0, bad = 0;
  ASSERT_TRUE(directory
                  ->Scan([&](const DiskRecord& record) { return ++good > 0 && record.extent == 5; },
                         [&](uint32_t ns, const BlockKey& key) {
                           ++bad;
                           EXPECT_EQ(key, chain[4].key);
                         })
                  .ok());
  EXPECT_EQ(good, 8);
  EXPECT_EQ(bad, 1);
  EXPECT_TRUE(absl::IsDataLoss(directory->Lookup(1, chain[4].key).status()));
}

}  // namespace
}  // namespace ibid
