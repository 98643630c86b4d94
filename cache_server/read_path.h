// How blocks are found and read: matched, leased, acquired.
//
// Thread safety: every method, from any thread.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cache_server/gpu_mover.h"
#include "cache_server/recovery.h"
#include "cache_server/residency.h"
#include "core/executor.h"

namespace ibid {

class ReadPath {
 public:
  using Done = std::function<void(absl::StatusOr<BlockRef>)>;

  // `mover` null: there is no gpu tier.
  ReadPath(StoreParts& parts, Residency& residency, Recovery& recovery, GpuMover* mover);
  ~ReadPath();

  absl::StatusOr<MatchResult> Match(SessionId session, const NamespaceId& ns,
                                    std::span<const BlockKey> chain, const MatchOptions& options);
  MatchWaitId StartMatch(SessionId session, std::vector<ShardChain> shards,
                         const MatchOptions& options, MatchDone done);
  void Acquire(const NamespaceId& ns, const BlockKey& key, Done done, bool is_use);
  // Drops the block if its host copy does not match its checksum.
  bool DropIfCorrupt(const NamespaceInfo& ns, const BlockKey& key);

 private:
  // A read from the disk or the gpu tier.
  struct Read {
    EntryId id;
    NamespacePtr ns;
    BlockKey key;
    bool is_use = true;  // of who asked first
    bool is_from_disk = true;
  };
  struct Target;

  struct Found {
    EntryId id = kNoEntry;
    bool is_resident = false;
    bool is_in_gpu = false;
    bool is_in_host = false;
    bool is_pending = false;
    bool is_held = false;  // once more
    bool is_first_hold = false;
    bool is_unwritten = false;  // held, and neither on disk nor on its way there
    // See HeldBlocks::taken_count.
    bool takes_memory() const { return is_first_hold && (is_in_host || is_in_gpu); }
  };

  // What an entry says, its shard locked. With `adds_hold` a resident block is held once more; a
  // first hold is the caller's to count.
  Found Describe(IndexShard& shard, EntryId id, bool is_disk_readable, bool adds_hold)
      IBID_REQUIRES(shard.mutex);
  Found Look(const NamespaceInfo& ns, const BlockKey& key, bool is_disk_readable, bool adds_hold);
  // While recovery runs, a block that is not found is looked for in the disk directory.
  Found LookOrRecover(const NamespaceInfo& ns, const BlockKey& key, bool is_disk_readable,
                      bool adds_hold);
  // Looks up keys of a chain, shard of the index by shard: each is locked once for all of its keys.
  // REQUIRES: no more of them than a window of Scan.
  void LookMany(const NamespaceInfo& ns, std::span<const BlockKey> keys, bool is_disk_readable,
                bool adds_hold, std::vector<Found>* found);
  struct ShardView {
    NamespacePtr ns;
    std::span<const BlockKey> keys;
  };

  absl::Status Admit(SessionId session, size_t keys_count, const MatchOptions& options);
  // The namespaces of the shards.
  absl::StatusOr<std::vector<NamespacePtr>> CheckShards(std::span<const ShardChain> shards);
  static std::vector<ShardView> ViewsOf(const MatchWait& wait);
  absl::StatusOr<MatchResult> MatchNow(SessionId session, std::span<const ShardView> shards,
                                       const MatchOptions& options);
  // The smallest common prefix. Without `held` nothing changes; with it, every matched block is
  // held once more and listed under its shard. Ends before what it holds takes more than
  // `taken_bytes_max`, but not before one block is matched.
  MatchResult Scan(std::span<const ShardView> shards, uint64_t taken_bytes_max,
                   std::vector<HeldBlocks>* held);
  static Found InAllOf(std::span<const std::vector<Found>> found, size_t i);
  void CountMatch(std::span<const ShardView> shards, std::span<const HeldBlocks> held,
                  uint32_t matched_count, const MatchOptions& options);
  void CountLookup(const ShardView& shard, std::span<const EntryId> found,
                   const MatchOptions& options);
  // Parks the wait at the next pending block, or answers it.
  void GoOn(std::unique_ptr<MatchWait> wait);
  void Answer(std::unique_ptr<MatchWait> wait);

  void QueueRead(const Read& read, Done done);
  void ReadCopy(const Read& read);
  // Where the bytes go: a host slot when there is room, or will be by eviction; else a buffer.
  absl::Status ChooseTarget(const Read& read, bool can_promote, Residency::Room room,
                            Target* target);
  // From the gpu tier, else from disk.
  absl::Status Fill(const Read& read, Target& target);
  absl::Status FillFromDisk(uint32_t disk_page, const Target& target);
  // The bytes of `target` become the host copy. False when the block left meanwhile.
  bool Promote(const Read& read, const Target& target);
  void DropDamaged(uint32_t ns, const BlockKey& key, EntryId id);
  void Answer(const Read& read, const absl::Status& status, const Target* target);
  std::vector<Done> TakeWaiters(EntryId id);

  StoreParts& parts_;
  Residency& residency_;
  Recovery& recovery_;
  GpuMover* const mover_;
  Mutex mutex_;
  absl::flat_hash_map<EntryId, std::vector<Done>> waiters_ IBID_GUARDED_BY(mutex_);
  std::unique_ptr<Executor> executor_;  // last: its threads use the rest
};

}  // namespace ibid
