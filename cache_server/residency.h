// Brings copies of blocks into the host tier and out of both tiers, and keeps the index, the
// eviction policies and the books of room in step while it does.
//
// How a change is made, so that no two locks are held and no bytes move under one:
//   lock the entry's shard -> decide, change the entry, note what follows (Aftermath) -> unlock ->
//   Finish(aftermath)
// What Finish has in hand is already out of reach of everybody else.
//
// Thread safety: every method, from any thread.
#pragma once

#include <atomic>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "cache_server/store_parts.h"

namespace ibid {

// What a change of an entry leaves to be done without a lock.
struct Aftermath {
  EntryId id = kNoEntry;
  uint32_t ns = 0;
  BlockKey key;
  EntryId parent = kNoEntry;
  uint32_t host_page = kNoPage;    // to be freed
  uint32_t disk_page = kNoPage;    // to be freed, its record deleted
  uint32_t gpu_page = kNoPage;     // to be freed
  uint32_t record_page = kNoPage;  // its record is to be deleted; the slot is still read
  uint64_t fingerprint = 0;        // of what leaves
  bool is_eviction = false;        // by policy: it may be asked for again
  bool was_host_resident = false;
  bool put_back_host = false;
  bool put_back_disk = false;
  bool put_back_gpu = false;
  bool took_host = false;
  bool wakes_waiters = false;
  bool was_pinned = false;  // the pin of ns, key now names an entry that nobody finds
  EntryId parent_to_drop = kNoEntry;
};

class Residency {
 public:
  enum class Room { kFreeOnly, kEvictClean, kEvict };  // how hard AllocateHost may try

  explicit Residency(StoreParts& parts) : parts_(parts) {}

  // After `holds` or `busy` fell, or the writer left. REQUIRES: the shard is that of `id`.
  Aftermath Settle(IndexShard& shard, EntryId id) IBID_REQUIRES(shard.mutex);
  // The block leaves all tiers: at once when nothing uses it, else it becomes invisible at once and
  // leaves in the last Settle. REQUIRES: the entry is mapped.
  Aftermath Remove(IndexShard& shard, EntryId id) IBID_REQUIRES(shard.mutex);
  void Finish(const Aftermath& aftermath);
  // Takes a damaged copy out of its tier; the block stays, with its other copies. False, and
  // nothing has changed, when somebody reads or moves the copy, or may: the block is held or busy.
  // REQUIRES: the caller made the entry busy, once, and it has the copy and another one.
  bool RemoveCopy(TierName tier, EntryId id);

  // Gives back what was counted into the entry under its lock.
  void DropRef(EntryId id);
  void EndBusy(EntryId id);
  void EndHold(EntryId id, uint64_t payload_bytes);
  void EndHolds(const HeldBlocks& blocks);
  // Counts a hold. The caller has it under the lock.
  void AddHold(IndexEntry& entry, uint64_t payload_bytes) {
    if (entry.holds++ == 0) CountPinned(1, payload_bytes);
  }
  // Blocks whose `holds` are 0 no more.
  void CountPinned(uint64_t blocks_count, uint64_t payload_bytes) {
    parts_.counters.pinned_bytes += static_cast<int64_t>(blocks_count * payload_bytes);
  }

  // What the eviction policy is told of the block.
  BlockTraits TraitsOf(const IndexEntry& entry, const NamespaceInfo& ns) const;
  // Tells the eviction policies how many blocks the tiers have room for.
  void UpdateCapacities();

  // The entry id of `parent`, one reference counted, made absent if need be; kNoEntry for the
  // parent of block 0, or when the positions do not follow each other.
  EntryId RefParent(const NamespaceInfo& ns, const BlockKey& parent, uint32_t position);

