// Reads every copy of every block again. A damaged copy leaves; the block leaves with its last
// sound one, or when somebody else uses it in that moment.
//
// Thread safety: none; one run, on one thread. The store serves meanwhile.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "cache_server/residency.h"
#include "core/host_memory.h"

namespace ibid {

class BlockVerifier {
 public:
  // See BlockStore::Verify.
  BlockVerifier(StoreParts& parts, Residency& residency, uint64_t bytes_per_second,
                const std::function<bool(const VerifyReport&)>& on_progress)
      : parts_(parts),
        residency_(residency),
        bytes_per_second_(bytes_per_second),
        on_progress_(on_progress) {}

  absl::StatusOr<VerifyReport> Run();

 private:
  // A block whose copies neither move nor leave while it is looked at.
  struct Copies;

  absl::Status CheckBlock(EntryId id);
  bool BeginCheck(EntryId id, Copies* copies);
  bool IsHostCopyRight(const Copies& copies);
  bool IsGpuCopyRight(const Copies& copies);
  absl::StatusOr<bool> IsDiskCopyRight(const Copies& copies);
  void CountChecked(uint64_t bytes);
  absl::StatusOr<MutableByteView> BufferOf(uint64_t bytes);
  void Discard(const Copies& copies, std::span<const TierName> damaged);
  void Drop(const Copies& copies);
  absl::Status KeepPace();

  StoreParts& parts_;
  Residency& residency_;
  const uint64_t bytes_per_second_;
  const std::function<bool(const VerifyReport&)>& on_progress_;
  const SteadyClock clock_;
  const absl::Time began_ = clock_.Now();
  HostMemory buffer_;  // of the largest slot read so far
  VerifyReport report_;
};

}  // namespace ibid
