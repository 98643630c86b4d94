// Match: how blocks are found, waited for and leased. Acquire is in read_acquire.cc.
#include "cache_server/read_path.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/limit.h"

namespace ibid {
namespace {

// Leases of one block: more of them do not match it. Reads may add to them.
constexpr uint32_t kHoldsMax = 4'000'000'000;
// Keys that a scan of a chain looks up at once: some at first, then so many times those before.
constexpr size_t kScanWindowMin = 128;
constexpr size_t kScanWindowGrowth = 8;
constexpr size_t kScanWindowMax = 1'024;
// Times that a match looks again because others of its session took the room for its lease.
constexpr int kLeaseTriesMax = 4;

absl::Status UnknownNamespace(const NamespaceId& ns) {
  return absl::FailedPreconditionError(
      absl::StrCat("namespace ", DigestToShortHex(ns.digest), " is not open"));
}

}  // namespace

ReadPath::ReadPath(StoreParts& parts, Residency& residency, Recovery& recovery, GpuMover* mover)
    : parts_(parts), residency_(residency), recovery_(recovery), mover_(mover) {
  if (parts_.disk != nullptr || parts_.gpu != nullptr) {
    executor_ = std::make_unique<Executor>("ibid-read", parts_.options.io_threads_count,
                                           parts_.options.acquire_queue_max);
  }
  parts_.waits.Start([this](std::unique_ptr<MatchWait> wait, MatchWaits::Wake wake) {
    if (wake == MatchWaits::Wake::kSettled) return GoOn(std::move(wait));
    if (wake == MatchWaits::Wake::kOver) return Answer(std::move(wait));
    parts_.waits.Forget(*wait);
    wait->done(absl::CancelledError("the match was cancelled while it waited"));
  });
}

ReadPath::~ReadPath() { parts_.waits.Stop(); }

absl::Status ReadPath::Admit(SessionId session, size_t keys_count, const MatchOptions& options) {
  if (keys_count > parts_.options.chain_keys_max) {
    return LimitReached(absl::StrCat(keys_count, " keys in one call"), "chain_keys_max",
                        parts_.options.chain_keys_max);
  }
  if (!options.lease) return absl::OkStatus();
  return parts_.sessions.Touch(session, parts_.Now(), /*renew_leases=*/false);
}

absl::StatusOr<std::vector<NamespacePtr>> ReadPath::CheckShards(
    std::span<const ShardChain> shards) {
  if (shards.empty()) return absl::InvalidArgumentError("a match of no shard");
  std::vector<NamespacePtr> namespaces;
  for (const ShardChain& shard : shards) {
    if (shard.keys.size() != shards.front().keys.size()) {
      return absl::InvalidArgumentError(absl::StrCat("the shards of one match have ",
                                                     shards.front().keys.size(), " and ",
                                                     shard.keys.size(), " keys"));
    }
    namespaces.push_back(parts_.namespaces.Find(shard.ns));
    if (namespaces.back() == nullptr) return UnknownNamespace(shard.ns);
  }
  return namespaces;
}

std::vector<ReadPath::ShardView> ReadPath::ViewsOf(const MatchWait& wait) {
  std::vector<ShardView> views;
  for (size_t i = 0; i < wait.shards.size(); ++i)
    views.push_back({wait.namespaces[i], wait.shards[i].keys});
  return views;
}

absl::StatusOr<MatchResult> ReadPath::Match(SessionId session, const NamespaceId& ns,
                                            std::span<const BlockKey> chain,
                                            const MatchOptions& options) {
  if (options.wait_pending <= absl::ZeroDuration()) {
    const ShardView only{parts_.namespaces.Find(ns), chain};
    if (only.ns == nullptr) return UnknownNamespace(ns);
    IBID_RETURN_IF_ERROR(Admit(session, chain.size(), options));
    return MatchNow(session, {&only, 1}, options);
  }
  struct Answer {
    Mutex mutex;
    CondVar changed;
    std::optional<absl::StatusOr<MatchResult>> result IBID_GUARDED_BY(mutex);
  };
  const auto answer = std::make_shared<Answer>();
  StartMatch(session, {ShardChain{ns, {chain.begin(), chain.end()}}}, options,
             [answer](absl::StatusOr<MatchResult> result) {
               MutexLock lock(answer->mutex);
               answer->result = std::move(result);
               answer->changed.NotifyAll();
             });
  MutexLock lock(answer->mutex);
  while (!answer->result.has_value()) answer->changed.Wait(answer->mutex);
  return *std::move(answer->result);
}

MatchWaitId ReadPath::StartMatch(SessionId session, std::vector<ShardChain> shards,
                                 const MatchOptions& options, MatchDone done) {
  auto wait = std::make_unique<MatchWait>();
  absl::StatusOr<std::vector<NamespacePtr>> namespaces = CheckShards(shards);
  absl::Status status = namespaces.status();
  if (status.ok()) {
    wait->session = session;
    wait->shards = std::move(shards);
    wait->namespaces = *std::move(namespaces);
    wait->options = options;
    status = Admit(session, wait->keys_count(), options);
  }
  if (!status.ok()) {
    done(std::move(status));
    return {};
  }
  if (options.wait_pending <= absl::ZeroDuration() || !parts_.waits.Admit(wait.get())) {
    done(MatchNow(session, ViewsOf(*wait), options));
    return {};
  }
  wait->done = std::move(done);
  const MatchWaitId id{wait->id};
  GoOn(std::move(wait));
  return id;
}

// Goes along the chains from one pending block to the next: O(keys) in all.
void ReadPath::GoOn(std::unique_ptr<MatchWait> wait) {
  const bool is_disk_readable = parts_.disk != nullptr && parts_.disk->health().is_readable();
  const size_t length = wait->shards.front().keys.size();
  for (; wait->position < length; ++wait->position) {
    for (size_t i = 0; i < wait->shards.size(); ++i) {
      const NamespacePtr ns = wait->namespaces[i];
      const BlockKey key = wait->shards[i].keys[wait->position];
      const Found found = LookOrRecover(*ns, key, is_disk_readable, /*adds_hold=*/false);
      if (found.is_resident) continue;
      if (!found.is_pending) return Answer(std::move(wait));
      parts_.waits.Park(found.id, std::move(wait));
      bool is_settled = true;
      {
        IndexShard& shard = parts_.index.ShardOf(key);
        MutexLock lock(shard.mutex);
        is_settled = shard.Find(ns->number, key) != found.id || !shard.Get(found.id).is_filling();
        if (!is_settled) shard.Get(found.id).Set(kHasWaiters);
      }
      // What settled before the flag was there has woken nobody.
      if (is_settled) parts_.waits.WakeEntry(found.id);
      return;
    }
  }
  Answer(std::move(wait));
}

void ReadPath::Answer(std::unique_ptr<MatchWait> wait) {
  absl::StatusOr<MatchResult> result = MatchNow(wait->session, ViewsOf(*wait), wait->options);
  parts_.waits.Forget(*wait);
  wait->done(std::move(result));
}

absl::StatusOr<MatchResult> ReadPath::MatchNow(SessionId session, std::span<const ShardView> shards,
                                               const MatchOptions& options) {
  if (!options.lease) return Scan(shards, 0, nullptr);
  for (int tries = 1;; ++tries) {
    std::vector<HeldBlocks> held;
    MatchResult result = Scan(shards, parts_.sessions.LeaseRoom(session), &held);
    if (tries == 1) CountMatch(shards, held, result.matched_count, options);
    if (result.matched_count == 0) return result;
    const auto lease = parts_.sessions.AddLease(session, options.lease_id, &held, parts_.Now());
    if (lease.ok()) {
      result.lease = *lease;
      return result;
    }
    uint64_t taken_bytes = 0;
    for (const HeldBlocks& blocks : held) {
      taken_bytes += blocks.taken_bytes();
      residency_.EndHolds(blocks);
    }
    const bool has_lost_room = taken_bytes > parts_.sessions.LeaseRoom(session);
    if (!has_lost_room || result.matched_count == 1 || tries == kLeaseTriesMax) {
      return lease.status();
    }
  }
}

void ReadPath::CountMatch(std::span<const ShardView> shards, std::span<const HeldBlocks> held,
                          uint32_t matched_count, const MatchOptions& options) {
  for (size_t i = 0; i < shards.size(); ++i) {
    if (!options.is_repeat) {
      CountLookup(shards[i], held[i].ids, options);
      parts_.demand.Count(shards[i].ns->id, shards[i].keys, matched_count);
    }
    if (mover_ != nullptr) mover_->Offer(held[i].ids, shards[i].keys);
  }
}

// One use of what was found, and a sign of what will be published.
void ReadPath::CountLookup(const ShardView& shard, std::span<const EntryId> found,
                           const MatchOptions& options) {
  std::vector<ChainBlock> blocks(shard.keys.size());
  for (size_t i = 0; i < shard.keys.size(); ++i) {
    blocks[i].fingerprint = parts_.book.FingerprintOf(shard.keys[i]);
    if (i < found.size()) blocks[i].id = found[i];
  }
  LookupTraits traits;
  traits.block_tokens = shard.ns->layout.block_tokens;
  traits.first_position = options.first_position;
  traits.is_part = options.is_part;
  parts_.book.Lookup(blocks, traits, shard.ns->owner());
}

ReadPath::Found ReadPath::Look(const NamespaceInfo& ns, const BlockKey& key, bool is_disk_readable,
                               bool adds_hold) {
  IndexShard& shard = parts_.index.ShardOf(key);
  MutexLock lock(shard.mutex);
  const Found found = Describe(shard, shard.Find(ns.number, key), is_disk_readable, adds_hold);
  if (found.is_first_hold) residency_.CountPinned(1, ns.payload_bytes);
  return found;
}

ReadPath::Found ReadPath::Describe(IndexShard& shard, EntryId id, bool is_disk_readable,
                                   bool adds_hold) {
  Found found;
  found.id = id;
  if (id == kNoEntry) return found;
  IndexEntry& entry = shard.Get(id);
  found.is_in_host = entry.is_in_host();
  found.is_in_gpu = entry.is_in_gpu();
  found.is_resident =
      found.is_in_host || found.is_in_gpu || (entry.is_on_disk() && is_disk_readable);
  found.is_pending = !found.is_resident && entry.is_filling();
  if (found.is_resident && adds_hold) {
    found.is_resident = found.is_held = entry.holds < kHoldsMax;
    found.is_first_hold = found.is_held && entry.holds++ == 0;
    found.is_unwritten = found.is_held && Residency::IsUnwritten(entry);
  }
  return found;
}

void ReadPath::LookMany(const NamespaceInfo& ns, std::span<const BlockKey> keys,
                        bool is_disk_readable, bool adds_hold, std::vector<Found>* found) {
  static_assert(BlockIndex::kShardsCount <= 256);
  // A counting sort: the keys' numbers in order of shard.
  std::array<uint32_t, BlockIndex::kShardsCount + 1> ends{};
  std::array<uint64_t, kScanWindowMax> hashes;
  std::array<uint8_t, kScanWindowMax> numbers;  // of shards
  std::array<uint32_t, kScanWindowMax> order;
  for (uint32_t i = 0; i < keys.size(); ++i) {
    const BlockIndex::Place place = parts_.index.PlaceOf(ns.number, keys[i]);
    parts_.index.shard(place.shard).PrefetchPlace(place.hash);
    ++ends[place.shard + 1];
    numbers[i] = static_cast<uint8_t>(place.shard);
    hashes[i] = place.hash;
  }
  for (uint32_t shard = 0; shard < BlockIndex::kShardsCount; ++shard)
    ends[shard + 1] += ends[shard];
  std::array<uint32_t, BlockIndex::kShardsCount> next;
  std::copy(ends.begin(), ends.end() - 1, next.begin());
  for (uint32_t i = 0; i < keys.size(); ++i) order[next[numbers[i]]++] = i;

  const auto for_each_shard = [&](const auto& each) {
    for (uint32_t number = 0; number < BlockIndex::kShardsCount; ++number) {
      const uint32_t begin = ends[number], end = ends[number + 1];
      if (begin == end) continue;
      IndexShard& shard = parts_.index.shard(number);
      MutexLock lock(shard.mutex);
      for (uint32_t i = begin; i < end; ++i) each(shard, order[i]);
    }
  };
  for_each_shard([&](IndexShard& shard, uint32_t i)
                     IBID_NO_THREAD_SAFETY_ANALYSIS { shard.PrefetchEntry(hashes[i]); });
  found->resize(keys.size());
  // Counted once for all: an atomic addition waits for every read of memory before it.
  uint64_t first_holds = 0;
  for_each_shard([&](IndexShard& shard, uint32_t i) IBID_NO_THREAD_SAFETY_ANALYSIS {
    (*found)[i] =
        Describe(shard, shard.Find(hashes[i], ns.number, keys[i]), is_disk_readable, adds_hold);
    first_holds += (*found)[i].is_first_hold ? 1 : 0;
  });
  if (first_holds > 0) residency_.CountPinned(first_holds, ns.payload_bytes);
}

ReadPath::Found ReadPath::LookOrRecover(const NamespaceInfo& ns, const BlockKey& key,
                                        bool is_disk_readable, bool adds_hold) {
  const bool was_running = recovery_.is_running();
  const Found found = Look(ns, key, is_disk_readable, adds_hold);
  if (found.is_resident || found.is_pending || !was_running) return found;
  // Whether or not the scan has come to it, or to its end, since this looked.
  (void)recovery_.IndexOne(ns, key);
  return Look(ns, key, is_disk_readable, adds_hold);
}

MatchResult ReadPath::Scan(std::span<const ShardView> shards, uint64_t taken_bytes_max,
                           std::vector<HeldBlocks>* held) {
  const bool is_disk_readable = parts_.disk != nullptr && parts_.disk->health().is_readable();
  if (held != nullptr) {
    for (const ShardView& shard : shards) held->push_back({{}, shard.ns->payload_bytes});
  }
  MatchResult result;
  // A chain costs what is found of it: no more keys are looked up at once than some times those
  // found so far.
  std::vector<std::vector<Found>> found(shards.size());
  const size_t length = shards.front().keys.size();
  size_t window = kScanWindowMin;
  bool is_end = false;
  uint64_t taken_bytes = 0;
  for (size_t begin = 0; begin < length && !is_end; begin += found.front().size()) {
    const size_t count = recovery_.is_running() ? 1 : std::min(window, length - begin);
    window = std::min(kScanWindowGrowth * window, kScanWindowMax);
    const bool adds_hold = held != nullptr && result.pending_count == 0;
    for (size_t s = 0; s < shards.size(); ++s) {
      const auto keys = shards[s].keys.subspan(begin, count);
      if (count == 1) {
        found[s].assign(1, LookOrRecover(*shards[s].ns, keys[0], is_disk_readable, adds_hold));
      } else {
        LookMany(*shards[s].ns, keys, is_disk_readable, adds_hold, &found[s]);
      }
    }
    for (size_t i = 0; i < count; ++i) {
      const Found all = InAllOf(found, i);
      is_end |= !all.is_resident && !all.is_pending;
      bool is_matched = !is_end && all.is_resident && result.pending_count == 0;
      if (is_matched && held != nullptr) {
        for (size_t s = 0; s < shards.size(); ++s) {
          if (found[s][i].takes_memory()) taken_bytes += shards[s].ns->payload_bytes;
        }
        is_end = taken_bytes > taken_bytes_max && result.matched_count > 0;
        is_matched = !is_end;
      }
      if (is_matched) {
        ++result.matched_count;
        ++(all.is_in_gpu    ? result.gpu_blocks
           : all.is_in_host ? result.host_blocks
                            : result.disk_blocks);
      } else if (!is_end) {
        ++result.pending_count;
      }
      for (size_t s = 0; s < shards.size(); ++s) {
        if (is_matched && held != nullptr) {
          (*held)[s].ids.push_back(found[s][i].id);
          (*held)[s].taken_count += found[s][i].takes_memory() ? 1 : 0;
          if (found[s][i].is_unwritten) residency_.WriteUsed(found[s][i].id, shards[s].ns);
        } else if (found[s][i].is_held) {
          residency_.EndHold(found[s][i].id, shards[s].ns->payload_bytes);
        }
      }
    }
  }
  return result;
}

// What is true of block `i` in all shards.
ReadPath::Found ReadPath::InAllOf(std::span<const std::vector<Found>> found, size_t i) {
  if (found.size() == 1) return found[0][i];
  Found all;
  all.is_resident = all.is_in_gpu = all.is_in_host = all.is_pending = true;
  for (const std::vector<Found>& shard : found) {
    all.is_pending = all.is_pending && (shard[i].is_resident || shard[i].is_pending);
    all.is_resident = all.is_resident && shard[i].is_resident;
    all.is_in_gpu = all.is_in_gpu && shard[i].is_in_gpu;
    all.is_in_host = all.is_in_host && (shard[i].is_in_host || shard[i].is_in_gpu);
  }
  return all;
}

}  // namespace ibid
