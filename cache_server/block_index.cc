// Invariants:
// - id = local index * kShardsCount + shard number: ids are dense, so that policies keep their
// state in plain arrays.
// - A mapped entry is in the chain of its key's bucket, once; for one (namespace, key) at most one
// entry is mapped.
// - buckets_ has a power of two of chains, at least as many as entries mapped.
#include "cache_server/block_index.h"

#include <cstring>
#include <random>

#include "core/check.h"

namespace ibid {
namespace {

constexpr size_t kBucketsMin = 64;

uint64_t MulFold(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Seeded, because keys come from clients: none of them shall be able to fill one bucket.
uint64_t HashOf(uint64_t seed, uint32_t ns, const BlockKey& key) {
  uint64_t words[4];
  std::memcpy(words, key.digest.data(), sizeof(words));
  return MulFold(words[0] ^ seed, words[1] ^ 0x9E3779B97F4A7C15u) ^
         MulFold(words[2] ^ ~seed, words[3] ^ (0xD1B54A32D192ED03u + ns));
}

uint64_t RandomSeed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

uint32_t& IndexShard::BucketOf(uint32_t ns, const BlockKey& key) {
  return buckets_[HashOf(seed_, ns, key) & (buckets_.size() - 1)];
}

EntryId IndexShard::IdAt(uint32_t place) const {
  return place * BlockIndex::kShardsCount + number_;
}

IndexEntry& IndexShard::Get(EntryId id) {
  IBID_CHECK(id % BlockIndex::kShardsCount == number_) << "entry " << id << " is of another shard";
  return entries_[id / BlockIndex::kShardsCount];
}

EntryId IndexShard::Find(uint32_t ns, const BlockKey& key) {
  if (buckets_.empty()) return kNoEntry;
  for (EntryId id = BucketOf(ns, key); id != kNoEntry; id = Get(id).next) {
    const IndexEntry& entry = Get(id);
    if (entry.ns == ns && entry.key == key) return id;
  }
  return kNoEntry;
}

void IndexShard::Grow() {
  std::vector<EntryId> old = std::move(buckets_);
  buckets_.assign(old.empty() ? kBucketsMin : old.size() * 2, kNoEntry);
  for (EntryId head : old) {
    for (EntryId id = head; id != kNoEntry;) {
      IndexEntry& entry = Get(id);
      const EntryId next = entry.next;
      EntryId& bucket = BucketOf(entry.ns, entry.key);
      entry.next = bucket;
      bucket = id;
      id = next;
    }
  }
}

EntryId IndexShard::Insert(uint32_t ns, const BlockKey& key) {
  if (mapped_count_ >= buckets_.size()) Grow();
  EntryId id = free_;
  if (id != kNoEntry) {
    free_ = Get(id).next;
  } else {
    id = IdAt(used_count_++);
    IBID_CHECK(id < kNoEntry) << "the index is full";
    entries_.EnsureSize(used_count_);
  }
  IndexEntry& entry = Get(id);
  entry = IndexEntry{};
  entry.key = key;
  entry.ns = ns;
  entry.flags = kMapped;
  EntryId& bucket = BucketOf(ns, key);
  entry.next = bucket;
  bucket = id;
  ++mapped_count_;
  ++mapped_of_[ns];
  ++entries_count_;
  return id;
}

void IndexShard::Unmap(EntryId id) {
  IndexEntry& entry = Get(id);
  IBID_CHECK(entry.Has(kMapped));
  EntryId* link = &BucketOf(entry.ns, entry.key);
  while (*link != id) link = &Get(*link).next;
  *link = entry.next;
  entry.next = kNoEntry;
  entry.Clear(kMapped);
  --mapped_count_;
  const auto of_namespace = mapped_of_.find(entry.ns);
  if (--of_namespace->second == 0) mapped_of_.erase(of_namespace);
}

void IndexShard::AddNamespacesTo(absl::flat_hash_set<uint32_t>* namespaces) {
  for (const auto& [ns, count] : mapped_of_) namespaces->insert(ns);
}

EntryId IndexShard::FreeIfUnused(EntryId id) {
  IndexEntry& entry = Get(id);
  if (entry.refs > 0 || entry.is_in_use() || entry.host_page != kNoPage ||
      entry.disk_page != kNoPage || entry.Has(kFilling) || entry.Has(kHasWriter)) {
    return kNoEntry;
  }
  if (entry.Has(kMapped)) Unmap(id);
  const EntryId parent = entry.parent;
  entry = IndexEntry{};
  entry.next = free_;
  free_ = id;
  --entries_count_;
  return parent;
}

bool IndexShard::Collect(size_t* cursor, size_t count, std::vector<EntryId>* ids) {
  for (size_t begin = ids->size(); *cursor < buckets_.size(); ++*cursor) {
    if (ids->size() - begin >= count) return true;
    for (EntryId id = buckets_[*cursor]; id != kNoEntry; id = Get(id).next) ids->push_back(id);
  }
  return false;
}

BlockIndex::BlockIndex() {
  const uint64_t seed = RandomSeed();
  for (uint32_t i = 0; i < kShardsCount; ++i) {
    shards_[i].number_ = i;
    shards_[i].seed_ = seed;
  }
}

size_t BlockIndex::entries_count() {
  size_t count = 0;
  for (IndexShard& shard : shards_) {
    MutexLock lock(shard.mutex);
    count += shard.entries_count();
  }
  return count;
}

}  // namespace ibid
