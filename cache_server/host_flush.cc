#include "cache_server/host_flush.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"

namespace ibid {
namespace {

constexpr size_t kPieceBlocks = 256;
// How soon a flush that waits for the disk learns that it is stopped.
constexpr absl::Duration kWaitSlice = absl::Milliseconds(100);

}  // namespace

KeepResult HostFlush::Run(absl::Duration timeout, const std::function<bool()>& is_stopped) {
  const absl::Time until = clock_.Now() + timeout;
  std::vector<Block> blocks = HostOnlyBlocks();
  if (parts_.disk != nullptr) {
    std::stable_sort(blocks.begin(), blocks.end(),
                     [](const Block& a, const Block& b) { return a.position < b.position; });
    // More than the tier can hold would wash out what was written first.
    uint64_t room = parts_.disk->usage().total_bytes;
    absl::flat_hash_map<OwnerId, uint64_t> room_of;  // the same by quotas
    for (const Block& block : blocks) {
      const NamespacePtr ns = parts_.namespaces.Find(block.ns);
      if (ns == nullptr) continue;
      const uint64_t bytes = uint64_t{ns->slot_pages} * kPageBytes;
      if (bytes > room) break;
      const auto [own, is_new] = room_of.try_emplace(ns->owner(), 0);
      uint64_t& own_room = own->second;
      if (is_new) own_room = parts_.tenants.QuotaOf(ns->owner()).disk_bytes_max;
      if (bytes > own_room) continue;
      if (!Queue(block, until, is_stopped)) break;
      room -= bytes;
      own_room -= bytes;
    }
    (void)WaitUntilIdle(until, is_stopped);
  }
  KeepResult result;
  for (const Block& block : blocks) {
    result.written_blocks += IsOnDisk(block.id) ? 1 : 0;
    result.remaining_blocks += IsHostOnly(block.id) ? 1 : 0;
    residency_.DropRef(block.id);
  }
  return result;
}

std::vector<HostFlush::Block> HostFlush::HostOnlyBlocks() {
  std::vector<Block> blocks;
  for (uint32_t number = 0; number < BlockIndex::kShardsCount; ++number) {
    IndexShard& shard = parts_.index.shard(number);
    size_t cursor = 0;
    bool has_more = true;
    while (has_more) {
      std::vector<EntryId> ids;
      MutexLock lock(shard.mutex);
      has_more = shard.Collect(&cursor, kPieceBlocks, &ids);
      for (const EntryId id : ids) {
        IndexEntry& entry = shard.Get(id);
        if (!entry.is_in_host() || entry.is_on_disk()) continue;
        ++entry.refs;
        blocks.push_back({id, entry.details().position, entry.ns});
      }
    }
  }
  return blocks;
}

bool HostFlush::IsOnDisk(EntryId id) {
  IndexShard& shard = parts_.index.ShardOf(id);
  MutexLock lock(shard.mutex);
  return shard.Get(id).Has(kMapped) && shard.Get(id).is_on_disk();
}

bool HostFlush::IsHostOnly(EntryId id) {
  IndexShard& shard = parts_.index.ShardOf(id);
  MutexLock lock(shard.mutex);
  const IndexEntry& entry = shard.Get(id);
  return entry.Has(kMapped) && entry.is_in_host() && !entry.is_on_disk();
}

// False when there is no time left, or nothing is written any more.
bool HostFlush::Queue(const Block& block, absl::Time until,
                      const std::function<bool()>& is_stopped) {
  {
    IndexShard& shard = parts_.index.ShardOf(block.id);
    MutexLock lock(shard.mutex);
    ++shard.Get(block.id).refs;  // the disk writer's
  }
  DiskWrite write{block.id, parts_.namespaces.Find(block.ns), /*evict_after=*/false, nullptr};
  bool is_queued = write.ns != nullptr && parts_.disk_queue.PushWrite(std::move(write));
  while (write.ns != nullptr && !is_queued && !parts_.disk_queue.is_closed() &&
         WaitUntilIdle(until, is_stopped)) {
    is_queued = parts_.disk_queue.PushWrite(std::move(write));
  }
  if (!is_queued) residency_.DropRef(block.id);
  return is_queued;
}

bool HostFlush::WaitUntilIdle(absl::Time until, const std::function<bool()>& is_stopped) {
  while (true) {
    if (is_stopped && is_stopped()) return false;
    const absl::Duration left = until - clock_.Now();
    if (parts_.disk_queue.WaitUntilIdle(std::clamp(left, absl::ZeroDuration(), kWaitSlice))) {
      return true;
    }
    if (left <= absl::ZeroDuration()) return false;
  }
}

}  // namespace ibid
