// The namespaces whose blocks the store may hold.
//
// Thread safety: every method, from any thread. Ownership: shared, because work in flight outlives
// a namespace.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "core/block_key.h"
#include "core/eviction/block_owners.h"
#include "core/kv_layout.h"
#include "core/mutex.h"

namespace ibid {

inline constexpr uint32_t kNoTenant = 0xFFFFFFFF;

struct NamespaceInfo {
  NamespaceId id;
  uint32_t number = 0;  // names it in the index and on disk; never used again
  KvLayout layout;
  uint64_t payload_bytes = 0;
  uint32_t slot_pages = 0;                  // that a payload takes
  std::atomic<bool> is_on_disk{false};      // the disk directory has its record
  std::atomic<bool> is_announced{false};    // a client has opened it, and the log says so
  std::atomic<uint32_t> tenant{kNoTenant};  // the first that opened it
  std::atomic<bool> is_closed{false};       // it was given up to make room for another

  // Whose its blocks are: its tenant's; the unnamed tenant's while it has none.
  OwnerId owner() const {
    const uint32_t number = tenant.load();
    return number == kNoTenant ? kNobody : static_cast<OwnerId>(number);
  }
  // False when it has a tenant.
  bool OwnIfNobodys(uint32_t new_tenant) {
    uint32_t nobody = kNoTenant;
    return tenant.compare_exchange_strong(nobody, new_tenant);
  }
};
using NamespacePtr = std::shared_ptr<NamespaceInfo>;

class NamespaceTable {
 public:
  explicit NamespaceTable(uint32_t namespaces_max) : namespaces_max_(namespaces_max) {}

  // The one of this id, made if need be. Errors: FailedPrecondition (known with another layout),
  // ResourceExhausted (namespaces_max).
  absl::StatusOr<NamespacePtr> Open(const NamespaceId& id, const KvLayout& layout);
  // One that the disk directory told of, with its tenant or kNoTenant. REQUIRES: neither id nor
  // number is known.
  void Restore(const NamespaceId& id, uint32_t number, const KvLayout& layout, uint32_t tenant);
  // The disk directory may have blocks of this number, of nobody's.
  void NeverUse(uint32_t number);

  // Null when it is not known.
  NamespacePtr Find(const NamespaceId& id) const;
  NamespacePtr Find(uint32_t number) const;

  // Gives up all namespaces but those in `numbers_used`, and returns them.
  std::vector<NamespacePtr> CloseAllExcept(const absl::flat_hash_set<uint32_t>& numbers_used);

  std::vector<NamespacePtr> All() const;
  size_t count() const;

 private:
  NamespacePtr Add(const NamespaceId& id, uint32_t number, const KvLayout& layout)
      IBID_REQUIRES(mutex_);

  const uint32_t namespaces_max_;
  mutable Mutex mutex_;
  absl::flat_hash_map<NamespaceId, NamespacePtr> by_id_ IBID_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint32_t, NamespacePtr> by_number_ IBID_GUARDED_BY(mutex_);
  uint32_t next_number_ IBID_GUARDED_BY(mutex_) = 1;
};

}  // namespace ibid
