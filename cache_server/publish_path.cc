// Invariant: a filling entry belongs to exactly one session, whose id is in `checksum`; it has at
// most one writer. While the writer's flag is set nothing but that writer takes the entry's host
// slot.
#include "cache_server/publish_path.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/limit.h"
#include "core/log.h"

namespace ibid {
namespace {

// Between two log lines of one place.
constexpr int64_t kLogPeriodSeconds = 10;
// How far an offer asks memory ahead for the places of its keys in the index.
constexpr size_t kPrefetchedKeys = 8;
// Keys of an offer that are booked with one reading of the clock.
constexpr size_t kKeysPerReading = 64;

absl::Status UnknownNamespace(const NamespaceId& ns) {
  return absl::FailedPreconditionError(
      absl::StrCat("namespace ", DigestToShortHex(ns.digest), " is not open"));
}

}  // namespace

absl::StatusOr<NamespacePtr> PublishPath::Admit(SessionId session, const NamespaceId& ns,
                                                size_t keys_count) {
  if (keys_count > parts_.options.chain_keys_max) {
    return LimitReached(absl::StrCat(keys_count, " keys in one call"), "chain_keys_max",
                        parts_.options.chain_keys_max);
  }
  NamespacePtr info = parts_.namespaces.Find(ns);
  if (info == nullptr) return UnknownNamespace(ns);
  IBID_RETURN_IF_ERROR(parts_.sessions.Touch(session, parts_.Now(), /*renew_leases=*/false));
  return info;
}

PublishPath::Offerer PublishPath::OffererOf(SessionId session, const NamespaceInfo& ns) const {
  const absl::Time now = parts_.Now();
  return {session, ns, now, parts_.tenants.CanPublish(ns.owner(), now)};
}

absl::StatusOr<std::vector<OfferState>> PublishPath::Offer(SessionId session, const NamespaceId& ns,
                                                           std::span<const BlockKey> keys) {
  IBID_ASSIGN_OR_RETURN(const NamespacePtr info, Admit(session, ns, keys.size()));
  if (parts_.is_refusing_blocks) return std::vector(keys.size(), OfferState::kRejected);
  std::vector<OfferState> states;
  states.reserve(keys.size());
  std::vector<EntryId> used;
  Offerer by = OffererOf(session, *info);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i % kKeysPerReading == 0) by.now = parts_.Now();
    if (i + kPrefetchedKeys < keys.size()) {
      parts_.index.PrefetchPlace(info->number, keys[i + kPrefetchedKeys]);
    }
    EntryId id = kNoEntry;
    bool must_write = residency_.WritesOnUse();
    states.push_back(OfferOne(by, keys[i], &id, &must_write));
    if (id == kNoEntry) continue;
    used.push_back(id);
    if (must_write) residency_.QueueWrite(id, info);
  }
  for (const EntryId id : used) parts_.book.Use(id);
  return states;
}

absl::StatusOr<ClaimResult> PublishPath::Claim(SessionId session, const NamespaceId& ns,
                                               std::span<const BlockKey> keys,
                                               absl::Duration take_over_after) {
  IBID_ASSIGN_OR_RETURN(const NamespacePtr info, Admit(session, ns, keys.size()));
  ClaimResult result;
  if (parts_.is_refusing_blocks) return ClaimResult{0, OfferState::kRejected};
  Offerer by = OffererOf(session, *info);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i % kKeysPerReading == 0) by.now = parts_.Now();
    EntryId used = kNoEntry;
    bool must_write = false;
    result.refusal = OfferOne(by, keys[i], &used, &must_write);
    if (result.refusal == OfferState::kPending && by.can_publish &&
        RevokeStale(*info, keys[i], by.now - take_over_after)) {
      result.refusal = OfferOne(by, keys[i], &used, &must_write);
    }
    if (result.refusal != OfferState::kWanted) break;
    ++result.wanted_count;
  }
  return result;
}

bool PublishPath::RevokeStale(const NamespaceInfo& ns, const BlockKey& key, absl::Time booked_by) {
  IndexShard& shard = parts_.index.ShardOf(key);
  EntryId id;
  SessionId owner;
  {
    MutexLock lock(shard.mutex);
    id = shard.Find(ns.number, key);
    if (id == kNoEntry || !shard.Get(id).is_filling()) return false;
    owner.value = shard.Get(id).details().checksum;
  }
  // Of several who find it stale one gets here: the others find a reservation that is new.
  if (!parts_.sessions.TakeStaleReservation(owner, id, booked_by)) return false;
  Revoke(owner, id);
  return true;
}

