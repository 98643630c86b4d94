#include "cache_server/server_options.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cache_server/gpu_tier.h"
#include "core/check.h"
#include "core/device_memory.h"
#include "core/eviction/eviction_policy.h"
#include "core/host_memory.h"
#include "core/kv_layout.h"

namespace ibid {
namespace {

constexpr std::array<std::pair<absl::string_view, int>, 4> kByteSuffixes = {
    {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}}};
constexpr uint32_t kIoThreadsMax = 256;
constexpr uint32_t kEventLogMax = uint32_t{1} << 28;

}  // namespace

bool AbslParseFlag(absl::string_view text, ByteCount* value, std::string* error) {
  int shift = 0;
  absl::string_view digits = text;
  for (const auto& [suffix, bits] : kByteSuffixes) {
    if (absl::EndsWith(text, suffix)) {
      shift = bits;
      digits.remove_suffix(suffix.size());
    }
  }
  uint64_t number = 0;
  if (digits.empty() || digits.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(digits, &number) ||
      number > (std::numeric_limits<uint64_t>::max() >> shift)) {
    *error = "use a number of bytes as 4096, 64MiB or 4GiB";
    return false;
  }
  value->bytes = number << shift;
  return true;
}

std::string AbslUnparseFlag(ByteCount value) {
  for (auto it = kByteSuffixes.rbegin(); it != kByteSuffixes.rend(); ++it) {
    const uint64_t unit = uint64_t{1} << it->second;
    if (value.bytes >= unit && value.bytes % unit == 0)
      return absl::StrCat(value.bytes / unit, it->first);
  }
  return absl::StrCat(value.bytes);
}

namespace {

absl::Status Wrong(absl::string_view flag, absl::string_view value, absl::string_view remedy) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", value, ": ", remedy));
}

absl::Status CheckAddress(absl::string_view flag, absl::string_view address) {
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port > 65'535) {
    return Wrong(flag, address, "use host:port, as 127.0.0.1:7070");
  }
  return absl::OkStatus();
}

std::optional<DiskWriteMode> DiskWriteModeOf(absl::string_view name) {
  if (name == "through") return DiskWriteMode::kThrough;
  if (name == "on_demotion") return DiskWriteMode::kOnDemotion;
  if (name == "on_second_use") return DiskWriteMode::kOnSecondUse;
  return std::nullopt;
}

absl::Status CheckPositive(absl::string_view flag, absl::Duration value) {
  if (value >= absl::Milliseconds(100) && value <= absl::Hours(24)) return absl::OkStatus();
  return Wrong(flag, absl::FormatDuration(value), "use a duration from 100ms to 24h");
}

}  // namespace

