#include "cache_server/block_store_options.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cache_server/extent_allocator.h"
#include "core/eviction/block_owners.h"
#include "core/eviction/eviction_policy.h"
#include "core/host_memory.h"

namespace ibid {
namespace {

absl::Status Invalid(absl::string_view option, uint64_t value, absl::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat(option, " ", value, ": ", rule));
}

}  // namespace

absl::Status BlockStoreOptions::Validate() const {
  const BlockStoreOptions& o = *this;
  constexpr uint64_t kTierBytesMax =
      uint64_t{kNoPage} * kPageBytes;  // 16 TiB: pages have 32-bit numbers
  if (o.host_bytes_max < kPageBytes || o.host_bytes_max >= kTierBytesMax) {
    return Invalid("host_bytes_max", o.host_bytes_max, "must be at least 4 KiB and below 16 TiB");
  }
  if (o.extent_bytes == 0 || o.extent_bytes % kPageBytes != 0 || o.extent_bytes > kExtentBytesMax) {
    return Invalid("extent_bytes", o.extent_bytes, "must be a multiple of 4 KiB, at most 1 TiB");
  }
  if (!o.disk_directory.empty() &&
      (o.disk_bytes_max < kPageBytes || o.disk_bytes_max >= kTierBytesMax)) {
    return Invalid("disk_bytes_max", o.disk_bytes_max, "must be at least 4 KiB and below 16 TiB");
  }
  if (!o.disk_directory.empty() && o.disk_directory_bytes_reserve > o.disk_bytes_max - kPageBytes) {
    return Invalid("disk_directory_bytes_reserve", o.disk_directory_bytes_reserve,
                   "must leave at least 4 KiB of disk_bytes_max");
  }
  IBID_RETURN_IF_ERROR(CheckEvictionPolicyName(o.eviction_policy));
  const std::pair<absl::string_view, uint64_t> counts[] = {
      {"io_threads_count", o.io_threads_count},
      {"sessions_max", o.sessions_max},
      {"leases_per_session_max", o.leases_per_session_max},
      {"leased_blocks_per_session_max", o.leased_blocks_per_session_max},
      {"reservations_per_session_max", o.reservations_per_session_max},
      {"reservations_max", o.reservations_max},
      {"namespaces_max", o.namespaces_max},
      {"tenants_max", o.tenants_max},
      {"chain_keys_max", o.chain_keys_max},
      {"disk_write_queue_max", o.disk_write_queue_max},
      {"event_log_max", o.event_log_max},
      {"watchers_max", o.watchers_max},
      {"acquire_queue_max", o.acquire_queue_max},
      {"gpu_promote_queue_max", o.gpu_promote_queue_max},
      {"waiting_matches_max", o.waiting_matches_max},
      {"waiting_keys_max", o.waiting_keys_max},
      {"pins_max", o.pins_max},
      {"pinned_blocks_max", o.pinned_blocks_max}};
  for (const auto& [name, count] : counts) {
    if (count == 0) return Invalid(name, count, "must be at least 1");
  }
  if (o.tenants_max > std::numeric_limits<OwnerId>::max()) {
    return Invalid("tenants_max", o.tenants_max, "must be at most 65535");
  }
  if (o.must_stay_percent_max > 100) {
    return Invalid("must_stay_percent_max", o.must_stay_percent_max, "must be at most 100");
  }
  if (o.leased_percent_per_session_max == 0 || o.leased_percent_per_session_max > 100) {
    return Invalid("leased_percent_per_session_max", o.leased_percent_per_session_max,
                   "must be 1 to 100");
  }
  const std::pair<absl::string_view, absl::Duration> terms[] = {
      {"lease_ttl", o.lease_ttl},
      {"session_ttl", o.session_ttl},
      {"reservation_ttl", o.reservation_ttl}};
  for (const auto& [name, term] : terms) {
    if (term <= absl::ZeroDuration()) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " ", absl::FormatDuration(term), ": must be positive"));
    }
  }
  return absl::OkStatus();
}

}  // namespace ibid