void PublishPath::Withdraw(SessionId session, const NamespaceId& ns,
                           std::span<const BlockKey> keys) {
  const NamespacePtr info = parts_.namespaces.Find(ns);
  if (info == nullptr) return;
  // From the end: who waits for the first of them finds all of them free.
  for (size_t i = keys.size(); i-- > 0;) {
    const BlockKey& key = keys[i];
    IndexShard& shard = parts_.index.ShardOf(key);
    EntryId id;
    {
      MutexLock lock(shard.mutex);
      id = shard.Find(info->number, key);
      if (id == kNoEntry) continue;
      const IndexEntry& entry = shard.Get(id);
      const bool is_own = entry.is_filling() && entry.details().checksum == session.value;
      if (!is_own || entry.Has(kHasWriter)) continue;
    }
    parts_.sessions.RemoveReservation(session, id);
    Revoke(session, id);
  }
}

// A block that only a dead disk has is one that nobody has: it may be computed and stored again. As
// in a drop its record is void first (recovery.cc); should the block stay after all, it is in the
// index, and its record is not deleted.
void PublishPath::ForgetUnreadable(const NamespaceInfo& ns, const BlockKey& key) {
  if (parts_.disk == nullptr || parts_.disk->health().is_readable()) return;
  IndexShard& shard = parts_.index.ShardOf(key);
  // Its entry, if it is on disk only and not in use.
  const auto find = [&]() IBID_NO_THREAD_SAFETY_ANALYSIS -> EntryId {
    const EntryId id = shard.Find(ns.number, key);
    if (id == kNoEntry) return kNoEntry;
    const IndexEntry& entry = shard.Get(id);
    const bool is_only_on_disk =
        entry.is_on_disk() && !entry.is_in_host() && !entry.is_in_gpu() && !entry.is_filling();
    return is_only_on_disk && !entry.is_in_use() ? id : kNoEntry;
  };
  {
    MutexLock lock(shard.mutex);
    if (find() == kNoEntry) return;
  }
  recovery_.Forget(ns.number, key);
  Aftermath after;
  {
    MutexLock lock(shard.mutex);
    const EntryId id = find();
    if (id == kNoEntry) return;
    after = residency_.Remove(shard, id);
  }
  residency_.Finish(after);
}

OfferState PublishPath::OfferOne(const Offerer& by, const BlockKey& key, EntryId* used,
                                 bool* must_write) {
  const NamespaceInfo& ns = by.ns;
  if (recovery_.is_running()) recovery_.IndexOne(ns, key);
  ForgetUnreadable(ns, key);
  IndexShard& shard = parts_.index.ShardOf(key);
  EntryId id;
  bool is_refused = false;  // by the rate of its tenant
  {
    MutexLock lock(shard.mutex);
    id = shard.Find(ns.number, key);
    if (id == kNoEntry && by.can_publish) id = shard.Insert(ns.number, key);
    is_refused = id == kNoEntry;
    if (!is_refused) {
      IndexEntry& entry = shard.Get(id);
      if (entry.is_resident()) {
        *used = id;
        *must_write = *must_write && Residency::ClaimWrite(entry);
        return OfferState::kPresent;
      }
      // Bytes on their way in or out: what comes of it is not known yet.
      if (entry.is_in_use()) return OfferState::kPending;
      const bool is_own = entry.details().checksum == by.session.value && !entry.Has(kHasWriter);
      if (entry.is_filling() && !is_own) return OfferState::kPending;
      is_refused = !by.can_publish && !entry.is_filling();
      if (!is_refused) {
        entry.Set(kFilling);
        entry.details().checksum = by.session.value;
      }
    }
  }
  if (is_refused) {
    parts_.tenants.CountRefused(ns.owner(), 1);
    parts_.counters.rejected_blocks.Add();
    return OfferState::kRejected;
  }
  if (parts_.sessions.AddReservation(by.session, id, by.now).ok()) return OfferState::kWanted;
  Revoke(by.session, id);
  parts_.counters.rejected_blocks.Add();
  return OfferState::kRejected;
}

absl::StatusOr<EntryId> PublishPath::BeginWriting(SessionId session, const NamespaceInfo& ns,
                                                  const ChainLink& link) {
  EntryId parent = residency_.RefParent(ns, link.parent, link.position);
  absl::Status refusal;
  IndexShard& shard = parts_.index.ShardOf(link.key);
  EntryId id;
  {
    MutexLock lock(shard.mutex);
    id = shard.Find(ns.number, link.key);
    if (id == kNoEntry) id = shard.Insert(ns.number, link.key);
    IndexEntry& entry = shard.Get(id);
    if (entry.is_resident()) {
      refusal = absl::AlreadyExistsError("present");
    } else if (entry.is_in_use() || entry.Has(kHasWriter) ||
               (entry.is_filling() && entry.details().checksum != session.value)) {
      refusal = absl::AlreadyExistsError("pending");
    } else {
      // A child that came first may have told another position, by mistake or malice. The block is
      // stored all the same, without its place in the chain: only the order of eviction suffers.
      const bool is_place_known =
          !entry.Has(kPositionKnown) || entry.details().position == link.position;
      // The parent that it had may have been dropped while somebody held it, and stored anew.
      if (is_place_known && parent != kNoEntry) std::swap(entry.parent, parent);
      if (is_place_known) entry.details().position = link.position;
      entry.Set(kFilling);
      entry.Set(kHasWriter);
      entry.Set(kPositionKnown);
      entry.details().checksum = session.value;
      entry.details().token_count = link.token_count;
    }
  }
  if (parent != kNoEntry) residency_.DropRef(parent);
  if (!refusal.ok()) return refusal;
  return id;
}

