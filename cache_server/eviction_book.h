// The eviction order of all tiers behind one lock, and the rule that only they together can keep:
// the last copy of a block does not leave while a child of it is in another tier.
//
// Thread safety: every method, from any thread. No I/O. Never called with another lock held.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/block_key.h"
#include "core/eviction/eviction_tier.h"
#include "core/mutex.h"

namespace ibid {

enum class TierName { kHost = 0, kDisk = 1, kGpu = 2 };
inline constexpr int kTiersCount = 3;
// Pages of each tier, by TierName.
using TierPages = std::array<uint64_t, kTiersCount>;

class EvictionBook {
 public:
  // `policy_name` must be one of EvictionPolicyNames; every tier has a policy of its own.
  explicit EvictionBook(absl::string_view policy_name);

  // By which the policies recognise a block after it was evicted. Seeded, because keys come from
  // clients: none of them shall be able to make many alike.
  uint64_t FingerprintOf(const BlockKey& key) const;

  // See EvictionTier for what each promises.
  void SetCapacity(TierName tier, uint64_t blocks);
  void SetRoom(TierName tier, uint64_t pages);
  // `owner` holds unless another tier has the block: then it is whose it was.
  bool Insert(TierName tier, EntryId b, EntryId parent, uint32_t slot_pages = 0,
              OwnerId owner = kNobody);
  void Admit(TierName tier, EntryId b, const BlockTraits& traits);
  void Remove(TierName tier, EntryId b, EntryId parent, const LeavingBlock& leaving);
  void PutBack(TierName tier, EntryId b);
  // In all tiers, but that kMustStay is kHigh in the gpu tier: it is the smallest, and what leaves
  // it has a copy below, or gets one.
  void SetPriority(EntryId b, KeepPriority priority, uint32_t slot_pages);
  KeepPriority priority(TierName tier, EntryId b);
  uint64_t kept_pages(TierName tier);
  // `b` was used on its own: a use counts in every tier that has the block.
  void Use(EntryId b);
  // A request asks for `chain`, of blocks of `owner`; so do its uses. O(keys).
  void Lookup(std::span<const ChainBlock> chain, const LookupTraits& traits,
              OwnerId owner = kNobody);

  // The quotas of all owners, by OwnerId; those beyond its end have none. Of several calls the one
  // with the highest `version` holds. True: there are blocks to be moved to where they now belong.
  // O(owners).
  bool SetQuotas(uint64_t version, std::span<const TierPages> quotas);
  // In every tier that has the block; it is `owner`'s from here on. Does nothing for one that is
  // where it belongs. `slot_pages` as in Insert.
  void Move(EntryId b, OwnerId owner, uint32_t slot_pages, const BlockTraits& traits);
  bool FitsQuota(TierName tier, EntryId b);
  // Whether it could fit, if nothing else of its owner were there.
  bool CanFitQuota(TierName tier, EntryId b, uint32_t slot_pages);
  // Whether one more block of this size leaves less than one in `divisor` of the quota. False
  // without a quota.
  bool IsNearQuota(TierName tier, EntryId b, uint32_t slot_pages, uint64_t divisor);
  // What the blocks of each owner take, by OwnerId, of those that had any.
  std::vector<TierPages> UsedPages();

  // As EvictionTier::TakeVictim, for blocks without a priority. When there is no such block: for
  // the host and the gpu tier a block that has a child there and is in another tier too, so that a
  // chain longer than the tier can pass through it; then a block whose last copy this is and that
  // has a child in other tiers only. This of each share, the one first that is first to lose. Then
  // the same for each priority up to `priority_max`, the lowest first. REQUIRES: priority_max is
  // not kMustStay.
  EntryId TakeVictim(TierName tier, KeepPriority priority_max = KeepPriority::kHigh);
  // The same of the share alone in which `b` is, which is in the tier.
  EntryId TakeVictimBeside(TierName tier, EntryId b,
                           KeepPriority priority_max = KeepPriority::kHigh);
  // Blocks in the share of `b`.
  uint64_t ShareBlocks(TierName tier, EntryId b);

 private:
  EntryId TakeOfPriority(TierName tier, KeepPriority priority) IBID_REQUIRES(mutex_);
  EntryId TakeOfShare(TierName tier, EvictionShare& share, KeepPriority priority)
      IBID_REQUIRES(mutex_);
  EvictionTier& Of(TierName tier) IBID_REQUIRES(mutex_) { return *tiers_[static_cast<int>(tier)]; }
  // Whether a tier other than `tier` has the block, or a child of it.
  bool IsElsewhere(TierName tier, EntryId b) IBID_REQUIRES(mutex_);
  bool HasChildElsewhere(TierName tier, EntryId b) IBID_REQUIRES(mutex_);
  void UndeferElsewhere(TierName tier, EntryId b) IBID_REQUIRES(mutex_);

  const uint64_t seed_;
  Mutex mutex_;
  BlockOwners owners_ IBID_GUARDED_BY(mutex_);
  uint64_t quotas_version_ IBID_GUARDED_BY(mutex_) = 0;
  std::vector<TierPages> quotas_ IBID_GUARDED_BY(mutex_);  // by owner
  const std::unique_ptr<EvictionTier> tiers_[kTiersCount] IBID_GUARDED_BY(mutex_);
};

}  // namespace ibid
