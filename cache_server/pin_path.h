// How pins come and go: by an operator's word, by the end of their time, and over a restart.
//
// Thread safety: every method, from any thread. Durability: with a disk tier, a pin is recorded
// there when Pin returns, synced.
#pragma once

#include <span>
#include <vector>

#include "cache_server/residency.h"
#include "core/mutex.h"

namespace ibid {

class PinPath {
 public:
  PinPath(StoreParts& parts, Residency& residency) : parts_(parts), residency_(residency) {}

  // Takes over the pins of which the disk tier has a record. REQUIRES: there is a disk tier, and
  // its namespaces are known. Errors: Unavailable.
  absl::Status Restore();

  // See BlockStore.
  absl::StatusOr<PinResult> Pin(PinId id, const NamespaceId& ns, std::span<const BlockKey> keys,
                                const PinOptions& options);
  absl::Status Unpin(PinId id);
  std::vector<PinInfo> List() const;
  // Ends the pins whose time is over.
  void Expire();

 private:
  // Whether the record is on disk.
  bool Record(PinId id, NamespaceInfo& ns, std::span<const BlockKey> keys,
              const PinOptions& options);
  void DeleteRecords(const std::vector<PinId>& ids);
  void DropRefs(const std::vector<EntryId>& unpinned);

  StoreParts& parts_;
  Residency& residency_;
  Mutex records_mutex_;  // while records change and the table is asked for what they should be
};

}  // namespace ibid
