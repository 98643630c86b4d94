#include "client/cli/json.h"

#include "absl/strings/str_cat.h"

namespace ibid::cli {

using nlohmann::ordered_json;

ordered_json ToJson(const ServerStats& stats) {
  ordered_json json = {{"address", stats.address}, {"reachable", stats.status.ok()}};
  if (!stats.status.ok()) {
    json["error"] = std::string(stats.status.message());
    return json;
  }
  json["incarnation"] = absl::StrCat(absl::Hex(stats.incarnation, absl::kZeroPad16));
  json["version"] = stats.version;
  json["uptime_seconds"] = stats.uptime_seconds;
  json["is_recovering"] = stats.is_recovering;
  json["transport"] = stats.transport;
  json["transport_reason"] = stats.transport_reason;
  json["tiers"] = ordered_json::array();
  for (const ServerStats::Tier& tier : stats.tiers) {
    json["tiers"].push_back({{"tier", tier.tier},
                             {"state", tier.state},
                             {"bytes_max", tier.bytes_max},
                             {"used_bytes", tier.used_bytes},
                             {"allocated_bytes", tier.allocated_bytes},
                             {"largest_free_bytes", tier.largest_free_bytes},
                             {"blocks", tier.blocks},
                             {"hits", tier.hits},
                             {"evictions", tier.evictions},
                             {"kept_bytes", tier.kept_bytes}});
  }
  json["sessions"] = stats.sessions;
  json["leases"] = stats.leases;
  json["pinned_bytes"] = stats.pinned_bytes;
  json["reservations"] = stats.reservations;
  json["requested_blocks"] = stats.requested_blocks;
  json["missed_blocks"] = stats.missed_blocks;
  json["published_blocks"] = stats.published_blocks;
  json["rejected_blocks"] = stats.rejected_blocks;
  json["corrupt_blocks"] = stats.corrupt_blocks;
  json["namespaces"] = stats.namespaces;
  json["pending_writes"] = stats.pending_writes;
  json["asked_keys"] = stats.asked_keys;
  json["matched_keys"] = stats.matched_keys;
  json["distinct_keys"] = stats.distinct_keys;
  json["infinite_hit_ratio"] = stats.infinite_hit_ratio;
  json["is_draining"] = stats.is_draining;
  json["pins"] = stats.pins;
  return json;
}

ordered_json ToJson(const std::string& address, const absl::StatusOr<InferenceStats>& stats) {
  ordered_json json = {{"address", address}, {"reachable", stats.ok()}};
  if (!stats.ok()) {
    json["error"] = std::string(stats.status().message());
    return json;
  }
  json["version"] = stats->version;
  json["model"] = stats->model;
  json["namespace"] = DigestToHex(stats->ns.digest);
  json["layout"] = stats->layout;
  json["engine"] = stats->engine;
  json["block_tokens"] = stats->block_tokens;
  json["vocabulary"] = stats->vocabulary;
  json["is_store_reachable"] = stats->is_store_reachable;
  json["running_requests"] = stats->running_requests;
  json["waiting_requests"] = stats->waiting_requests;
  json["pages_total"] = stats->pages_total;
  json["pages_free"] = stats->pages_free;
  json["pages_cached"] = stats->pages_cached;
  json["prompt_tokens"] = stats->prompt_tokens;
  json["worker_tokens"] = stats->worker_tokens;
  json["fetched_tokens"] = stats->fetched_tokens;
  json["computed_tokens"] = stats->computed_tokens;
  json["output_tokens"] = stats->output_tokens;
  json["published_blocks"] = stats->published_blocks;
  json["fetch_failures"] = stats->fetch_failures;
  return json;
}

ordered_json ToJson(const InferenceUsage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"worker_tokens", usage.worker_tokens},
          {"fetched_tokens", usage.fetched_tokens},
          {"computed_tokens", usage.computed_tokens}};
}

}  // namespace ibid::cli
