// The eviction order of all tiers behind one lock, and the rule that only they together can keep:
// the last copy of a block does not leave while a child of it is in another tier.
//
// Thread safety: every method, from any thread. No I/O. Never called with another lock held.
#pragma once

#include <memory>
#include <span>

#include "absl/strings/string_view.h"
#include "core/block_key.h"
#include "core/eviction/eviction_tier.h"
#include "core/mutex.h"

namespace ibid {

enum class TierName { kHost = 0, kDisk = 1, kGpu = 2 };
inline constexpr int kTiersCount = 3;

class EvictionBook {
 public:
  // `policy_name` must be one of EvictionPolicyNames; every tier has a policy of its own.
  explicit EvictionBook(absl::string_view policy_name);

  // By which the policies recognise a block after it was evicted. Seeded, because keys come from
  // clients: none of them shall be able to make many alike.
  uint64_t FingerprintOf(const BlockKey& key) const;

  // See EvictionTier for what each promises.
  void SetCapacity(TierName tier, uint64_t blocks);
  void Insert(TierName tier, EntryId b, EntryId parent, uint32_t slot_pages = 0);
  void Admit(TierName tier, EntryId b, const BlockTraits& traits);
  void Remove(TierName tier, EntryId b, EntryId parent, const LeavingBlock& leaving);
  void PutBack(TierName tier, EntryId b);
  // In the host and the disk tier: what the gpu tier evicts has a copy there, or gets one.
  void SetPriority(EntryId b, KeepPriority priority, uint32_t slot_pages);
  uint64_t kept_pages(TierName tier);
  // `b` was used on its own: a use counts in every tier that has the block.
  void Use(EntryId b);
  // A request asks for `chain`; so do its uses. O(keys).
  void Lookup(std::span<const ChainBlock> chain, uint32_t block_tokens);

  // As EvictionTier::TakeVictim, for blocks without a priority. When there is no such block: for
  // the host and the gpu tier a block that has a child there and is in another tier too, so that a
  // chain longer than the tier can pass through it; then a block whose last copy this is and that
  // has a child in other tiers only. Then the same for each priority up to `priority_max`, the
  // lowest first. REQUIRES: priority_max is not kMustStay.
  EntryId TakeVictim(TierName tier, KeepPriority priority_max = KeepPriority::kHigh);

 private:
  EntryId TakeOfPriority(TierName tier, KeepPriority priority) IBID_REQUIRES(mutex_);
  EvictionTier& Of(TierName tier) IBID_REQUIRES(mutex_) { return *tiers_[static_cast<int>(tier)]; }
  // Whether a tier other than `tier` has the block, or a child of it.
  bool IsElsewhere(TierName tier, EntryId b) IBID_REQUIRES(mutex_);
  bool HasChildElsewhere(TierName tier, EntryId b) IBID_REQUIRES(mutex_);
  void UndeferElsewhere(TierName tier, EntryId b) IBID_REQUIRES(mutex_);

  const uint64_t seed_;
  Mutex mutex_;
  const std::unique_ptr<EvictionTier> tiers_[kTiersCount] IBID_GUARDED_BY(mutex_);
};

}  // namespace ibid
