// Order of a batch: begin (pin the host copies) -> slots -> bytes -> [sync] -> one directory write
// -> index. Records of victims are deleted before their slots are written again.
#include "cache_server/disk_writer.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <utility>

#include "absl/time/clock.h"
#include "cache_server/disk_runs.h"
#include "core/check.h"
#include "core/log.h"

namespace ibid {
namespace {

// Between two log lines of one place.
constexpr int64_t kLogPeriodSeconds = 10;
// Blocks in one directory write: it costs about as much as one of them.
constexpr size_t kBatchBlocksMax = 32;
constexpr size_t kEvictBatchMax = 16;
// Between two looks at the directory's size: its files grow by some hundred bytes a block.
constexpr uint64_t kRoundsPerMeasure = 16;
// One call writes about so much of a run. The more, the less the disk waits for the next one; the
// less, the less a read waits for the disk.
constexpr uint64_t kPieceBytesMax = uint64_t{16} << 20;
// Runs of one file that are written at the same time. A fresh file is one run (disk_runs.h): four
// writes of a block each in it at a time took two to four times as long.
constexpr size_t kRunsPerFileMax = 2;
constexpr int kClearTriesMax = 4;
constexpr absl::Duration kHealPoll = absl::Milliseconds(50);
// How long a batch of writes lets waiting reads go first.
constexpr absl::Duration kYieldMax = absl::Milliseconds(20);
constexpr absl::Duration kYieldPoll = absl::Microseconds(200);

absl::Status NotStored(absl::string_view why) { return absl::UnavailableError(why); }

}  // namespace

struct DiskWriter::Job {
  DiskWrite write;
  absl::Status result;
  bool is_active = false;  // its entry is busy on its account
  uint32_t host_page = kNoPage;
  uint32_t disk_page = kNoPage;
  BlockTraits traits;
  bool is_in_book = false;   // the disk policy knows it
  bool is_repeated = false;  // the same block was queued twice; the first job writes it
  DiskRecord record;
};

// A block on its way to another slot; it is busy.
struct DiskWriter::Move {
  EntryId id = kNoEntry;
  uint32_t from = kNoPage;
  uint32_t to = kNoPage;
  DiskRecord record;
  bool is_moved = false;
};

void DiskWriter::Start() {
  bytes_executor_ = std::make_unique<Executor>("ibid-disk-bytes", parts_.options.io_threads_count,
                                               kBatchBlocksMax);
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "ibid-disk-write");
}

void DiskWriter::Stop(absl::Duration timeout) {
  if (!thread_.joinable()) return;
  if (!parts_.disk_queue.WaitUntilIdle(timeout)) {
    IBID_LOG(warn, "disk tier: stopped with {} blocks not written",
             parts_.disk_queue.writes_count());
  }
  parts_.disk_queue.Close();
  thread_.join();
  DiskWork rest = parts_.disk_queue.TakeRest();
  // A last try, whatever the tier's health: what was dropped must not come back with the next
  // start.
  if (!rest.removals.empty()) Remove(rest.removals);
  for (DiskWrite& write : rest.writes) {
    if (write.durable_done) {
      residency_.EndBusy(write.id);
      write.durable_done(NotStored("the server is stopping"));
    }
    if (write.evict_after) residency_.EndDemotion(write.id, *write.ns);
    residency_.DropRef(write.id);
  }
}

void DiskWriter::Run() {
  while (!parts_.disk_queue.is_closed()) {
    const DiskHealth& health = parts_.disk->health();
    const bool is_writable = health.is_writable();
    // While records cannot be deleted the removals wait; writes are taken all the same, to be
    // answered.
    DiskWork work =
        parts_.disk_queue.Take(kBatchBlocksMax, is_writable,
                               is_writable && health.is_readable() ? absl::Seconds(1) : kHealPoll);
    if (!work.removals.empty()) Remove(work.removals);
    if (!work.writes.empty()) Write(std::move(work.writes));
    // While the directory is being read it is not known which slots are free.
    const bool is_paused = parts_.disk_queue.is_paused();
    if (!is_paused && ++rounds_count_ % kRoundsPerMeasure == 0) KeepBudget();
    parts_.disk_queue.Done();
    parts_.disk->HealIfDue();
  }
}

