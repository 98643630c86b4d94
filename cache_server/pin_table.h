// The pins of a store: which blocks each names, and the priority that they have by it.
//
// A pinned block has a mapped entry in the index, stored or not, that one reference keeps; so a
// block that is published later finds its priority there.
//
// Thread safety: every method, from any thread. Its lock is the one exception to "one lock at a
// time": a shard's, or the book's, is taken inside of it, because a block's entry, its place in
// this table and its priority in the book must change in step. Never called with a lock held.
// Memory: about 200 bytes a pinned block, its entry included.
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/status/status.h"
#include "cache_server/block_index.h"
#include "cache_server/block_store.h"
#include "cache_server/eviction_book.h"
#include "cache_server/namespace_table.h"
#include "cache_server/tenant_table.h"
#include "core/mutex.h"

namespace ibid {

class PinTable {
 public:
  // `index`, `book` and `tenants` must outlive the table.
  PinTable(const BlockStoreOptions& options, BlockIndex* index, EvictionBook* book,
           const TenantTable* tenants);

  // Adds a pin, or replaces the one of this id. Appends the entries that are pinned no more to
  // `unpinned`: one reference of each is the caller's to drop. Errors: ResourceExhausted; nothing
  // is changed then. O(keys).
  absl::Status Put(PinId id, const NamespacePtr& ns, std::span<const BlockKey> keys,
                   KeepPriority priority, absl::Time ends_at, std::vector<EntryId>* unpinned);
  // False when there is none of this id. `unpinned` as above.
  bool Remove(PinId id, std::vector<EntryId>* unpinned);
  // Removes the pins that are over at `now`, and returns their ids. `unpinned` as above.
  std::vector<PinId> Expire(absl::Time now, std::vector<EntryId>* unpinned);
  bool Has(PinId id) const;

  // The entry of this block is found no more while something still used it: the pin names the one
  // that is found, from here on. Returns an entry of which one reference is the caller's to drop,
  // or kNoEntry.
  EntryId Rebind(uint32_t ns, const BlockKey& key);

  // One pin; nothing when there is none of this id. O(its blocks).
  std::optional<PinInfo> Describe(PinId id, absl::Time now) const;
  // In order.
  std::vector<PinId> ids() const;
  uint64_t pins_count() const { return pins_count_.load(std::memory_order_relaxed); }

 private:
  struct Pinned {
    EntryId entry = kNoEntry;
    uint32_t slot_pages = 0;
    OwnerId owner = kNobody;
    std::array<uint32_t, kKeepPriorityNames.size()> pins_count{};  // that name it, by priority

    KeepPriority priority() const;
  };
  // The references of pins to its elements stay valid.
  using PinnedBlocks = absl::node_hash_map<std::pair<uint32_t, BlockKey>, Pinned>;
  struct Pin {
    NamespacePtr ns;
    KeepPriority priority = KeepPriority::kNone;
    absl::Time ends_at;
    std::vector<PinnedBlocks::value_type*> blocks;  // as they were named
  };

  // What blocks of one tenant that must stay may take, and the limit that says so.
  struct OwnLimit {
    uint64_t pages_max = TenantQuota::kNoLimit;
    absl::string_view name;
    uint64_t bytes_max = 0;
    std::string tenant;
  };

  OwnLimit OwnLimitOf(const NamespaceInfo& ns) const;
  absl::Status CheckLimits(const NamespaceInfo& ns, std::span<const BlockKey> keys,
                           KeepPriority priority, bool is_new, const OwnLimit& own) const
      IBID_REQUIRES(mutex_);
  absl::Status CheckMustStay(const NamespaceInfo& ns, uint64_t new_pages, const OwnLimit& own) const
      IBID_REQUIRES(mutex_);
  // Finds or makes the entry of the block, and counts the table's reference on it.
  EntryId Bind(uint32_t ns, const BlockKey& key) IBID_REQUIRES(mutex_);
  // Undoes it, but for the reference, which is the caller's to drop without the lock.
  void Unbind(EntryId entry) IBID_REQUIRES(mutex_);
  // One pin of `priority` more (+1) or less (-1) names the block.
  void Count(Pinned& pinned, KeepPriority priority, int by) IBID_REQUIRES(mutex_);
  void LetGo(const Pin& pin, std::vector<EntryId>* unpinned) IBID_REQUIRES(mutex_);

  const uint32_t must_stay_percent_max_;
  const uint32_t pins_max_;
  const uint32_t pinned_blocks_max_;
  const uint64_t must_stay_pages_max_;
  const bool has_disk_;
  BlockIndex& index_;
  EvictionBook& book_;
  const TenantTable& tenants_;

  mutable Mutex mutex_;
  absl::flat_hash_map<uint64_t, Pin> pins_ IBID_GUARDED_BY(mutex_);
  PinnedBlocks blocks_ IBID_GUARDED_BY(mutex_);
  uint64_t must_stay_pages_ IBID_GUARDED_BY(mutex_) = 0;  // of blocks stored or not
  // The same of each tenant that has any.
  absl::flat_hash_map<OwnerId, uint64_t> own_must_stay_pages_ IBID_GUARDED_BY(mutex_);
  std::atomic<uint64_t> pins_count_{0};
};

}  // namespace ibid
