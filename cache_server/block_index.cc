// Invariants:
// - id = local number * kShardsCount + shard number: ids are dense, so that policies keep their
//   state in plain arrays.
// - A mapped entry is in the table under its key's hash, once; for one (namespace, key) at most one
//   entry is mapped.
#include "cache_server/block_index.h"

#include <cstddef>
#include <cstring>
#include <new>
#include <random>

#include "core/check.h"

namespace ibid {
namespace {

uint64_t MulFold(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Seeded, because keys come from clients: none of them shall be able to fill one shard or bucket.
uint64_t HashOfKey(uint64_t seed, const BlockKey& key) {
  uint64_t words[4];
  std::memcpy(words, key.digest.data(), sizeof(words));
  return MulFold(words[0] ^ seed, words[1] ^ 0x9E3779B97F4A7C15u) ^
         MulFold(words[2] ^ ~seed, words[3] ^ 0xD1B54A32D192ED03u);
}
uint64_t WithNamespace(uint64_t key_hash, uint32_t ns) {
  return key_hash + ns * 0x9E3779B97F4A7C15u;
}
// By all bits, differently from the bucket and the tag.
uint32_t ShardOfHash(uint64_t key_hash) {
  return static_cast<uint32_t>((key_hash * 0xD6E8FEB86659FD93u) >> 32) % BlockIndex::kShardsCount;
}

uint64_t RandomSeed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

IndexEntry* IndexMemory::AddChunk() {
  MutexLock lock(mutex_);
  if (used_count_ == kPageCount) {
    pages_.push_back(MakeHugePage());
    used_count_ = 0;
  }
  IndexEntry* const entries = reinterpret_cast<IndexEntry*>(pages_.back().get()) + used_count_;
  for (uint32_t i = 0; i < kChunkCount; ++i) new (&entries[i]) IndexEntry();
  for (uint32_t i = 0; i < kChunkCount; ++i) new (&entries[i].details()) EntryDetails();
  used_count_ += kChunkCount;
  return entries;
}

uint64_t IndexShard::HashOf(uint32_t ns, const BlockKey& key) const {
  return WithNamespace(HashOfKey(seed_, key), ns);
}

EntryId IndexShard::IdAt(uint32_t place) const {
  return place * BlockIndex::kShardsCount + number_;
}

IndexEntry& IndexShard::Get(EntryId id) {
  IBID_CHECK(id % BlockIndex::kShardsCount == number_) << "entry " << id << " is of another shard";
  return EntryAt(id / BlockIndex::kShardsCount);
}

EntryId IndexShard::Find(uint64_t hash, uint32_t ns, const BlockKey& key) {
  const uint32_t number = table_.Find(hash, [&](uint32_t each) IBID_NO_THREAD_SAFETY_ANALYSIS {
    const IndexEntry& entry = EntryAt(each);
    return entry.ns == ns && entry.key == key;
  });
  return number == TagTable::kNone ? kNoEntry : IdAt(number);
}

void IndexShard::PrefetchEntry(uint64_t hash) {
  const uint32_t number = table_.FirstCandidate(hash);
  if (number != TagTable::kNone) __builtin_prefetch(&EntryAt(number));
}

void IndexShard::Prefetch(EntryId id) {
  IndexEntry& entry = Get(id);
  __builtin_prefetch(&entry, 1);
  __builtin_prefetch(&entry.details(), 1);
}

void IndexShard::Clear(IndexEntry& entry) {
  entry = IndexEntry{};
  entry.details() = EntryDetails{};
}

EntryId IndexShard::Insert(uint32_t ns, const BlockKey& key) {
  EntryId id = free_;
  if (id != kNoEntry) {
    free_ = Get(id).parent;
  } else {
    IBID_CHECK(used_count_ <= TagTable::kNumberMax) << "the index is full";
    if (used_count_ % IndexMemory::kChunkCount == 0) chunks_.push_back(memory_->AddChunk());
    id = IdAt(used_count_++);
  }
  IndexEntry& entry = Get(id);
  Clear(entry);
  entry.key = key;
  entry.ns = ns;
  entry.flags = kMapped;
  table_.Insert(
      HashOf(ns, key), id / BlockIndex::kShardsCount,
      [this](uint32_t each)
          IBID_NO_THREAD_SAFETY_ANALYSIS { return HashOf(EntryAt(each).ns, EntryAt(each).key); },
      [this](uint32_t each) IBID_NO_THREAD_SAFETY_ANALYSIS { __builtin_prefetch(&EntryAt(each)); });
  ++mapped_of_[ns];
  ++entries_count_;
  return id;
}

void IndexShard::Unmap(EntryId id) {
  IndexEntry& entry = Get(id);
  IBID_CHECK(entry.Has(kMapped));
  table_.Erase(HashOf(entry.ns, entry.key), id / BlockIndex::kShardsCount);
  entry.Clear(kMapped);
  const auto of_namespace = mapped_of_.find(entry.ns);
  if (--of_namespace->second == 0) mapped_of_.erase(of_namespace);
}

void IndexShard::AddNamespacesTo(absl::flat_hash_set<uint32_t>* namespaces) {
  for (const auto& [ns, count] : mapped_of_) namespaces->insert(ns);
}

EntryId IndexShard::FreeIfUnused(EntryId id) {
  IndexEntry& entry = Get(id);
  if (entry.refs > 0 || entry.is_in_use() || entry.host_page != kNoPage ||
      entry.disk_page != kNoPage || entry.gpu_page != kNoPage || entry.Has(kFilling) ||
      entry.Has(kHasWriter)) {
    return kNoEntry;
  }
  if (entry.Has(kMapped)) Unmap(id);
  const EntryId parent = entry.parent;
  Clear(entry);
  entry.parent = free_;
  free_ = id;
  --entries_count_;
  return parent;
}

bool IndexShard::Collect(uint32_t* place, uint32_t count, std::vector<EntryId>* ids) {
  return VisitPlaces(place, count, [ids](EntryId id, const IndexEntry& entry) {
    if (entry.Has(kMapped)) ids->push_back(id);
  });
}

BlockIndex::BlockIndex() : seed_(RandomSeed()) {
  for (uint32_t i = 0; i < kShardsCount; ++i) {
    shards_[i].number_ = i;
    shards_[i].seed_ = seed_;
    shards_[i].memory_ = &memory_;
    shards_[i].table_.TakeMemoryFrom(&pieces_);
  }
}

uint32_t BlockIndex::ShardNumberOf(const BlockKey& key) const {
  return ShardOfHash(HashOfKey(seed_, key));
}

BlockIndex::Place BlockIndex::PlaceOf(uint32_t ns, const BlockKey& key) const {
  const uint64_t hash = HashOfKey(seed_, key);
  return {ShardOfHash(hash), WithNamespace(hash, ns)};
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