void DiskWriter::Remove(const std::vector<DiskRemoval>& removals) {
  DiskDirectory::Change change;
  for (const DiskRemoval& removal : removals) {
    if (!IsElsewhere(removal)) change.delete_blocks.push_back({removal.ns, removal.key});
  }
  const absl::Status status = parts_.disk->Commit(change, /*is_synced=*/false);
  for (const DiskRemoval& removal : removals) {
    if (!status.ok()) {
      parts_.disk_queue.PushRemoval(removal);  // tried again after the tier has healed
    } else if (removal.frees_slot) {
      parts_.disk->FreeSlot(removal.page);
    }
  }
}

// The record is of the same block, written anew since: this thread puts what it writes into the
// index before it removes anything. The directory is not asked, which may be damaged.
bool DiskWriter::IsElsewhere(const DiskRemoval& removal) {
  IndexShard& shard = parts_.index.ShardOf(removal.key);
  MutexLock lock(shard.mutex);
  const EntryId id = shard.Find(removal.ns, removal.key);
  return id != kNoEntry && shard.Get(id).is_on_disk() && shard.Get(id).disk_page != removal.page;
}

void DiskWriter::Write(std::vector<DiskWrite> writes) {
  YieldToReads();
  std::vector<Job> jobs(writes.size());
  for (size_t i = 0; i < writes.size(); ++i) {
    jobs[i].write = std::move(writes[i]);
    Begin(jobs[i]);
    if (jobs[i].host_page != kNoPage && jobs[i].result.ok()) TakeRoom(jobs[i]);
  }
  WriteBytes(jobs);
  Commit(jobs);
  for (Job& job : jobs) End(job);
}

// Somebody waits for a read, and for few writes: so reads go first, but writes always go on.
void DiskWriter::YieldToReads() {
  const SteadyClock clock;
  const absl::Time until = clock.Now() + kYieldMax;
  while (parts_.disk_reads_waiting.load(std::memory_order_relaxed) > 0 && clock.Now() < until &&
         !parts_.disk_queue.is_closed()) {
    absl::SleepFor(kYieldPoll);
  }
}

// Decides whether there is something to write, and pins it.
void DiskWriter::Begin(Job& job) {
  const EntryId id = job.write.id;
  {
    IndexShard& shard = parts_.index.ShardOf(id);
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(id);
    entry.Clear(kWriteQueued);
    const bool can_write = entry.is_in_host() && !entry.is_on_disk() && !entry.Has(kDoomed) &&
                           !entry.Has(kDiskUnsettled);
    job.is_active = static_cast<bool>(job.write.durable_done);  // counted when it was queued
    job.is_repeated = can_write && entry.Has(kWriting);
    if (can_write && !job.is_repeated) {
      if (!job.is_active) ++entry.busy;
      job.is_active = true;
      job.host_page = entry.host_page;
      job.traits = residency_.TraitsOf(entry, *job.write.ns);
      entry.Set(kWriting);
    }
    if (entry.Has(kDoomed)) job.result = NotStored("the block was dropped");
    if (entry.Has(kDiskUnsettled)) job.result = NotStored("its damaged copy is being removed");
  }
  if (!job.result.ok() || job.host_page == kNoPage) return;
  if (!parts_.disk->health().is_writable()) {
    job.result = NotStored(parts_.disk->state());
  } else if (!MakeRecord(id, *job.write.ns, &job.record)) {
    job.result = NotStored("the namespace is gone");
  }
}

bool DiskWriter::MakeRecord(EntryId id, const NamespaceInfo& ns, DiskRecord* record) {
  if (ns.is_closed.load()) return false;
  EntryId parent;
  {
    IndexShard& shard = parts_.index.ShardOf(id);
    MutexLock lock(shard.mutex);
    const IndexEntry& entry = shard.Get(id);
    record->ns = entry.ns;
    record->key = entry.key;
    record->payload_bytes = ns.payload_bytes;
    record->checksum = entry.details().checksum;
    record->token_count = entry.details().token_count;
    record->position = entry.details().position;
    parent = entry.parent;
  }
  // An unknown parent is all zeros, which is no block's key.
  record->parent = BlockKey{};
  if (record->position == 0) record->parent = RootParent(ns.id);
  if (parent != kNoEntry) {
    IndexShard& shard = parts_.index.ShardOf(parent);
    MutexLock lock(shard.mutex);
    record->parent = shard.Get(parent).key;
  }
  return true;
}

