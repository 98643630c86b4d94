// The table of all blocks that the store knows: where the copies of each are, who holds it, what it
// follows.
//
// An entry's life, under its shard's lock:
//
//                  Offer/Reserve              Commit
//     (no entry) ----------------> filling ------------> resident: host, disk and/or gpu_page
//         ^   ^                       |                    |   ^  |
//         |   |     abort, expiry,    |        evict one   |   |  | write to disk, read back, move
//         |   |     session's end     v        copy        v   |  | (busy > 0 while bytes move)
//         |   +-------------------- absent <---------------+   |  |
//         |  nothing refers to it     |   last copy evicted    +--+
//         |                           |
//         |                           +-- stays as long as children, leases or waiters name it
//         (refs > 0)
//         |
//         +---- doomed <--- Drop, corrupt, session's end, while held, busy or being written:
//         invisible; another entry
//                           of the same key may be made; freed when the last of these ends
//
// Thread safety: each shard has a lock; its methods require it. One shard at a time. There are so
// few that a match of a thousand keys takes each lock for some of them, not for one or two.
// Memory: 80 bytes an entry, 5 to 10 of the table (tag_table.h). What a lookup reads of an entry is
// one cache line.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "cache_server/extent_allocator.h"
#include "cache_server/tag_table.h"
#include "core/block_key.h"
#include "core/eviction/block_lists.h"
#include "core/huge_page.h"
#include "core/mutex.h"

namespace ibid {

enum EntryFlag : uint16_t {
  kMapped = 1 << 0,     // found by its key
  kDoomed = 1 << 1,     // left the table while something still used it
  kFilling = 1 << 2,    // offered or reserved; `checksum` is the session's id
  kHasWriter = 1 << 3,  // a Reservation of it is alive, or being made
  kPositionKnown = 1 << 4,
  kParkedHost = 1 << 5,  // taken as victim while in use: put back when that ends
  kParkedDisk = 1 << 6,
  kReadFromDisk = 1 << 7,    // was read from disk without being promoted
  kWriting = 1 << 8,         // the disk writer has it in its batch
  kDiskUnsettled = 1 << 9,   // its disk copy is on its way into the index or out of it
  kHostInTransit = 1 << 10,  // its host copy was taken out, and the host policy may still know it;
                             // or one is on its way in
  kParkedGpu = 1 << 11,
  kHasWaiters = 1 << 12,    // is filling, and MatchWaits may have a match that waits for it
  kPinned = 1 << 13,        // a pin names the block; PinTable's, with one of its refs
  kWriteQueued = 1 << 14,   // the disk writer will come to it
  kGpuUnsettled = 1 << 15,  // its gpu copy is on its way into the index or out of it
};

// What only those read of an entry who go on with it.
struct EntryDetails {
  uint64_t checksum = 0;
  uint32_t token_count = 0;
  uint32_t position = 0;
};

// Lies in an IndexMemory, nowhere else.
struct alignas(64) IndexEntry {
  BlockKey key;
  uint32_t ns = 0;            // NamespaceInfo::number
  EntryId parent = kNoEntry;  // of a free entry: the next free one
  uint32_t host_page = kNoPage;
  uint32_t disk_page = kNoPage;
  uint32_t gpu_page = kNoPage;
  uint32_t holds = 0;  // leases and BlockRefs: the copies stay and do not move
  uint32_t refs = 0;   // what names the entry by id: children, leases, queued work
  uint16_t busy = 0;   // the store itself moves bytes of a copy
  uint16_t flags = 0;

  EntryDetails& details();
  const EntryDetails& details() const { return const_cast<IndexEntry*>(this)->details(); }

  bool Has(EntryFlag flag) const { return (flags & flag) != 0; }
  void Set(EntryFlag flag) { flags |= flag; }
  void Clear(EntryFlag flag) { flags &= static_cast<uint16_t>(~flag); }
  bool is_filling() const { return Has(kFilling); }
  bool is_in_host() const { return host_page != kNoPage && !is_filling(); }
  bool is_on_disk() const { return disk_page != kNoPage; }
  bool is_in_gpu() const { return gpu_page != kNoPage; }
  bool is_resident() const { return is_in_host() || is_on_disk() || is_in_gpu(); }
  bool is_in_use() const { return holds > 0 || busy > 0; }
};
static_assert(sizeof(IndexEntry) == 64);

// The memory of all entries. A page has the entries first and then, in the same order, the details
// of each: where they lie follows from where the entry lies.
//
// Thread safety: every method; its lock is taken with a shard's held, and nothing under it.
class IndexMemory {
 public:
  static constexpr uint32_t kChunkCount = 64;
  // kChunkCount new entries. They live as long as this.
  IndexEntry* AddChunk();

 private:
  friend struct IndexEntry;
  static constexpr size_t kPageCount =
      kHugePageBytes / (sizeof(IndexEntry) + sizeof(EntryDetails)) / kChunkCount * kChunkCount;

  Mutex mutex_;
  std::vector<HugePage> pages_ IBID_GUARDED_BY(mutex_);
  size_t used_count_ IBID_GUARDED_BY(mutex_) = kPageCount;  // entries of the last page
};

inline EntryDetails& IndexEntry::details() {
  const uintptr_t address = reinterpret_cast<uintptr_t>(this);
  const uintptr_t page = address & ~(kHugePageBytes - 1);
  const size_t place = (address - page) / sizeof(IndexEntry);
  return reinterpret_cast<EntryDetails*>(page +
                                         IndexMemory::kPageCount * sizeof(IndexEntry))[place];
}

class IndexShard {
 public:
  Mutex mutex;
  CondVar settled;  // an entry of the shard stopped being indexed

