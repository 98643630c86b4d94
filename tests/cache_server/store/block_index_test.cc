#include "cache_server/block_index.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cache_server/eviction_book.h"
#include "cache_server/extent_allocator.h"
#include "cache_server/tag_table.h"

namespace ibid {
namespace {

BlockKey KeyOf(uint64_t n) {
  BlockKey key;
  std::memcpy(key.digest.data() + 8, &n, sizeof(n));
  return key;
}

TEST(BlockIndex, FindsAnEntryByNamespaceAndKeyAndOnlyThat) {
  BlockIndex index;
  IndexShard& shard = index.ShardOf(KeyOf(1));
  MutexLock lock(shard.mutex);
  const EntryId id = shard.Insert(3, KeyOf(1));
  EXPECT_EQ(shard.Find(3, KeyOf(1)), id);
  EXPECT_EQ(shard.Find(4, KeyOf(1)), kNoEntry) << "failures 1: another namespace";
  EXPECT_EQ(shard.Find(3, KeyOf(2)), kNoEntry);
}

TEST(BlockIndex, KeepsAllEntriesWhileItGrowsAndReusesFreedOnes) {
  BlockIndex index;
  IndexShard& shard = index.shard(0);
  MutexLock lock(shard.mutex);
  std::vector<EntryId> ids;
  for (uint64_t n = 0; n < 10'000; ++n) ids.push_back(shard.Insert(1, KeyOf(n)));
  for (uint64_t n = 0; n < 10'000; ++n) ASSERT_EQ(shard.Find(1, KeyOf(n)), ids[n]);
  EXPECT_EQ(std::set<EntryId>(ids.begin(), ids.end()).size(), ids.size());
  for (uint64_t n = 0; n < 10'000; n += 2) EXPECT_EQ(shard.FreeIfUnused(ids[n]), kNoEntry);
  EXPECT_EQ(shard.entries_count(), 5'000u);
  for (uint64_t n = 0; n < 10'000; ++n)
    ASSERT_EQ(shard.Find(1, KeyOf(n)), n % 2 == 0 ? kNoEntry : ids[n]);
  const EntryId again = shard.Insert(1, KeyOf(77'777));
  EXPECT_LE(again, ids.back()) << "a freed place is used first";
}

TEST(BlockIndex, AnEntryIsFreedOnlyWhenNothingNamesIt) {
  BlockIndex index;
  IndexShard& shard = index.shard(0);
  MutexLock lock(shard.mutex);
  const EntryId id = shard.Insert(1, KeyOf(1));
  IndexEntry& entry = shard.Get(id);
  entry.parent = 128;
  entry.refs = 1;
  shard.FreeIfUnused(id);
  EXPECT_EQ(shard.Find(1, KeyOf(1)), id);
  entry.refs = 0;
  entry.Set(kHasWriter);
  shard.FreeIfUnused(id);
  EXPECT_EQ(shard.Find(1, KeyOf(1)), id);
  entry.Clear(kHasWriter);
  EXPECT_EQ(shard.FreeIfUnused(id), 128u) << "the parent has one reference less";
  EXPECT_EQ(shard.Find(1, KeyOf(1)), kNoEntry);
}

TEST(BlockIndex, AnUnmappedEntryMakesRoomForAnotherOfTheSameKey) {
  BlockIndex index;
  IndexShard& shard = index.shard(0);
  MutexLock lock(shard.mutex);
  const EntryId doomed = shard.Insert(1, KeyOf(1));
  shard.Unmap(doomed);
  const EntryId next = shard.Insert(1, KeyOf(1));
  EXPECT_NE(next, doomed);
  EXPECT_EQ(shard.Find(1, KeyOf(1)), next);
}

TEST(BlockIndex, CollectsEveryEntryInPieces) {
  BlockIndex index;
  IndexShard& shard = index.shard(0);
  MutexLock lock(shard.mutex);
  for (uint64_t n = 0; n < 1'000; ++n) shard.Insert(1, KeyOf(n));
  std::vector<EntryId> ids;
  uint32_t cursor = 0;
  int pieces = 1;
  while (shard.Collect(&cursor, 64, &ids)) ++pieces;
  EXPECT_EQ(std::set<EntryId>(ids.begin(), ids.end()).size(), 1'000u);
  EXPECT_EQ(ids.size(), 1'000u);
  EXPECT_GT(pieces, 10);
}

// A namespace is dropped in pieces, between which others publish.
TEST(BlockIndex, CollectsWhatWasThereThoughTheTableGrowsBetweenPieces) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    BlockIndex index;
    IndexShard& shard = index.shard(0);
    MutexLock lock(shard.mutex);
    const uint64_t first = seed * 1'000'000;
    std::set<EntryId> wanted;
    for (uint64_t n = first; n < first + 415; ++n) wanted.insert(shard.Insert(1, KeyOf(n)));
    std::set<EntryId> collected;
    uint32_t cursor = 0;
    uint64_t next = first + 500'000;
    for (bool has_more = true; has_more;) {
      std::vector<EntryId> ids;
      has_more = shard.Collect(&cursor, 16, &ids);
      collected.insert(ids.begin(), ids.end());
      if (next < first + 500'010) shard.Insert(1, KeyOf(next++));
    }
    for (const EntryId id : wanted) EXPECT_TRUE(collected.contains(id)) << seed << " " << id;
  }
}

TEST(BlockIndex, KeysThatDifferInAFewBytesAreSpreadOverTheShards) {
  const BlockIndex index;
  for (size_t at = 0; at < sizeof(BlockKey); at += 8) {
    std::set<uint32_t> shards;
    for (uint16_t n = 0; n < 1'000; ++n) {
      BlockKey key;
      std::memcpy(key.digest.data() + at, &n, sizeof(n));
      shards.insert(index.ShardNumberOf(key));
    }
    EXPECT_GT(shards.size(), BlockIndex::kShardsCount / 2) << at;
  }
}

// Keys that come and go leave every bucket of a small table passed at some time: a search for a key
// that is not there ends all the same.
TEST(TagTable, FindsExactlyWhatIsThereAfterAnyComingAndGoingInAFewBuckets) {
  std::mt19937_64 random(5);
  TagTable table;
  std::map<uint32_t, uint64_t> hashes;  // of the numbers that are in the table
  const auto hash_of = [&](uint32_t number) { return hashes.at(number); };
  for (int step = 0; step < 200'000; ++step) {
    const uint32_t number = static_cast<uint32_t>(random() % 64);
    const auto it = hashes.find(number);
    if (it != hashes.end()) {
      table.Erase(it->second, number);
      hashes.erase(it);
    } else if (hashes.size() < 26) {
      const uint64_t hash = random();
      table.Insert(hash, number, hash_of, [](uint32_t) {});
      hashes[number] = hash;
    }
    const uint64_t other = random();
    ASSERT_EQ(table.Find(other, [](uint32_t) { return false; }), TagTable::kNone);
    for (const auto& [each, hash] : hashes) {
      ASSERT_EQ(table.Find(hash, [each = each](uint32_t n) { return n == each; }), each);
    }
  }
  EXPECT_EQ(table.buckets_count(), 2u);
}

// failures 31: what a block in both tiers takes of the server's own memory: its entry, its places
// in both policies, its slots in both tiers. (The disk directory's caches are bounded, whatever it
// holds.)
TEST(BlockIndex, ABlockTakesAtMost160BytesOfMemory) {
  constexpr size_t kBlocks = 300'000;
  constexpr uint64_t kTierBytes = uint64_t{kBlocks} * 4096 * 16;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer takes memory of its own";
#endif
  const auto in_use = [] {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
      size_t kilobytes = 0;
      if (word == "RssAnon:" && status >> kilobytes) return kilobytes << 10;
    }
    return size_t{0};
  };
  const size_t before = in_use();
  auto index = std::make_unique<BlockIndex>();
  EvictionBook book("hazard");
  ExtentAllocator host(kTierBytes, uint64_t{64} << 20);
  ExtentAllocator disk(kTierBytes, uint64_t{64} << 20);
  std::mt19937_64 random(1);
  EntryId parent = kNoEntry;
  for (size_t i = 0; i < kBlocks; ++i) {
    BlockKey key;
    for (size_t at = 0; at < 32; at += 8) {
      const uint64_t word = random();
      std::memcpy(key.digest.data() + at, &word, sizeof(word));
    }
    IndexShard& shard = index->ShardOf(key);
    EntryId id;
    {
      MutexLock lock(shard.mutex);
      id = shard.Insert(1, key);
    }
    ASSERT_TRUE(host.Allocate(16, id).has_value());
    ASSERT_TRUE(disk.Allocate(16, id).has_value());
    for (const TierName tier : {TierName::kHost, TierName::kDisk}) {
      book.Insert(tier, id, parent, 16, /*owner=*/1);
      book.Admit(tier, id, {book.FingerprintOf(key), parent, static_cast<uint32_t>(i), 16, false});
    }
    parent = id;
  }
  const size_t after = in_use();
  ASSERT_GT(after, before);
  EXPECT_LE((after - before) / kBlocks, 160u);
  RecordProperty("bytes_per_block", static_cast<int>((after - before) / kBlocks));
}

}  // namespace
}  // namespace ibid