void DiskWriter::TakeRoom(Job& job) {
  job.is_in_book = residency_.Enter(TierName::kDisk, job.write.id, job.traits.parent, *job.write.ns,
                                    [&] { return EvictFromDisk(job.write.id).value_or(0); });
  if (!job.is_in_book) {
    job.result = NotStored("disk_bytes_max of the tenant is reached, and nothing of it can leave");
    return;
  }
  const std::optional<uint32_t> page = AllocateDisk(job.write.ns->slot_pages, job.write.id);
  if (!page.has_value()) {
    job.result =
        NotStored("the disk tier has no room: everything in it is in use, or it is broken");
    return;
  }
  job.disk_page = *page;
  job.record.extent = parts_.disk->ExtentOf(*page);
  job.record.extent_page = parts_.disk->ExtentPageOf(*page);
}

// Returns when the bytes of all jobs are written or have failed.
void DiskWriter::WriteBytes(std::vector<Job>& jobs) {
  std::vector<Job*> with_room;
  std::vector<DiskSlot> slots;
  for (Job& job : jobs) {
    if (job.disk_page == kNoPage) continue;
    with_room.push_back(&job);
    slots.push_back({job.disk_page, job.write.ns->slot_pages});
  }
  struct File {
    std::vector<DiskRun> runs;
    std::atomic<size_t> next{0};
  };
  std::deque<File> files;
  Mutex mutex;
  CondVar is_less;
  size_t running_count = 0;
  for (auto& runs : RunsByExtent(slots, parts_.disk->pages_per_extent())) {
    File& file = files.emplace_back();
    file.runs = std::move(runs);
    const auto write = [&, file = &file] {
      for (size_t i = file->next++; i < file->runs.size(); i = file->next++) {
        std::vector<Job*> run;
        for (const size_t slot : file->runs[i]) run.push_back(with_room[slot]);
        WriteRun(run);
      }
      MutexLock lock(mutex);
      --running_count;
      is_less.NotifyOne();  // under the lock: the waiting thread destroys both
    };
    for (size_t i = 0; i < std::min(file.runs.size(), kRunsPerFileMax); ++i) {
      {
        MutexLock lock(mutex);
        ++running_count;
      }
      if (!bytes_executor_->TrySubmit(write)) write();
    }
  }
  MutexLock lock(mutex);
  while (running_count > 0) is_less.Wait(mutex);
}

// Piece by piece, from the first block to the last.
void DiskWriter::WriteRun(std::span<Job* const> jobs) {
  while (!jobs.empty()) {
    const uint64_t slot_bytes = uint64_t{jobs.front()->write.ns->slot_pages} * kPageBytes;
    // The blocks of one extent have slots of one size.
    const size_t count =
        std::clamp<uint64_t>(kPieceBytesMax / slot_bytes, 1, static_cast<uint64_t>(jobs.size()));
    WritePiece(jobs.first(count));
    jobs = jobs.subspan(count);
  }
}

// One or more blocks, one behind the other on disk.
void DiskWriter::WritePiece(std::span<Job* const> jobs) {
  const absl::Time began = SteadyClock().Now();
  std::vector<ByteView> slots;
  uint64_t bytes = 0;
  for (const Job* job : jobs) {
    const uint64_t slot_bytes = uint64_t{job->write.ns->slot_pages} * kPageBytes;
    slots.push_back(parts_.arena->View(job->host_page, slot_bytes));
    bytes += slot_bytes;
  }
  const absl::Status status = parts_.disk->WriteSlots(jobs.front()->disk_page, slots);
  if (status.ok()) {
    const absl::Duration each = (SteadyClock().Now() - began) / static_cast<double>(jobs.size());
    for (size_t i = 0; i < jobs.size(); ++i) parts_.counters.ObserveDiskWrite(each);
    parts_.counters.disk_write_bytes.Add(bytes);
    return;
  }
  IBID_LOG_EVERY(kLogPeriodSeconds, warn, "disk tier: {}", status.message());
  for (Job* job : jobs) {
    job->result = status;
    parts_.disk->FreeSlot(job->disk_page);
    job->disk_page = kNoPage;
  }
}

