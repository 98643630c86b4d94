#include "cache_server/memory_flush.h"

#include <algorithm>

namespace ibid {
namespace {

constexpr size_t kPieceBlocks = 256;
// How soon a flush that waits for the disk learns that it is stopped.
constexpr absl::Duration kWaitSlice = absl::Milliseconds(100);

}  // namespace

KeepResult MemoryFlush::Run(absl::Duration timeout, const std::function<bool()>& is_stopped) {
  const absl::Time until = clock_.Now() + timeout;
  KeepResult result;
  Rooms rooms;
  if (parts_.disk != nullptr) rooms.bytes = parts_.disk->usage().total_bytes;
  // The host tier first: what it has written can make room for copies of the gpu tier's.
  for (const bool from_gpu : {false, true}) {
    if (from_gpu && parts_.gpu == nullptr) break;
    const std::vector<Block> blocks = BlocksThat(from_gpu ? IsInGpuOnly : IsInHostOnly);
    if (parts_.disk != nullptr) {
      Write(blocks, from_gpu, until, is_stopped, &rooms);
      (void)WaitUntilIdle(until, is_stopped);
    }
    Count(blocks, from_gpu, &result);
  }
  return result;
}

bool MemoryFlush::IsInHostOnly(const IndexEntry& entry) {
  return entry.Has(kMapped) && entry.is_in_host() && !entry.is_on_disk();
}

bool MemoryFlush::IsInGpuOnly(const IndexEntry& entry) {
  return entry.Has(kMapped) && entry.is_in_gpu() && !entry.is_in_host() && !entry.is_on_disk();
}

std::vector<MemoryFlush::Block> MemoryFlush::BlocksThat(Wanted wanted) {
  std::vector<Block> blocks;
  for (uint32_t number = 0; number < BlockIndex::kShardsCount; ++number) {
    IndexShard& shard = parts_.index.shard(number);
    uint32_t cursor = 0;
    bool has_more = true;
    while (has_more) {
      std::vector<EntryId> ids;
      MutexLock lock(shard.mutex);
      has_more = shard.Collect(&cursor, kPieceBlocks, &ids);
      for (const EntryId id : ids) {
        IndexEntry& entry = shard.Get(id);
        if (!wanted(entry)) continue;
        ++entry.refs;
        // Of the pinned ones it is asked below, without the shard's lock.
        const auto priority = entry.Has(kPinned) ? KeepPriority::kLow : KeepPriority::kNone;
        blocks.push_back({id, entry.details().position, entry.ns, priority});
      }
    }
  }
  for (Block& block : blocks) {
    if (block.priority == KeepPriority::kNone) continue;
    block.priority = parts_.book.priority(TierName::kHost, block.id);
  }
  std::stable_sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) {
    return a.priority != b.priority ? a.priority > b.priority : a.position < b.position;
  });
  return blocks;
}

void MemoryFlush::Write(const std::vector<Block>& blocks, bool from_gpu, absl::Time until,
                        const std::function<bool()>& is_stopped, Rooms* rooms) {
  for (const Block& block : blocks) {
    const NamespacePtr ns = parts_.namespaces.Find(block.ns);
    if (ns == nullptr) continue;
    const uint64_t bytes = uint64_t{ns->slot_pages} * kPageBytes;
    if (bytes > rooms->bytes) return;
    const auto [own, is_new] = rooms->bytes_of.try_emplace(ns->owner(), 0);
    uint64_t& own_bytes = own->second;
    if (is_new) own_bytes = parts_.tenants.QuotaOf(ns->owner()).disk_bytes_max;
    if (bytes > own_bytes) continue;
    if (from_gpu && !CopyDown(block.id, until, is_stopped)) continue;
    if (!Queue(block, from_gpu, until, is_stopped)) return;
    rooms->bytes -= bytes;
    own_bytes -= bytes;
  }
}

// A host tier that is full of blocks which are not written yet has room once they are.
bool MemoryFlush::CopyDown(EntryId id, absl::Time until, const std::function<bool()>& is_stopped) {
  return mover_.CopyDown(id) || (WaitUntilIdle(until, is_stopped) && mover_.CopyDown(id));
}

void MemoryFlush::Count(const std::vector<Block>& blocks, bool from_gpu, KeepResult* result) {
  for (const Block& block : blocks) {
    {
      IndexShard& shard = parts_.index.ShardOf(block.id);
      MutexLock lock(shard.mutex);
      const IndexEntry& entry = shard.Get(block.id);
      // What has only its gpu copy left by now is counted with the blocks of the gpu tier.
      const bool is_stored =
          entry.Has(kMapped) && entry.is_resident() && (from_gpu || !IsInGpuOnly(entry));
      result->written_blocks += is_stored && entry.is_on_disk() ? 1 : 0;
      result->remaining_blocks += is_stored && !entry.is_on_disk() ? 1 : 0;
    }
    residency_.DropRef(block.id);
  }
}

// False when there is no time left, or nothing is written any more. What was copied down is busy on
// this account: until it is written, or now when it is not to be.
bool MemoryFlush::Queue(const Block& block, bool from_gpu, absl::Time until,
                        const std::function<bool()>& is_stopped) {
  {
    IndexShard& shard = parts_.index.ShardOf(block.id);
    MutexLock lock(shard.mutex);
    ++shard.Get(block.id).refs;  // the disk writer's
  }
  DiskWrite write{block.id, parts_.namespaces.Find(block.ns), /*evict_after=*/false, nullptr};
  if (from_gpu) write.durable_done = [](const absl::Status&) {};
  bool is_queued = write.ns != nullptr && parts_.disk_queue.PushWrite(std::move(write));
  while (write.ns != nullptr && !is_queued && !parts_.disk_queue.is_closed() &&
         WaitUntilIdle(until, is_stopped)) {
    is_queued = parts_.disk_queue.PushWrite(std::move(write));
  }
  if (is_queued) return true;
  if (from_gpu) residency_.EndBusy(block.id);
  residency_.DropRef(block.id);
  return false;
}

bool MemoryFlush::WaitUntilIdle(absl::Time until, const std::function<bool()>& is_stopped) {
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
