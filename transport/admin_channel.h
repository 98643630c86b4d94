// AdminChannel: an operator's end of AdminService on one server, in core types.
//
// Thread safety: every method, from any thread. Calls block their thread until they are done; no
// call outlives its timeout. Errors: Unavailable and DeadlineExceeded for the network and the
// server's absence; PermissionDenied when the server does not take such words from here; else what
// the server said.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/block_key.h"
#include "core/eviction/keep_priority.h"
#include "transport/channel.h"

namespace ibid {

struct KeepReply {
  uint64_t incarnation = 0;
  uint64_t written_blocks = 0;
  uint64_t remaining_blocks = 0;  // only memory has them
};

// As in VerifyProgress, field by field.
struct VerifyState {
  uint64_t incarnation = 0;
  uint64_t copies = 0;
  uint64_t checked_copies = 0, checked_bytes = 0;
  uint64_t damaged_host_copies = 0, damaged_disk_copies = 0, damaged_gpu_copies = 0;
  uint64_t unreadable_disk_copies = 0, unreadable_gpu_copies = 0;
  uint64_t kept_blocks = 0;
  bool is_done = false;

  uint64_t bad_copies() const {
    return damaged_host_copies + damaged_disk_copies + damaged_gpu_copies + unreadable_disk_copies +
           unreadable_gpu_copies;
  }
};

struct PinCall {
  uint64_t id = 0;  // not 0
  NamespaceId ns;
  std::span<const BlockKey> keys;
  KeepPriority priority = KeepPriority::kMustStay;
  absl::Duration duration = absl::InfiniteDuration();
};

struct PinReply {
  uint64_t incarnation = 0;
  uint64_t stored_blocks = 0;
  bool survives_restart = false;
};

// As in v1::PinState, field by field.
struct PinState {
  uint64_t id = 0;
  NamespaceId ns;
  KeepPriority priority = KeepPriority::kNone;
  absl::Duration left;
  uint64_t blocks = 0, stored_blocks = 0, host_blocks = 0, disk_blocks = 0;
};

// Nothing: no limit.
struct QuotaValues {
  std::optional<uint64_t> publish_bytes_per_second_max;
  std::optional<uint64_t> host_bytes_max, disk_bytes_max, gpu_bytes_max;
};

// As in v1::TenantState, field by field.
struct TenantState {
  std::string tenant;
  QuotaValues quota;
  bool has_default = false;
  uint64_t published_bytes = 0, refused_blocks = 0;
  uint64_t host_used_bytes = 0, disk_used_bytes = 0, gpu_used_bytes = 0;
};

struct QuotaList {
  QuotaValues default_quota;
  std::vector<TenantState> tenants;
};

class AdminChannel {
 public:
  // Errors: those of MakeChannel. Does not connect yet.
  static absl::StatusOr<std::unique_ptr<AdminChannel>> Create(absl::string_view address,
                                                              const ChannelOptions& options);
  virtual ~AdminChannel() = default;

  // `timeout` is the server's for its writing; the call lasts a little longer at most.
  virtual absl::StatusOr<KeepReply> Drain(absl::Duration timeout) = 0;
  // Errors: Unimplemented (a server that does not know it).
  virtual absl::Status Undrain(absl::Duration timeout) = 0;
  virtual absl::StatusOr<KeepReply> Flush(absl::Duration timeout) = 0;

  // `bytes_per_second` 0: the server's own pace. `on_progress` is called on the calling thread; the
  // last state is returned too. When it returns false the call ends, Cancelled.
  virtual absl::StatusOr<VerifyState> Verify(
      uint64_t bytes_per_second, absl::Duration timeout,
      const std::function<bool(const VerifyState&)>& on_progress) = 0;

  virtual absl::StatusOr<PinReply> Pin(const PinCall& call, absl::Duration timeout) = 0;
  // Errors: NotFound.
  virtual absl::Status Unpin(uint64_t pin_id, absl::Duration timeout) = 0;
  virtual absl::StatusOr<std::vector<PinState>> ListPins(absl::Duration timeout) = 0;

  // Of one tenant; `quota` nothing: it has the default again.
  virtual absl::Status SetQuota(absl::string_view tenant, const std::optional<QuotaValues>& quota,
                                absl::Duration timeout) = 0;
  virtual absl::Status SetDefaultQuota(const QuotaValues& quota, absl::Duration timeout) = 0;
  virtual absl::StatusOr<QuotaList> ListQuotas(absl::Duration timeout) = 0;
  // From the server's --tenants_file.
  virtual absl::Status ReloadQuotas(absl::Duration timeout) = 0;
};

}  // namespace ibid
