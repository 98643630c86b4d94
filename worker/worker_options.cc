#include "worker/worker_options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "worker/backend/cpu_backend.h"

namespace ibid {
namespace {

constexpr std::array<std::pair<absl::string_view, int>, 4> kSuffixes = {
    {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}}};
constexpr uint32_t kBlockTokensMax = 1'024;

absl::Status Wrong(absl::string_view flag, absl::string_view value, absl::string_view remedy) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", value, ": ", remedy));
}

absl::Status CheckOneOf(absl::string_view flag, absl::string_view value,
                        const std::vector<std::string>& accepted) {
  for (const std::string& one : accepted) {
    if (one == value) return absl::OkStatus();
  }
  std::string list;
  for (const std::string& one : accepted) absl::StrAppend(&list, list.empty() ? "" : ", ", one);
  return Wrong(flag, value, absl::StrCat("use one of ", list));
}

absl::Status CheckRange(absl::string_view flag, uint64_t value, uint64_t min, uint64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return Wrong(flag, absl::StrCat(value), absl::StrCat("use ", min, " to ", max));
}

absl::Status CheckTimeout(absl::string_view flag, absl::Duration value) {
  if (value > absl::ZeroDuration() && value <= absl::Hours(1)) return absl::OkStatus();
  return Wrong(flag, absl::FormatDuration(value), "use a duration as 500ms or 5s, at most 1h");
}

absl::Status CheckAddress(absl::string_view flag, absl::string_view address) {
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  if (colon != absl::string_view::npos && colon > 0 &&
      absl::SimpleAtoi(address.substr(colon + 1), &port) && port < 65'536) {
    return absl::OkStatus();
  }
  return Wrong(flag, address, "use host:port, as 127.0.0.1:7080");
}

}  // namespace

absl::StatusOr<uint64_t> ParseMemorySize(absl::string_view text) {
  int shift = 0;
  absl::string_view digits = text;
  for (const auto& [suffix, bits] : kSuffixes) {
    if (absl::EndsWith(text, suffix)) {
      shift = bits;
      digits.remove_suffix(suffix.size());
    }
  }
  double number = 0;
  const bool is_number = digits.find_first_not_of("0123456789.") == absl::string_view::npos &&
                         absl::SimpleAtod(digits, &number);
  const double bytes = std::ldexp(number, shift);
  if (!is_number || bytes < 1 || bytes > 0x1p60) {
    return absl::InvalidArgumentError("use a number of bytes as 4096, 64MiB or 1.5GiB");
  }
  return static_cast<uint64_t>(bytes);
}