absl::Status ServerOptions::Validate() const {
  IBID_RETURN_IF_ERROR(CheckAddress("listen", listen));
  if (!http_listen.empty()) IBID_RETURN_IF_ERROR(CheckAddress("http_listen", http_listen));
  const std::string extent = AbslUnparseFlag(extent_bytes);
  if (extent_bytes.bytes == 0 || extent_bytes.bytes % kPageBytes != 0) {
    return Wrong("extent_bytes", extent, "use a multiple of 4KiB, as 64MiB");
  }
  if (host_bytes_max.bytes < extent_bytes.bytes) {
    return Wrong("host_bytes_max", AbslUnparseFlag(host_bytes_max),
                 absl::StrCat("use at least --extent_bytes=", extent));
  }
  if (gpu_device != "host") {
    return Wrong("gpu_device", gpu_device,
                 "use host (a stand-in in host memory): this build has no other device");
  }
  if (gpu_bytes_max.bytes != 0 && gpu_bytes_max.bytes < extent_bytes.bytes) {
    return Wrong("gpu_bytes_max", AbslUnparseFlag(gpu_bytes_max),
                 absl::StrCat("use 0 for no gpu tier, or at least --extent_bytes=", extent));
  }
  if (!disk_dir.empty() &&
      disk_bytes_max.bytes < disk_directory_bytes_reserve.bytes + extent_bytes.bytes) {
    return Wrong("disk_bytes_max", AbslUnparseFlag(disk_bytes_max),
                 absl::StrCat("use at least --disk_directory_bytes_reserve=",
                              AbslUnparseFlag(disk_directory_bytes_reserve),
                              " and --extent_bytes=", extent, " together"));
  }
  if (!DiskWriteModeOf(disk_write).has_value()) {
    return Wrong("disk_write", disk_write, "use through, on_demotion or on_second_use");
  }
  IBID_RETURN_IF_ERROR(CheckEvictionPolicyName(eviction_policy));
  if (must_stay_percent_max > 100) {
    return Wrong("must_stay_percent_max", absl::StrCat(must_stay_percent_max), "use 0 to 100");
  }
  if (leased_percent_per_session_max == 0 || leased_percent_per_session_max > 100) {
    return Wrong("leased_percent_per_session_max", absl::StrCat(leased_percent_per_session_max),
                 "use 1 to 100");
  }
  if (transport != "auto" && transport != "shm" && transport != "grpc") {
    return Wrong("transport", transport, "use auto, shm or grpc");
  }
  IBID_RETURN_IF_ERROR(ShmUids().status());
  IBID_RETURN_IF_ERROR(CheckPositive("lease_ttl", lease_ttl));
  IBID_RETURN_IF_ERROR(CheckPositive("session_ttl", session_ttl));
  IBID_RETURN_IF_ERROR(CheckPositive("reservation_ttl", reservation_ttl));
  IBID_RETURN_IF_ERROR(CheckPositive("shutdown_timeout", shutdown_timeout));
  if (io_threads == 0 || io_threads > kIoThreadsMax) {
    return Wrong("io_threads", absl::StrCat(io_threads), absl::StrCat("use 1 to ", kIoThreadsMax));
  }
  if (event_log_max == 0 || event_log_max > kEventLogMax) {
    return Wrong("event_log_max", absl::StrCat(event_log_max),
                 absl::StrCat("use 1 to ", kEventLogMax));
  }
  if (tls_cert.empty() != tls_key.empty()) {
    return absl::InvalidArgumentError("--tls_cert and --tls_key: give both or none");
  }
  if (!tls_ca.empty() && tls_cert.empty())
    return Wrong("tls_ca", tls_ca, "give --tls_cert and --tls_key too");
  for (const absl::string_view known : {"debug", "info", "warn", "error", "off"}) {
    if (log_level == known) return absl::OkStatus();
  }
  return Wrong("log_level", log_level, "use debug, info, warn, error or off");
}

BlockStoreOptions ServerOptions::StoreOptions() const {
  BlockStoreOptions options;
  options.host_bytes_max = host_bytes_max.bytes;
  if (gpu_bytes_max.bytes != 0) {
    options.create_gpu_memory = [bytes = gpu_bytes_max.bytes] {
      return CreateHostDeviceMemory(bytes, GpuTier::kStreamsCount);
    };
  }
  options.disk_directory = disk_dir;
  options.disk_bytes_max = disk_bytes_max.bytes;
  options.disk_directory_bytes_reserve = disk_directory_bytes_reserve.bytes;
  options.disk_write = DiskWriteModeOf(disk_write).value_or(DiskWriteMode::kThrough);
  options.eviction_policy = eviction_policy;
  options.must_stay_percent_max = must_stay_percent_max;
  options.leased_percent_per_session_max = leased_percent_per_session_max;
  options.extent_bytes = extent_bytes.bytes;
  options.lease_ttl = lease_ttl;
  options.session_ttl = session_ttl;
  options.reservation_ttl = reservation_ttl;
  options.io_threads_count = io_threads;
  options.event_log_max = event_log_max;
  return options;
}

// What TLS protects must not be read by another way.
bool ServerOptions::SharesMemory() const { return transport != "grpc" && tls_cert.empty(); }

absl::StatusOr<std::vector<uid_t>> ServerOptions::ShmUids() const {
  std::vector<uid_t> uids = {geteuid()};
  for (const absl::string_view text : absl::StrSplit(shm_uids, ',', absl::SkipEmpty())) {
    uint32_t uid = 0;
    if (!absl::SimpleAtoi(text, &uid)) {
      return Wrong("shm_uids", shm_uids, "use numbers of users, as 1000,1001");
    }
    uids.push_back(uid);
  }
  return uids;
}

ServerSetup ServerOptions::GrpcSetup() const {
  ServerSetup setup;
  setup.listen = listen;
  setup.tls = TlsOptions{tls_cert, tls_key, tls_ca};
  return setup;
}

}  // namespace ibid