void DiskWriter::Commit(std::vector<Job>& jobs) {
  DiskDirectory::Change change;
  std::vector<uint32_t> pages;
  std::vector<NamespacePtr> new_namespaces;
  bool is_synced = false;
  for (Job& job : jobs) {
    if (job.disk_page == kNoPage) continue;
    if (IsDoomed(job.write.id)) {  // dropped while its bytes were written
      parts_.disk->FreeSlot(job.disk_page);
      job.disk_page = kNoPage;
      job.result = NotStored("the block was dropped");
      continue;
    }
    change.put_blocks.push_back(job.record);
    pages.push_back(job.disk_page);
    is_synced |= static_cast<bool>(job.write.durable_done);
    const NamespacePtr& ns = job.write.ns;
    if (!ns->is_on_disk.load() &&
        std::find(new_namespaces.begin(), new_namespaces.end(), ns) == new_namespaces.end()) {
      change.put_namespaces.push_back(parts_.RecordOf(*ns));
      new_namespaces.push_back(ns);
    }
  }
  if (pages.empty()) return;
  // Blocks that nobody waits for need no sync: a loss of power may take them, and the checksum
  // catches a torn one.
  absl::Status status = is_synced ? parts_.disk->Sync(pages) : absl::OkStatus();
  if (status.ok()) status = parts_.disk->Commit(change, is_synced);
  if (status.ok()) {
    for (const NamespacePtr& ns : new_namespaces) ns->is_on_disk.store(true);
    return;
  }
  IBID_LOG_EVERY(kLogPeriodSeconds, warn, "disk tier: {}", status.message());
  for (Job& job : jobs) {
    if (job.disk_page == kNoPage) continue;
    parts_.disk->FreeSlot(job.disk_page);
    job.disk_page = kNoPage;
    job.result = status;
  }
}

bool DiskWriter::IsDoomed(EntryId id) {
  IndexShard& shard = parts_.index.ShardOf(id);
  MutexLock lock(shard.mutex);
  return shard.Get(id).Has(kDoomed);
}

void DiskWriter::End(Job& job) {
  const EntryId id = job.write.id;
  const bool is_written = job.disk_page != kNoPage;
  if (job.host_page != kNoPage) {
    IndexShard& shard = parts_.index.ShardOf(id);
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(id);
    entry.Clear(kWriting);
    entry.disk_page = job.disk_page;
    if (is_written) parts_.events.TellCame(entry, TierName::kDisk, BlockChange::kStored);
    // Dropped while its record was written: the record must not wait for the last reader, or the
    // next start would find the block again. The slot does wait.
    if (is_written && entry.Has(kDoomed)) {
      parts_.disk_queue.PushRemoval({entry.ns, entry.key, job.disk_page, /*frees_slot=*/false});
    }
  } else if (job.is_repeated) {
    IndexShard& shard = parts_.index.ShardOf(id);
    MutexLock lock(shard.mutex);
    if (!shard.Get(id).is_on_disk()) job.result = NotStored(parts_.disk->state());
  }
  if (is_written) {
    parts_.counters.OnCopyIn(TierName::kDisk, id, *parts_.clock);
    parts_.book.Admit(TierName::kDisk, id, job.traits);
  } else if (job.host_page != kNoPage) {
    if (job.is_in_book) {
      residency_.LeaveUnseen(TierName::kDisk, id, job.traits.parent, *job.write.ns);
    }
    parts_.counters.skipped_writes.Add();
  }
  if (job.is_active) residency_.EndBusy(id);
  if (job.write.evict_after) residency_.EndDemotion(id, *job.write.ns);
  if (job.write.durable_done) {
    job.write.durable_done(job.result.ok() ? job.result : NotStored(job.result.message()));
  }
  residency_.DropRef(id);
}

std::optional<uint32_t> DiskWriter::AllocateDisk(uint32_t slot_pages, EntryId owner) {
  if (!parts_.disk->CanEverFit(slot_pages)) return std::nullopt;
  const uint32_t tries_max = 2 * parts_.disk->slots_per_extent_max() + 64;
  for (uint32_t i = 0; i < tries_max; ++i) {
    const std::optional<uint32_t> page = parts_.disk->AllocateSlot(slot_pages, owner);
    if (page.has_value()) return page;
    const std::optional<uint32_t> freed_pages = EvictFromDisk();
    if (!freed_pages.has_value()) return std::nullopt;
    if (*freed_pages != slot_pages) ClearDiskExtent(*freed_pages, slot_pages);
  }
  return std::nullopt;
}

