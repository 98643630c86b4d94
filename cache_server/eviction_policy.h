// Which block leaves a tier next. Pure bookkeeping: no clock, lock or I/O; its only clock counts
// the calls, so that the same object runs in the server, in a simulator and at any replay speed.
// One policy object serves one tier.
//
// Children before parents: a block whose child is in the same tier is no victim, so a prefix loses
// its end and never gets a hole. Who knows of another copy may ask for such an inner block all the
// same.
//
// Thread safety: none (the owner's lock). State: a fixed number of bytes a block.
#pragma once

#include <cstdint>

namespace ibid {

// Names a block while it has an entry in the index (block_index.h). Small and dense; reused after
// the entry is freed.
using EntryId = uint32_t;
inline constexpr EntryId kNoEntry = 0x7FFFFFFF;

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // `b` came into the tier. It becomes a candidate at its first OnUse or PutBack. `parent`
  // (kNoEntry for block 0) need not be in the tier. REQUIRES: not in the tier; `parent` stays the
  // same for as long as `b` names this block.
  virtual void OnInsert(EntryId b, EntryId parent) = 0;
  // `b` was used: it is a candidate, the hottest. Does nothing when `b` is not in the tier.
  virtual void OnUse(EntryId b) = 0;
  // `b` has left the tier. Does nothing when it is not there.
  virtual void OnRemove(EntryId b) = 0;

  // The block that should leave next, or kNoEntry; it has no child in the tier. It is no candidate
  // any more: the caller either removes it, or calls PutBack once what kept it is over. Amortised
  // O(1).
  virtual EntryId TakeVictim() = 0;
  // `b` is a candidate again, in the place that its last use gives it. Harmless at any time.
  virtual void PutBack(EntryId b) = 0;

  // A victim that should leave only when nothing else can.
  virtual void Defer(EntryId b) = 0;
  // The coldest deferred block, taken as by TakeVictim.
  virtual EntryId TakeDeferred() = 0;
  // Undoes Defer; does nothing for a block that is not deferred.
  virtual void Undefer(EntryId b) = 0;

  // The coldest of the blocks that were passed over because of a child in the tier, taken as by
  // TakeVictim.
  virtual EntryId TakeInner() = 0;
  // Undoes TakeInner; the block is the last to be taken so again.
  virtual void PutBackInner(EntryId b) = 0;

  virtual bool contains(EntryId b) const = 0;
  // How many blocks of the tier name `b` as parent, whether or not `b` is in the tier itself.
  virtual uint32_t children_count(EntryId b) const = 0;
};

}  // namespace ibid
