// The one thread that moves blocks into the gpu tier and out of it: blocks of the host tier that
// were asked for again are copied up, several at a time; the coldest give way, and one whose last
// copy the gpu tier has is copied down first.
//
// A block in the gpu tier usually has its host copy too. When the host tier needs that room, its
// copy leaves (the block is still here), and when the gpu tier evicts the block it comes back.
//
// Thread safety: Offer, CopyDown, WaitUntilIdle from any thread. Start and Stop: once.
#pragma once

#include <deque>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "cache_server/residency.h"
#include "core/mutex.h"

namespace ibid {

class GpuMover {
 public:
  GpuMover(StoreParts& parts, Residency& residency);
  // REQUIRES: there is a gpu tier.
  void Start();
  void Stop();

  // These blocks were asked for: they are candidates to be copied up. Those that the queue
  // (gpu_promote_queue_max) has no room for are left out and counted. `ids` and `keys` belong to
  // each other.
  void Offer(std::span<const EntryId> ids, std::span<const BlockKey> keys);
  // Gives a block that only the gpu tier has a copy in the host tier, where only blocks with
  // another copy make room. True: the entry is busy on the caller's account, and so both copies
  // stay. False: it has other copies, is being moved, or there is no room, or the device failed.
  bool CopyDown(EntryId id);
  // False after `timeout`.
  bool WaitUntilIdle(absl::Duration timeout);

 private:
  // The entry may be another block's when its turn comes: the key tells.
  struct Wish {
    EntryId id;
    BlockKey key;
  };
  struct Promotion;

  void Run();
  void Promote(std::vector<Wish> wishes);
  bool Begin(Promotion& promotion);
  void End(Promotion& promotion);

  std::optional<uint32_t> AllocateGpu(uint32_t slot_pages, EntryId owner);
  // Of a priority up to `priority_max`, and of the share of `beside` alone, if it is one. The slot
  // size of the one that left; nothing when none can.
  std::optional<uint32_t> EvictOne(KeepPriority priority_max, EntryId beside = kNoEntry);
  // Copies the block to the host tier. Errors: ResourceExhausted (no room there), Unavailable (the
  // device failed). REQUIRES: it has no host copy, is busy and has kHostInTransit.
  absl::Status CopyToHost(EntryId id, uint32_t gpu_page, const NamespaceInfo& ns,
                          Residency::Room room);
  void ClearExtent(uint32_t victim_pages, uint32_t wanted_pages);
  bool MoveWithin(EntryId id, uint32_t from, uint32_t slot_pages);

  StoreParts& parts_;
  Residency& residency_;
  // The next wishes, at most kBatchMax; none once it is stopped.
  std::vector<Wish> TakeWishes();

  Mutex mutex_;
  CondVar has_wishes_;
  CondVar idle_;
  std::deque<Wish> wishes_ IBID_GUARDED_BY(mutex_);
  uint64_t taken_count_ IBID_GUARDED_BY(mutex_) = 0;  // wishes that are being granted
  bool is_stopping_ IBID_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ibid