absl::Status WorkerOptions::Validate() const {
  if (model.empty())
    return absl::InvalidArgumentError("--model is missing: give the folder of a model");
  IBID_RETURN_IF_ERROR(CheckAddress("listen", listen));
  if (!http_listen.empty()) IBID_RETURN_IF_ERROR(CheckAddress("http_listen", http_listen));
  if (!TransportChoiceOf(transport).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--transport=", transport, ": use auto, shm or grpc"));
  }
  if (!servers.empty()) {
    for (const absl::string_view server : absl::StrSplit(servers, ',')) {
      IBID_RETURN_IF_ERROR(CheckAddress("servers", server));
    }
  }
  IBID_RETURN_IF_ERROR(CheckOneOf("kv_dtype", kv_dtype, {"bf16", "f32"}));
  IBID_RETURN_IF_ERROR(CheckOneOf("compute", compute, {"auto", "f32", "bf16"}));
  IBID_RETURN_IF_ERROR(
      CheckOneOf("log_level", log_level, {"debug", "info", "warn", "error", "off"}));
  IBID_RETURN_IF_ERROR(CheckRange("block_tokens", block_tokens, 1, kBlockTokensMax));
  IBID_RETURN_IF_ERROR(CheckRange("threads", threads, 0, kBackendThreadsMax));
  if (const auto bytes = ParseMemorySize(kv_bytes_max); !bytes.ok()) {
    return Wrong("kv_bytes_max", kv_bytes_max, bytes.status().message());
  }
  IBID_RETURN_IF_ERROR(CheckRange("max_running_requests", max_running_requests, 1, 4'096));
  IBID_RETURN_IF_ERROR(CheckRange("max_waiting_requests", max_waiting_requests, 1, 1'000'000));
  IBID_RETURN_IF_ERROR(CheckRange("max_prompt_tokens", max_prompt_tokens, 1, UINT32_MAX));
  IBID_RETURN_IF_ERROR(CheckRange("max_output_tokens", max_output_tokens, 1, UINT32_MAX));
  // Fewer would let requests that decode keep prompts waiting for ever.
  IBID_RETURN_IF_ERROR(CheckRange("max_batch_tokens", max_batch_tokens,
                                  uint64_t{max_running_requests} + 1, kStepTokensMax));
  IBID_RETURN_IF_ERROR(CheckTimeout("connect_timeout", connect_timeout));
  IBID_RETURN_IF_ERROR(CheckTimeout("match_timeout", match_timeout));
  IBID_RETURN_IF_ERROR(CheckTimeout("fetch_timeout", fetch_timeout));
  IBID_RETURN_IF_ERROR(CheckTimeout("publish_timeout", publish_timeout));
  if (single_flight_wait < absl::ZeroDuration()) {
    return Wrong("single_flight_wait", absl::FormatDuration(single_flight_wait),
                 "use a duration as 10s, or 0 to wait for nobody");
  }
  IBID_RETURN_IF_ERROR(CheckTimeout("shutdown_timeout", shutdown_timeout));
  if (tls_cert.empty() != tls_key.empty()) {
    return absl::InvalidArgumentError(
        "--tls_cert and --tls_key belong together: give both or neither");
  }
  if (store_tls_cert.empty() != store_tls_key.empty()) {
    return absl::InvalidArgumentError(
        "--store_tls_cert and --store_tls_key belong together: give both or neither");
  }
  return absl::OkStatus();
}

ModelOptions WorkerOptions::ToModelOptions() const {
  ModelOptions result;
  result.kv_dtype = *ParseDtype(kv_dtype);
  result.block_tokens = block_tokens;
  result.compute = *ParseComputeDtype(compute);
  result.threads = threads;
  return result;
}

absl::StatusOr<EngineOptions> WorkerOptions::ToEngineOptions(const KvLayout& layout) const {
  EngineOptions result;
  const uint64_t fitting_count = *ParseMemorySize(kv_bytes_max) / layout.PayloadBytes();
  if (pages == 0 && (fitting_count == 0 || fitting_count > UINT32_MAX)) {
    return Wrong("kv_bytes_max", kv_bytes_max,
                 absl::StrCat("a block of this model has ", layout.PayloadBytes(),
                              " bytes: use room for 1 to ", UINT32_MAX, " of them"));
  }
  result.pages_count = pages > 0 ? pages : fitting_count;
  result.max_batch_tokens = max_batch_tokens;
  result.max_running_requests = max_running_requests;
  result.max_waiting_requests = max_waiting_requests;
  result.max_prompt_tokens = max_prompt_tokens;
  result.max_output_tokens = max_output_tokens;
  result.publishes = publish;
  result.store.match_timeout = match_timeout;
  result.store.fetch_timeout = fetch_timeout;
  result.store.publish_timeout = publish_timeout;
  result.store.single_flight_wait = single_flight_wait;
  return result;
}

ClientOptions WorkerOptions::ToClientOptions() const {
  ClientOptions result;
  result.servers = absl::StrSplit(servers, ',', absl::SkipEmpty());
  result.client_name = "ibid-worker";
  result.tenant = tenant;
  result.connect_timeout = connect_timeout;
  result.match_timeout = match_timeout;
  result.fetch_timeout = fetch_timeout;
  result.publish_timeout = publish_timeout;
  result.placement_group_blocks = kPlacementGroupBlocks;
  result.transport = TransportChoiceOf(transport).value_or(TransportChoice::kAuto);
  result.tls_ca_file = store_tls_ca;
  result.tls_certificate_file = store_tls_cert;
  result.tls_key_file = store_tls_key;
  return result;
}

}  // namespace ibid