  // Of a key in a namespace: what the methods below go by. The same in all shards of an index.
  uint64_t HashOf(uint32_t ns, const BlockKey& key) const;

  // The visible entry of the key, or kNoEntry.
  EntryId Find(uint32_t ns, const BlockKey& key) IBID_REQUIRES(mutex) {
    return Find(HashOf(ns, key), ns, key);
  }
  EntryId Find(uint64_t hash, uint32_t ns, const BlockKey& key) IBID_REQUIRES(mutex);
  // Hints that a Find of the key comes soon: its place in the table, then, once that has had time
  // to come, its entry. Many of each first, and the waits for memory overlap: a key then costs a
  // fifth of what it costs alone.
  void PrefetchPlace(uint64_t hash) const { table_.Prefetch(hash); }  // without the lock
  void PrefetchEntry(uint64_t hash) IBID_REQUIRES(mutex);
  // Of an entry that will be changed.
  void Prefetch(EntryId id) IBID_REQUIRES(mutex);
  // The entry may be free by now: compare what you know of it. REQUIRES: `id` was given by this
  // shard.
  IndexEntry& Get(EntryId id) IBID_REQUIRES(mutex);
  // REQUIRES: Find gives kNoEntry. References to other entries stay valid.
  EntryId Insert(uint32_t ns, const BlockKey& key) IBID_REQUIRES(mutex);
  // Makes the entry invisible. REQUIRES: mapped.
  void Unmap(EntryId id) IBID_REQUIRES(mutex);
  // Frees the entry if nothing names or uses it, and returns its parent, which has one reference
  // less to count: kNoEntry when there is none or the entry stays.
  EntryId FreeIfUnused(EntryId id) IBID_REQUIRES(mutex);

  // Calls `visit(id, entry)` for each mapped or doomed entry in the next `count` places, from
  // *place on, and moves it; false at the end. O(count). A place keeps its entry: what was there
  // before the first call and still is was visited once; entries that come meanwhile may be missed.
  template <typename Visit>
  bool VisitPlaces(uint32_t* place, uint32_t count, const Visit& visit) IBID_REQUIRES(mutex);
  // The same, of the ids of the mapped ones.
  bool Collect(uint32_t* place, uint32_t count, std::vector<EntryId>* ids) IBID_REQUIRES(mutex);
  size_t entries_count() const IBID_REQUIRES(mutex) { return entries_count_; }
  // Adds the namespaces that have mapped entries here. O(namespaces).
  void AddNamespacesTo(absl::flat_hash_set<uint32_t>* namespaces) IBID_REQUIRES(mutex);

 private:
  friend class BlockIndex;
  EntryId IdAt(uint32_t place) const;
  IndexEntry& EntryAt(uint32_t place) const IBID_REQUIRES(mutex) {
    return chunks_[place / IndexMemory::kChunkCount][place % IndexMemory::kChunkCount];
  }
  void Clear(IndexEntry& entry);

  uint32_t number_ = 0;
  uint64_t seed_ = 0;
  IndexMemory* memory_ = nullptr;
  std::vector<IndexEntry*> chunks_ IBID_GUARDED_BY(mutex);
  TagTable table_;  // of local numbers; guarded by mutex, but for Prefetch
  EntryId free_ IBID_GUARDED_BY(mutex) = kNoEntry;
  uint32_t used_count_ IBID_GUARDED_BY(mutex) = 0;  // entries ever given out
  absl::flat_hash_map<uint32_t, uint32_t> mapped_of_ IBID_GUARDED_BY(mutex);  // by namespace
  size_t entries_count_ IBID_GUARDED_BY(mutex) = 0;
};

template <typename Visit>
bool IndexShard::VisitPlaces(uint32_t* place, uint32_t count, const Visit& visit) {
  const uint32_t end = std::min(used_count_, *place + count);
  for (; *place < end; ++*place) {
    IndexEntry& entry = EntryAt(*place);
    if (entry.Has(kMapped) || entry.Has(kDoomed)) visit(IdAt(*place), entry);
  }
  return *place < used_count_;
}

class BlockIndex {
 public:
  static constexpr uint32_t kShardsCount = 32;

  BlockIndex();

  uint32_t ShardNumberOf(const BlockKey& key) const;
  IndexShard& ShardOf(const BlockKey& key) { return shards_[ShardNumberOf(key)]; }
  IndexShard& ShardOf(EntryId id) { return shards_[id % kShardsCount]; }
  IndexShard& shard(uint32_t number) { return shards_[number]; }
  // Where a key of a namespace is looked up: the number of its shard, and HashOf.
  struct Place {
    uint32_t shard;
    uint64_t hash;
  };
  Place PlaceOf(uint32_t ns, const BlockKey& key) const;
  void PrefetchPlace(uint32_t ns, const BlockKey& key) const {
    const Place place = PlaceOf(ns, key);
    shards_[place.shard].PrefetchPlace(place.hash);
  }

  size_t entries_count();

 private:
  const uint64_t seed_;
  IndexMemory memory_;
  HugePagePieces pieces_;
  std::array<IndexShard, kShardsCount> shards_;
};

}  // namespace ibid
