// The one thread that decides what changes on disk: it writes queued blocks, several to a commit,
// evicts blocks from the disk tier to make room for them, and deletes the records of blocks that
// were dropped. The bytes of one commit are written in runs (disk_runs.h): those of one run by long
// calls one after the other, several runs at a time.
//
// Thread safety: Start, Stop and FlushToDisk from any thread.
#pragma once

#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "cache_server/residency.h"
#include "core/executor.h"

namespace ibid {

class DiskWriter {
 public:
  DiskWriter(StoreParts& parts, Residency& residency) : parts_(parts), residency_(residency) {}
  // REQUIRES: there is a disk tier.
  void Start();
  // Writes what is queued, for at most `timeout`, then ends the thread. What is left is answered
  // Unavailable.
  void Stop(absl::Duration timeout);

 private:
  struct Job;
  struct Move;

  void Run();
  void Remove(const std::vector<DiskRemoval>& removals);
  bool IsElsewhere(const DiskRemoval& removal);
  void Write(std::vector<DiskWrite> writes);
  void YieldToReads();
  void Begin(Job& job);
  void TakeRoom(Job& job);
  void WriteBytes(std::vector<Job>& jobs);
  void WriteRun(std::span<Job* const> jobs);
  void WritePiece(std::span<Job* const> jobs);
  void Commit(std::vector<Job>& jobs);
  void End(Job& job);
  bool IsDoomed(EntryId id);

  std::optional<uint32_t> AllocateDisk(uint32_t slot_pages, EntryId owner);
  // The slot size of one that was freed; nothing when there is no victim, or the records could not
  // be deleted.
  // Of the share of `beside` alone, if it is one.
  std::optional<uint32_t> EvictFromDisk(EntryId beside = kNoEntry);
  size_t EvictBatchOf(EntryId first);
  EntryId TakeVictim(EntryId beside, EntryId first);
  void ClearDiskExtent(uint32_t victim_pages, uint32_t wanted_pages);
  // Where the directory has outgrown its reserve, empties extents for it.
  void KeepBudget();
  bool BeginMove(const ExtentAllocator::Slot& slot, MutableByteView buffer,
                 std::vector<Move>* moves);
  bool EndMoves(std::vector<Move>& moves);
  // The record of a block that is busy. False when its namespace is gone.
  bool MakeRecord(EntryId id, const NamespaceInfo& ns, DiskRecord* record);

  StoreParts& parts_;
  Residency& residency_;
  std::unique_ptr<Executor> bytes_executor_;  // writes of one batch
  uint64_t rounds_count_ = 0;                 // of its thread
  std::thread thread_;
};

}  // namespace ibid