  // `id`, a block of `ns`, is to come into the tier: the policies know it from here on, as a child
  // of `parent` and not yet as a candidate. Before it has a slot, so that no room for it is made at
  // the cost of its parent. If its owner is over the quota by it, `evict_own` is called until that
  // is over: it lets a block of the owner leave and returns the pages of its slot, 0 when none can.
  // False: too little could leave, and the policies have forgotten `id`.
  bool Enter(TierName tier, EntryId id, EntryId parent, const NamespaceInfo& ns,
             absl::FunctionRef<uint32_t()> evict_own);
  bool EnterHost(EntryId id, EntryId parent, const NamespaceInfo& ns, Room room);
  // Undoes it for a block that did not come after all.
  void LeaveUnseen(TierName tier, EntryId id, EntryId parent, const NamespaceInfo& ns) {
    parts_.book.Remove(tier, id, parent, {.slot_pages = ns.slot_pages});
  }
  // A slot of the host tier for `owner`, by evicting if `room` allows. Nothing when everything is
  // in use.
  std::optional<uint32_t> AllocateHost(uint32_t slot_pages, EntryId owner, Room room);
  // Keeps some of the host tier free by writing the coldest blocks to disk and evicting them
  // (DiskWriteMode::kOnDemotion). Does nothing when enough is free or on its way.
  void DemoteAhead();
  // The same for the tenant of `id`, which has come into the host tier: when little of its quota is
  // left, one of its coldest blocks is to leave for the one that came.
  void DemoteAheadOf(EntryId id, const NamespaceInfo& ns);
  // Uses of blocks call for writes to disk: the mode is not kOnDemotion, and the queue has room.
  // Takes no lock.
  bool WritesOnUse() const;
  // In the host tier only, and not on its way to disk. REQUIRES: the entry's shard is locked.
  static bool IsUnwritten(const IndexEntry& entry);
  // The block was used: queues it to be written, if that calls for it. REQUIRES: the caller holds
  // the block.
  void WriteUsed(EntryId id, const NamespacePtr& ns);
  // The same in two steps. True: it is to be written, and QueueWrite must follow, without the lock.
  // REQUIRES: WritesOnUse; the entry's shard is locked.
  static bool ClaimWrite(IndexEntry& entry);
  // Queues what was claimed. Where the queue is full, or the disk is not writable, the next use
  // claims it again.
  void QueueWrite(EntryId id, const NamespacePtr& ns);
  // The write of a demotion is over: drops the host copy if the block is on disk and not
  // in use; else it is a candidate again.
  void EndDemotion(EntryId id, const NamespaceInfo& ns);

 private:
  // It will be looked at soon: the next in a chain that leaves from its end to its start.
  void Prefetch(EntryId id);
  void TakeHostCopy(IndexEntry& entry, Aftermath* after);
  void TakeCopies(IndexEntry& entry, Aftermath* after);
  // Pages of the slot that was freed. Of the share of `beside` alone, if it is one.
  std::optional<uint32_t> EvictOneFromHost(bool clean_only, EntryId beside = kNoEntry);
  // A slot of the host tier, if need be by emptying an extent of slots of `victim_pages`. One
  // thread at a time does so; the others wait for what comes of it, until then at most.
  std::optional<uint32_t> AllocateByClearing(uint32_t victim_pages, uint32_t slot_pages,
                                             EntryId owner, absl::Time until);
  void ClearHostExtent(uint32_t victim_pages, uint32_t wanted_pages);
  bool MoveInHost(EntryId id, uint32_t from, uint32_t slot_pages);

  bool DemotesAhead() const;
  void CountDemoting(const NamespaceInfo& ns, int64_t pages);
  void EndTransit(EntryId id);
  void EvictDemoted(EntryId id);
  bool DemoteOne(EntryId id, uint64_t* bytes);
  void DropOrphan(EntryId id);

  StoreParts& parts_;
  Mutex clearing_mutex_;
  CondVar clearing_ended_;
  bool is_clearing_ IBID_GUARDED_BY(clearing_mutex_) = false;
  // Queued to be written and evicted: of all, and of each owner.
  std::atomic<uint64_t> demoting_bytes_{0};
  Mutex demoting_mutex_;
  absl::flat_hash_map<uint32_t, int64_t> demoting_pages_of_ IBID_GUARDED_BY(demoting_mutex_);
};

}  // namespace ibid