absl::StatusOr<WriterSlot> PublishPath::Reserve(SessionId session, const NamespaceId& ns,
                                                const ChainLink& link) {
  const NamespacePtr info = parts_.namespaces.Find(ns);
  if (info == nullptr) return UnknownNamespace(ns);
  parts_.index.PrefetchPlace(info->number, link.key);
  if (parts_.is_refusing_blocks) {
    return absl::UnavailableError("the server is draining and takes no more blocks");
  }
  if (link.token_count == 0 || link.token_count > info->layout.block_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("token_count ", link.token_count,
                                                   " is not in 1..", info->layout.block_tokens));
  }
  if (link.parent == link.key)
    return absl::InvalidArgumentError("a block cannot be its own parent");
  const absl::Time now = parts_.Now();
  IBID_RETURN_IF_ERROR(parts_.sessions.Touch(session, now, /*renew_leases=*/false));
  if (recovery_.is_running()) recovery_.IndexOne(*info, link.key);
  ForgetUnreadable(*info, link.key);
  IBID_ASSIGN_OR_RETURN(const EntryId id, BeginWriting(session, *info, link));
  WriterSlot slot{id, session, info, link, {}};
  if (const absl::Status booked = parts_.sessions.AddReservation(session, id, now); !booked.ok()) {
    Abort(slot);
    if (absl::IsResourceExhausted(booked)) parts_.counters.rejected_blocks.Add();
    return booked;
  }
  if (const absl::Status paid = parts_.tenants.TakePublish(info->owner(), info->payload_bytes, now);
      !paid.ok()) {
    Abort(slot);
    parts_.counters.rejected_blocks.Add();
    return paid;
  }
  EntryId parent;
  IndexShard& shard = parts_.index.ShardOf(id);
  {
    MutexLock lock(shard.mutex);
    parent = shard.Get(id).parent;
  }
  const absl::StatusOr<uint32_t> page = TakeRoom(id, parent, *info);
  if (!page.ok()) {
    Abort(slot);
    parts_.counters.rejected_blocks.Add();
    return page.status();
  }
  {
    MutexLock lock(shard.mutex);
    shard.Get(id).host_page = *page;
  }
  slot.payload = parts_.arena->View(*page, info->payload_bytes);
  residency_.DemoteAhead();
  residency_.DemoteAheadOf(id, *info);
  return slot;
}

// The slot of a block that is no candidate before Commit.
absl::StatusOr<uint32_t> PublishPath::TakeRoom(EntryId id, EntryId parent,
                                               const NamespaceInfo& ns) {
  constexpr Residency::Room kRoom = Residency::Room::kEvict;
  if (!residency_.EnterHost(id, parent, ns, kRoom)) {
    parts_.tenants.CountRefused(ns.owner(), 1);
    return LimitReached(
        absl::StrCat("tenant \"", parts_.tenants.NameOf(ns.owner()),
                     "\" is at its quota of the host tier, and nothing of it can leave: it is "
                     "pinned, leased, being read, being filled or being written"),
        "host_bytes_max", parts_.tenants.QuotaOf(ns.owner()).host_bytes_max);
  }
  const auto page = residency_.AllocateHost(ns.slot_pages, id, kRoom);
  if (page.has_value()) return *page;
  residency_.LeaveUnseen(TierName::kHost, id, parent, ns);
  return LimitReached(
      "no room: the host tier is pinned, leased, being read, being filled or being written",
      "host_bytes_max", parts_.options.host_bytes_max);
}

