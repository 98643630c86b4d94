// A record is written after its pin is in the table and deleted after it left: whoever writes one
// looks afterwards whether the pin is still there, and deletes it if not; whoever deletes one looks
// whether the pin is there again, and then does not. So a pin that is gone leaves no record, and
// one that is there keeps it, in whatever order calls come; a record that cannot be deleted now is
// void at the next start if its time is over, else it is a pin again.
#include "cache_server/pin_path.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/limit.h"
#include "core/log.h"

namespace ibid {
namespace {

constexpr int64_t kLogPeriodSeconds = 10;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

absl::Status CheckPin(PinId id, std::span<const BlockKey> keys, const PinOptions& options) {
  if (id.value == 0) return absl::InvalidArgumentError("pin: the id is 0");
  if (keys.empty()) return absl::InvalidArgumentError("pin: no block is named");
  if (options.priority == KeepPriority::kNone) {
    return absl::InvalidArgumentError("pin: use priority low, high or must_stay");
  }
  if (options.duration <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("pin: the duration must be positive");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PinResult> PinPath::Pin(PinId id, const NamespaceId& ns,
                                       std::span<const BlockKey> keys, const PinOptions& options) {
  IBID_RETURN_IF_ERROR(CheckPin(id, keys, options));
  if (keys.size() > parts_.options.chain_keys_max) {
    return LimitReached(absl::StrCat("pin: ", keys.size(), " keys in one call"), "chain_keys_max",
                        parts_.options.chain_keys_max);
  }
  const NamespacePtr info = parts_.namespaces.Find(ns);
  if (info == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("pin: namespace ", DigestToShortHex(ns.digest),
                     " is not open; a client or a worker that uses it opens it"));
  }
  std::vector<EntryId> unpinned;
  const absl::Status put =
      parts_.pins.Put(id, info, keys, options.priority, parts_.Now() + options.duration, &unpinned);
  DropRefs(unpinned);
  IBID_RETURN_IF_ERROR(put);
  PinResult result;
  result.survives_restart = parts_.disk != nullptr && Record(id, *info, keys, options);
  if (!parts_.pins.Has(id)) DeleteRecords({id});
  if (const auto pin = parts_.pins.Describe(id, parts_.Now()); pin.has_value()) {
    result.stored_blocks = pin->stored_blocks;
  }
  return result;
}

bool PinPath::Record(PinId id, NamespaceInfo& ns, std::span<const BlockKey> keys,
                     const PinOptions& options) {
  DiskDirectory::Change change;
  if (!ns.is_on_disk.load()) change.put_namespaces.push_back(parts_.RecordOf(ns));
  // The store's clock means nothing to the next run: ends are kept by the time of day.
  const absl::Time ends_at = absl::Now() + options.duration;
  DiskPin& pin = change.put_pins.emplace_back();
  pin.id = id.value;
  pin.ns = ns.number;
  pin.priority = static_cast<uint32_t>(options.priority);
  pin.ends_unix_us = ends_at == absl::InfiniteFuture() ? kNever : absl::ToUnixMicros(ends_at);
  pin.keys.assign(keys.begin(), keys.end());
  MutexLock lock(records_mutex_);
  const absl::Status status = parts_.disk->Commit(change, /*is_synced=*/true);
  if (status.ok()) {
    ns.is_on_disk.store(true);
    return true;
  }
  IBID_LOG_EVERY(kLogPeriodSeconds, warn, "pin: it ends with this run of the server: {}",
                 status.message());
  return false;
}

absl::Status PinPath::Unpin(PinId id) {
  std::vector<EntryId> unpinned;
  if (!parts_.pins.Remove(id, &unpinned)) return absl::NotFoundError("");
  DropRefs(unpinned);
  DeleteRecords({id});
  return absl::OkStatus();
}

std::vector<PinInfo> PinPath::List() const {
  std::vector<PinInfo> pins;
  for (const PinId id : parts_.pins.ids()) {
    if (auto pin = parts_.pins.Describe(id, parts_.Now()); pin.has_value()) {
      pins.push_back(*std::move(pin));
    }
  }
  return pins;
}

void PinPath::Expire() {
  std::vector<EntryId> unpinned;
  const std::vector<PinId> over = parts_.pins.Expire(parts_.Now(), &unpinned);
  DropRefs(unpinned);
  DeleteRecords(over);
}

absl::Status PinPath::Restore() {
  IBID_ASSIGN_OR_RETURN(const std::vector<DiskPin> stored, parts_.disk->directory().Pins());
  std::vector<PinId> void_pins;
  for (const DiskPin& pin : stored) {
    const absl::Duration left = pin.ends_unix_us == kNever
                                    ? absl::InfiniteDuration()
                                    : absl::FromUnixMicros(pin.ends_unix_us) - absl::Now();
    const NamespacePtr ns = parts_.namespaces.Find(pin.ns);
    const bool is_known = pin.priority > 0 && pin.priority < kKeepPriorityNames.size();
    if (ns == nullptr || pin.keys.empty() || !is_known || left <= absl::ZeroDuration()) {
      void_pins.push_back({pin.id});
      continue;
    }
    std::vector<EntryId> unpinned;
    const absl::Status status =
        parts_.pins.Put({pin.id}, ns, pin.keys, static_cast<KeepPriority>(pin.priority),
                        parts_.Now() + left, &unpinned);
    if (!status.ok()) {
      IBID_LOG(warn, "pin {:016x} is not taken over from the last run: {}", pin.id,
               status.message());
    }
  }
  DeleteRecords(void_pins);
  return absl::OkStatus();
}

void PinPath::DeleteRecords(const std::vector<PinId>& ids) {
  if (parts_.disk == nullptr || ids.empty()) return;
  DiskDirectory::Change change;
  MutexLock lock(records_mutex_);
  for (const PinId id : ids) {
    if (!parts_.pins.Has(id)) change.delete_pins.push_back(id.value);
  }
  const absl::Status status = parts_.disk->Commit(change, /*is_synced=*/false);
  if (status.ok()) return;
  IBID_LOG_EVERY(kLogPeriodSeconds, warn, "pins that ended may be there again after a restart: {}",
                 status.message());
}

void PinPath::DropRefs(const std::vector<EntryId>& unpinned) {
  for (const EntryId entry : unpinned) residency_.DropRef(entry);
}

}  // namespace ibid
