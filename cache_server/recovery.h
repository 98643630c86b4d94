// Brings the disk directory's records into the index: all of them, in the background, and before
// that any one that is asked for. While it runs nothing is written to disk, because free room is
// not known yet.
//
// Thread safety: every method, from any thread.
#pragma once

#include <atomic>
#include <thread>

#include "absl/container/flat_hash_set.h"
#include "cache_server/residency.h"

namespace ibid {

class Recovery {
 public:
  Recovery(StoreParts& parts, Residency& residency) : parts_(parts), residency_(residency) {}
  ~Recovery();

  // Restores the namespaces (at once) and starts the scan. REQUIRES: called once; there is a disk
  // tier.
  absl::Status Start();
  bool is_running() const { return is_running_.load(std::memory_order_acquire); }
  // Running, and the last scan failed: nobody knows when blocks can be written.
  bool is_failing() const { return is_failing_.load(std::memory_order_acquire); }

  // While running: looks the block up in the directory and indexes it if it is there. One point
  // read of the directory. True when the block may be in the index now.
  bool IndexOne(const NamespaceInfo& ns, const BlockKey& key);

  // While running: records of these blocks are void, because the blocks were dropped.
  void Forget(uint32_t ns, const BlockKey& key);
  void ForgetNamespace(uint32_t ns);

 private:
  void Run();
  void RestoreNamespaces(std::vector<DiskNamespace> stored);
  // The one that the record names, or kNoTenant.
  uint32_t TenantOf(const DiskNamespace& ns);
  void AnswerDurableWrites(const absl::Status& why);
  void DeleteVoidNamespaces();
  absl::Status ScanAll();
  void IndexScanned(const DiskRecord& record);
  bool IsForgotten(uint32_t ns, const BlockKey& key) IBID_EXCLUDES(mutex_);
  void Index(const NamespaceInfo& ns, const DiskRecord& record);
  void DropRecord(const DiskRecord& record);
  void BringIn(const NamespaceInfo& ns, IndexShard& shard, EntryId id, const DiskRecord& record);
  void WaitUntilIndexed(const NamespaceInfo& ns, const BlockKey& key);

  StoreParts& parts_;
  Residency& residency_;
  std::atomic<bool> is_running_{false};
  std::atomic<bool> is_failing_{false};
  std::atomic<bool> is_stopping_{false};
  std::atomic<uint64_t> indexed_count_{0};
  std::atomic<uint64_t> void_count_{0};
  std::vector<uint32_t> void_namespaces_;  // their records go after those of their blocks
  Mutex mutex_;
  CondVar stopping_;
  CondVar lookups_done_;
  uint64_t lookups_count_ IBID_GUARDED_BY(mutex_) = 0;  // calls of IndexOne
  absl::flat_hash_set<std::pair<uint32_t, BlockKey>> forgotten_ IBID_GUARDED_BY(mutex_);
  absl::flat_hash_set<uint32_t> forgotten_namespaces_ IBID_GUARDED_BY(mutex_);
  // Whose records are queued for removal.
  absl::flat_hash_set<std::pair<uint32_t, BlockKey>> voided_ IBID_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace ibid