// How many blocks leave together, one of which is `first`: one in 64 of its share.
size_t DiskWriter::EvictBatchOf(EntryId first) {
  const uint64_t blocks =
      std::min(parts_.disk->usage().slots_count, parts_.book.ShareBlocks(TierName::kDisk, first));
  return std::clamp<size_t>(blocks / 64, 1, kEvictBatchMax);
}

// The first victim, and no block of another share than that one's.
EntryId DiskWriter::TakeVictim(EntryId beside, EntryId first) {
  if (first != kNoEntry) {
    // Ahead of need only blocks leave that nothing keeps.
    return parts_.book.TakeVictimBeside(TierName::kDisk, first, KeepPriority::kNone);
  }
  return beside == kNoEntry ? parts_.book.TakeVictim(TierName::kDisk)
                            : parts_.book.TakeVictimBeside(TierName::kDisk, beside);
}

std::optional<uint32_t> DiskWriter::EvictFromDisk(EntryId beside) {
  struct Victim {
    EntryId id;
    EntryId parent;
    LeavingBlock leaving;
    uint32_t page;
    EvictionReason reason;
  };
  std::vector<Victim> victims;
  DiskDirectory::Change change;
  while (victims.empty() || victims.size() < EvictBatchOf(victims.front().id)) {
    const EntryId id = TakeVictim(beside, victims.empty() ? kNoEntry : victims.front().id);
    if (id == kNoEntry) break;
    IndexShard& shard = parts_.index.ShardOf(id);
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(id);
    if (!entry.is_on_disk() || entry.Has(kDoomed)) continue;
    if (entry.is_in_use()) {
      entry.Set(kParkedDisk);
      continue;
    }
    victims.push_back(
        {id,
         entry.parent,
         {parts_.book.FingerprintOf(entry.key), true},
         entry.disk_page,
         entry.is_in_host() || entry.is_in_gpu() ? EvictionReason::kRoom : EvictionReason::kLost});
    change.delete_blocks.push_back({entry.ns, entry.key});
    entry.disk_page = kNoPage;
    parts_.events.TellLeft(entry, TierName::kDisk);
    entry.Set(kDiskUnsettled);
    ++entry.busy;
  }
  if (victims.empty()) return std::nullopt;
  const bool is_deleted = parts_.disk->Commit(change, /*is_synced=*/false).ok();
  uint32_t slot_pages = 0;
  for (Victim& victim : victims) {
    if (is_deleted) {
      victim.leaving.slot_pages = parts_.disk->SlotPages(victim.page);
      parts_.book.Remove(TierName::kDisk, victim.id, victim.parent, victim.leaving);
      slot_pages = parts_.disk->FreeSlot(victim.page);
      parts_.counters.OnCopyOut(TierName::kDisk, victim.id, *parts_.clock);
      parts_.counters.CountEviction(TierName::kDisk, ReasonOf(victim.reason, beside != kNoEntry));
    }
    {
      IndexShard& shard = parts_.index.ShardOf(victim.id);
      MutexLock lock(shard.mutex);
      IndexEntry& entry = shard.Get(victim.id);
      entry.Clear(kDiskUnsettled);
      if (!is_deleted) {
        entry.disk_page = victim.page;
        parts_.events.TellCame(entry, TierName::kDisk, BlockChange::kStored);
        entry.Set(kParkedDisk);
      }
    }
    residency_.EndBusy(victim.id);
  }
  return is_deleted ? std::optional<uint32_t>(slot_pages) : std::nullopt;
}

void DiskWriter::ClearDiskExtent(uint32_t victim_pages, uint32_t wanted_pages) {
  auto buffer = HostMemory::CreatePrivate(uint64_t{victim_pages} * kPageBytes);
  if (!buffer.ok()) return;
  std::vector<uint32_t> tried;
  for (int i = 0; i < kClearTriesMax; ++i) {
    const auto clearing = parts_.disk->BeginClear(victim_pages, wanted_pages, tried);
    if (!clearing.has_value()) return;
    std::vector<Move> moves;
    bool is_clear = true;
    for (const ExtentAllocator::Slot& slot : clearing->slots) {
      is_clear = BeginMove(slot, buffer->view(), &moves);
      if (!is_clear) break;
    }
    is_clear = EndMoves(moves) && is_clear;
    parts_.disk->EndClear(clearing->extent);
    if (is_clear) return;
    tried.push_back(clearing->extent);
  }
}