void PublishPath::Commit(WriterSlot slot, uint64_t checksum, uint64_t computed, bool durable,
                         std::function<void(absl::Status)> done) {
  if (checksum != computed) {
    parts_.counters.corrupt_blocks.Add();
    IBID_LOG_EVERY(kLogPeriodSeconds, warn,
                   "publish: a block's checksum is {:x}, its publisher says {:x}", computed,
                   checksum);
    Abort(slot);
    return done(absl::DataLossError("the payload's checksum is not the publisher's"));
  }
  // Before anyone can see, drop and reuse the entry: its id must not be taken for another's
  // booking.
  parts_.sessions.RemoveReservation(slot.session, slot.id);
  const bool has_disk = parts_.disk != nullptr;
  IndexShard& shard = parts_.index.ShardOf(slot.id);
  bool is_void = false, wakes_waiters = false;
  BlockTraits traits;
  {
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(slot.id);
    traits = residency_.TraitsOf(entry, *slot.ns);
    is_void = entry.Has(kDoomed) || slot.ns->is_closed.load();
    if (!is_void) {
      entry.Clear(kFilling);
      entry.Clear(kHasWriter);
      entry.details().checksum = checksum;
      const bool is_place_known =
          entry.details().position == slot.link.position &&
          (entry.parent != kNoEntry || slot.link.parent == RootParent(slot.ns->id));
      parts_.events.TellNew(entry, TierName::kHost, *slot.ns,
                            is_place_known ? &slot.link.parent : nullptr);
      ++entry.refs;  // the disk writer's, or ours until the policy knows the block
      if (has_disk && parts_.options.disk_write == DiskWriteMode::kThrough) entry.Set(kWriteQueued);
      if (has_disk && durable) ++entry.busy;  // its bytes must not leave before they are written
      wakes_waiters = entry.Has(kHasWaiters);
      entry.Clear(kHasWaiters);
    }
  }
  if (is_void) {
    Abort(slot);
    return done(WhyVoid(slot));
  }
  if (wakes_waiters) parts_.waits.WakeEntry(slot.id);
  parts_.book.Admit(TierName::kHost, slot.id, traits);
  parts_.counters.OnCopyIn(TierName::kHost, slot.id, *parts_.clock);
  parts_.counters.published_blocks.Add();
  if (has_disk) {
    QueueWrite(slot, durable ? done : nullptr);
    if (durable) return;
  } else {
    residency_.DropRef(slot.id);
  }
  done(durable ? absl::UnavailableError("durable: there is no disk tier") : absl::OkStatus());
}

absl::Status PublishPath::WhyVoid(const WriterSlot& slot) {
  if (slot.ns->is_closed.load()) return UnknownNamespace(slot.ns->id);
  IBID_RETURN_IF_ERROR(parts_.sessions.Touch(slot.session, parts_.Now(), /*renew_leases=*/false));
  return absl::AbortedError(
      "the reservation is void: it expired, another took the block over, or it was dropped");
}

void PublishPath::QueueWrite(const WriterSlot& slot,
                             std::function<void(absl::Status)> durable_done) {
  const bool is_durable = static_cast<bool>(durable_done);
  if (is_durable || parts_.options.disk_write == DiskWriteMode::kThrough) {
    DiskWrite write{slot.id, slot.ns, /*evict_after=*/false, std::move(durable_done)};
    if (!(is_durable && recovery_.is_failing()) && parts_.disk_queue.PushWrite(std::move(write))) {
      return;
    }
    durable_done = std::move(write.durable_done);
    parts_.counters.skipped_writes.Add();
    IndexShard& shard = parts_.index.ShardOf(slot.id);
    MutexLock lock(shard.mutex);
    shard.Get(slot.id).Clear(kWriteQueued);  // the next use of the block tries again
  }
  if (is_durable) {
    residency_.EndBusy(slot.id);
    durable_done(absl::UnavailableError(
        recovery_.is_failing()
            ? absl::string_view("durable: the disk tier's directory cannot be read")
            : absl::string_view("durable: disk_write_queue_max is reached, or the server stops")));
  }
  residency_.DropRef(slot.id);
}

void PublishPath::Abort(const WriterSlot& slot) {
  parts_.sessions.RemoveReservation(slot.session, slot.id);
  Release(slot.id);
}

// The writer leaves without a block.
void PublishPath::Release(EntryId id) {
  IndexShard& shard = parts_.index.ShardOf(id);
  Aftermath after;
  {
    MutexLock lock(shard.mutex);
    IndexEntry& entry = shard.Get(id);
    IBID_CHECK(entry.Has(kHasWriter));
    entry.Clear(kHasWriter);
    after = entry.Has(kDoomed) ? residency_.Settle(shard, id) : residency_.Remove(shard, id);
  }
  residency_.Finish(after);
}

void PublishPath::Revoke(SessionId session, EntryId id) {
  IndexShard& shard = parts_.index.ShardOf(id);
  Aftermath after;
  {
    MutexLock lock(shard.mutex);
    const IndexEntry& entry = shard.Get(id);
    if (!entry.Has(kMapped) || !entry.is_filling() || entry.details().checksum != session.value)
      return;
    after = residency_.Remove(shard, id);
  }
  residency_.Finish(after);
}

}  // namespace ibid
