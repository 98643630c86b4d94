#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache_server/status_page.h"

namespace ibid {
namespace {

using nlohmann::ordered_json;

ordered_json ToJson(const BlockTierStats& tier) {
  return {{"tier", tier.tier},
          {"state", tier.state},
          {"bytes_max", tier.bytes_max},
          {"used_bytes", tier.used_bytes},
          {"allocated_bytes", tier.allocated_bytes},
          {"largest_free_bytes", tier.largest_free_bytes},
          {"blocks", tier.blocks},
          {"hits", tier.hits},
          {"evictions", tier.evictions}};
}

ordered_json ToJson(const MethodCounts& method) {
  return {{"method", method.method},
          {"calls", method.calls},
          {"errors", method.errors},
          {"calls_in_progress", method.calls_in_progress},
          {"received_bytes", method.received_bytes},
          {"sent_bytes", method.sent_bytes},
          {"latency_seconds_sum", method.latency_seconds_sum},
          {"latency_bounds_seconds", method.latency_bounds_seconds},
          {"latency_counts", method.latency_counts}};
}

ordered_json ToJson(const HotPrefix& prefix) {
  return {{"first", DigestToShortHex(prefix.first.digest)},
          {"namespace", DigestToShortHex(prefix.ns.digest)},
          {"matches", prefix.matches},
          {"excess", prefix.excess},
          {"matched_blocks", prefix.matched_blocks},
          {"longest_match", prefix.longest_match}};
}

ordered_json ToJson(const SessionInfo& session) {
  return {{"client_name", session.client_name},
          {"age_seconds", absl::ToDoubleSeconds(session.age)},
          {"silence_seconds", absl::ToDoubleSeconds(session.silence)},
          {"leases", session.leases},
          {"leased_blocks", session.leased_blocks},
          {"reservations", session.reservations}};
}

ordered_json ToJson(const TenantInfo& tenant) {
  ordered_json json = {{"tenant", tenant.name},
                       {"host_used_bytes", tenant.host_used_bytes},
                       {"disk_used_bytes", tenant.disk_used_bytes},
                       {"gpu_used_bytes", tenant.gpu_used_bytes},
                       {"published_bytes", tenant.published_bytes},
                       {"refused_blocks", tenant.refused_blocks}};
  const std::pair<const char*, uint64_t> limits[] = {
      {"publish_bytes_per_second_max", tenant.quota.publish_bytes_per_second_max},
      {"host_bytes_max", tenant.quota.host_bytes_max},
      {"disk_bytes_max", tenant.quota.disk_bytes_max},
      {"gpu_bytes_max", tenant.quota.gpu_bytes_max}};
  for (const auto& [name, limit] : limits) {
    if (limit != TenantQuota::kNoLimit) json[name] = limit;
  }
  return json;
}

ordered_json ToJson(const StatsSample& sample, absl::Time now) {
  return {{"age_seconds", absl::ToDoubleSeconds(now - sample.at)},
          {"gpu_hits", sample.gpu_hits},
          {"host_hits", sample.host_hits},
          {"disk_hits", sample.disk_hits},
          {"missed_blocks", sample.missed_blocks},
          {"asked_keys", sample.asked_keys},
          {"matched_keys", sample.matched_keys},
          {"published_blocks", sample.published_blocks}};
}

template <typename T, typename... Arguments>
ordered_json ToArray(const std::vector<T>& items, const Arguments&... arguments) {
  ordered_json array = ordered_json::array();
  for (const T& item : items) array.push_back(ToJson(item, arguments...));
  return array;
}

}  // namespace

std::string StatusJson(const StatusFacts& facts) {
  const BlockStoreStats& store = facts.store;
  const ordered_json json = {
      {"version", facts.version},
      {"state", facts.state},
      {"uptime_seconds", absl::ToDoubleSeconds(facts.uptime)},
      {"incarnation", absl::StrCat(absl::Hex(facts.incarnation, absl::kZeroPad16))},
      {"tiers", ToArray(store.tiers)},
      {"requested_blocks", store.requested_blocks},
      {"missed_blocks", store.missed_blocks},
      {"asked_keys", store.asked_keys},
      {"matched_keys", store.matched_keys},
      {"distinct_keys", store.distinct_keys},
      {"infinite_hit_ratio", store.infinite_hit_ratio},
      {"published_blocks", store.published_blocks},
      {"rejected_blocks", store.rejected_blocks},
      {"corrupt_blocks", store.corrupt_blocks},
      {"sessions_count", store.sessions},
      {"leases", store.leases},
      {"pinned_bytes", store.pinned_bytes},
      {"reservations", store.reservations},
      {"namespaces", store.namespaces},
      {"pending_writes", store.pending_writes},
      {"methods", ToArray(facts.methods)},
      {"history", ToArray(facts.history, facts.now)},
      {"prefixes", ToArray(facts.prefixes)},
      {"sessions", ToArray(facts.sessions)},
      {"tenants", ToArray(facts.tenants)}};
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace ibid