void DiskWriter::KeepBudget() {
  parts_.disk->MeasureDirectory();
  if (!parts_.disk->health().is_writable()) return;
  // Enough to empty one extent of small slots: more is done in the next rounds.
  const uint32_t tries_max = 2 * parts_.disk->slots_per_extent_max() + 64;
  for (uint32_t i = 0; i < tries_max && parts_.disk->is_over_budget(); ++i) {
    if (parts_.disk->GiveBackExtent()) continue;
    const std::optional<uint32_t> freed_pages = EvictFromDisk();
    if (!freed_pages.has_value()) return;
    ClearDiskExtent(*freed_pages, *freed_pages);
  }
}

// Copies the block into another slot. False when that cannot be done now.
bool DiskWriter::BeginMove(const ExtentAllocator::Slot& slot, MutableByteView buffer,
                           std::vector<Move>* moves) {
  Move move{slot.owner, slot.page};
  IndexShard& shard = parts_.index.ShardOf(move.id);
  uint32_t ns_number;
  {
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(move.id);
    if (entry.disk_page != move.from || entry.is_in_use() || entry.Has(kDoomed)) return false;
    ++entry.busy;
    ns_number = entry.ns;
  }
  const NamespacePtr ns = parts_.namespaces.Find(ns_number);
  std::optional<uint32_t> to;
  if (ns != nullptr && MakeRecord(move.id, *ns, &move.record))
    to = parts_.disk->AllocateSlot(static_cast<uint32_t>(buffer.size() / kPageBytes), move.id);
  // What was read wrongly once must not be what is there from now on.
  const bool is_written =
      to.has_value() && parts_.disk->ReadSlot(move.from, buffer).ok() &&
      Checksum(buffer.first(move.record.payload_bytes)) == move.record.checksum &&
      parts_.disk->WriteSlot(*to, buffer).ok();
  if (!is_written) {
    residency_.EndBusy(move.id);
    if (to.has_value()) parts_.disk->FreeSlot(*to);
    return false;
  }
  move.to = *to;
  move.record.extent = parts_.disk->ExtentOf(*to);
  move.record.extent_page = parts_.disk->ExtentPageOf(*to);
  moves->push_back(std::move(move));
  return true;
}

// Once the copies and then their records are synced the old slots are free: a block that was
// durable stays so. False when some have to stay where they are.
bool DiskWriter::EndMoves(std::vector<Move>& moves) {
  if (moves.empty()) return true;
  DiskDirectory::Change there, back;
  std::vector<uint32_t> pages;
  for (const Move& move : moves) {
    there.put_blocks.push_back(move.record);
    pages.push_back(move.to);
  }
  const bool is_there =
      parts_.disk->Sync(pages).ok() && parts_.disk->Commit(there, /*is_synced=*/true).ok();
  bool are_all_moved = is_there;
  for (Move& move : moves) {
    if (!is_there) break;
    IndexShard& shard = parts_.index.ShardOf(move.id);
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(move.id);
    // A read that began meanwhile is still at the old slot: then the block stays there.
    move.is_moved = entry.busy == 1;
    if (move.is_moved) {
      entry.disk_page = move.to;
      continue;
    }
    are_all_moved = false;
    move.record.extent = parts_.disk->ExtentOf(move.from);
    move.record.extent_page = parts_.disk->ExtentPageOf(move.from);
    back.put_blocks.push_back(move.record);
  }
  // If this fails, the next start finds records whose bytes do not match: misses.
  if (!back.put_blocks.empty()) (void)parts_.disk->Commit(back, /*is_synced=*/true);
  for (const Move& move : moves) {
    residency_.EndBusy(move.id);
    parts_.disk->FreeSlot(move.is_moved ? move.from : move.to);
    if (move.is_moved) parts_.counters.moved_blocks.Add();
  }
  return are_all_moved;
}

}  // namespace ibid
