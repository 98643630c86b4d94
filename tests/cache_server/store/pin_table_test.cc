#include "cache_server/pin_table.h"

#include <gtest/gtest.h>

namespace ibid {
namespace {

class PinTableTest : public ::testing::Test {
 protected:
  PinTableTest() {
    ns_->number = 7;
    ns_->slot_pages = 2;
    options_.host_bytes_max = uint64_t{1} << 30;
  }
  static std::vector<BlockKey> Keys(size_t count) {
    std::vector<BlockKey> keys(count);
    for (size_t i = 0; i < count; ++i) keys[i].digest[31] = static_cast<uint8_t>(i);
    return keys;
  }
  void DropRefs() {
    for (const EntryId id : std::exchange(unpinned_, {})) {
      IndexShard& shard = index_.ShardOf(id);
      MutexLock lock(shard.mutex);
      --shard.Get(id).refs;
      shard.FreeIfUnused(id);
    }
  }
  absl::Status Put(PinId id, size_t keys_count, KeepPriority priority) {
    return table_.Put(id, ns_, Keys(keys_count), priority, absl::InfiniteFuture(), &unpinned_);
  }

  BlockStoreOptions options_;
  BlockIndex index_;
  EvictionBook book_{"lru"};
  TenantTable tenants_{4};
  PinTable table_{options_, &index_, &book_, &tenants_};
  NamespacePtr ns_ = std::make_shared<NamespaceInfo>();
  std::vector<EntryId> unpinned_;
};

TEST_F(PinTableTest, EntriesOfBlocksThatNeverCameGoWithTheLastPin) {
  ASSERT_TRUE(Put({1}, 100, KeepPriority::kLow).ok());
  ASSERT_TRUE(Put({2}, 50, KeepPriority::kHigh).ok());
  EXPECT_EQ(index_.entries_count(), 100u);
  EXPECT_TRUE(table_.Remove({1}, &unpinned_));
  DropRefs();
  EXPECT_EQ(index_.entries_count(), 50u);
  EXPECT_TRUE(table_.Remove({2}, &unpinned_));
  DropRefs();
  EXPECT_EQ(index_.entries_count(), 0u);
  EXPECT_FALSE(table_.Remove({2}, &unpinned_));
}

TEST_F(PinTableTest, ABlockThatIsNamedTwiceIsOneBlock) {
  const std::vector<BlockKey> twice = {Keys(1)[0], Keys(1)[0]};
  ASSERT_TRUE(
      table_.Put({1}, ns_, twice, KeepPriority::kMustStay, absl::InfiniteFuture(), &unpinned_)
          .ok());
  EXPECT_EQ(index_.entries_count(), 1u);
  EXPECT_TRUE(table_.Remove({1}, &unpinned_));
  DropRefs();
  EXPECT_EQ(index_.entries_count(), 0u);
}

TEST_F(PinTableTest, APinFollowsItsKeyToTheEntryThatIsFound) {
  ASSERT_TRUE(Put({1}, 1, KeepPriority::kMustStay).ok());
  const BlockKey key = Keys(1)[0];
  IndexShard& shard = index_.ShardOf(key);
  {
    MutexLock lock(shard.mutex);
    const EntryId id = shard.Find(ns_->number, key);
    ++shard.Get(id).refs;  // what keeps it while it is found no more
    shard.Unmap(id);
  }
  const EntryId old = table_.Rebind(ns_->number, key);
  ASSERT_NE(old, kNoEntry);
  unpinned_ = {old};
  DropRefs();
  {
    MutexLock lock(shard.mutex);
    const EntryId found = shard.Find(ns_->number, key);
    ASSERT_NE(found, kNoEntry);
    EXPECT_NE(found, old);
    EXPECT_TRUE(shard.Get(found).Has(kPinned));
    EXPECT_FALSE(shard.Get(old).Has(kPinned));
  }
  // A second word of the same news changes nothing.
  unpinned_ = {table_.Rebind(ns_->number, key)};
  DropRefs();
  unpinned_ = {old};
  DropRefs();
  EXPECT_EQ(index_.entries_count(), 1u);
  EXPECT_TRUE(table_.Remove({1}, &unpinned_));
  DropRefs();
  EXPECT_EQ(index_.entries_count(), 0u);
}

}  // namespace
}  // namespace ibid
