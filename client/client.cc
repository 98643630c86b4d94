#include "client/client.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/client_impl.h"
#include "client/fan_out.h"
#include "client/store_watch.h"
#include "core/check.h"
#include "core/limit.h"
#include "core/log.h"
#include "transport/limits.h"

namespace ibid {
namespace {

// Threads beside the callers' own that carry the parts of calls to several servers.
constexpr size_t kThreadsPerServer = 4;
constexpr size_t kThreadsMax = 32;
constexpr size_t kQueuedPartsMax = 1'024;

size_t ThreadsFor(size_t servers_count) {
  return servers_count <= 1 ? 1 : std::min(kThreadsPerServer * servers_count, kThreadsMax);
}

absl::Status ValidateAddress(absl::string_view address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  const bool is_good = colon != absl::string_view::npos && colon > 0 &&
                       absl::SimpleAtoi(address.substr(colon + 1), &port) && port > 0 &&
                       port < 65'536 && address.find_first_of(" \t/,") == absl::string_view::npos;
  if (is_good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("servers: \"", address, "\" is not host:port"));
}

absl::Status Validate(const ClientOptions& options) {
  if (options.servers.empty()) return absl::InvalidArgumentError("servers: none given");
  std::set<std::string> seen;
  for (const std::string& server : options.servers) {
    IBID_RETURN_IF_ERROR(ValidateAddress(server));
    if (!seen.insert(server).second)
      return absl::InvalidArgumentError(absl::StrCat("servers: ", server, " is given twice"));
  }
  if (seen.size() >= Placement::kUnplaced)
    return absl::InvalidArgumentError("servers: more than 65,534");
  const std::pair<const char*, absl::Duration> durations[] = {
      {"connect_timeout", options.connect_timeout},
      {"match_timeout", options.match_timeout},
      {"fetch_timeout", options.fetch_timeout},
      {"publish_timeout", options.publish_timeout},
      {"admin_timeout", options.admin_timeout},
      {"reconnect_backoff_min", options.reconnect_backoff_min},
      {"breaker_open", options.breaker_open},
  };
  for (const auto& [name, duration] : durations) {
    if (duration <= absl::ZeroDuration() || duration > absl::Hours(1)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": ", absl::FormatDuration(duration), " is not in (0, 1h]"));
    }
  }
  if (options.reconnect_backoff_max < options.reconnect_backoff_min) {
    return absl::InvalidArgumentError("reconnect_backoff_max: less than reconnect_backoff_min");
  }
  if (options.breaker_failures_count == 0)
    return absl::InvalidArgumentError("breaker_failures_count: is 0");
  if (options.shm_staging_bytes == 0 || options.shm_staging_bytes > kShmStagingBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("shm_staging_bytes: not in [1, ", kShmStagingBytesMax, "]"));
  }
  if (options.namespaces_max == 0) return absl::InvalidArgumentError("namespaces_max: is 0");
  if (options.placement_group_blocks == 0)
    return absl::InvalidArgumentError("placement_group_blocks: is 0");
  if (options.match_keys_max == 0 || options.match_keys_max > kRequestKeysMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("match_keys_max: not in [1, ", kRequestKeysMax, "]"));
  }
  return absl::OkStatus();
}

ServerStats ToServerStats(const std::string& address, const CacheStats& from) {
  ServerStats to;
  to.address = address;
  to.incarnation = from.incarnation;
  to.version = from.version;
  to.uptime_seconds = from.uptime_seconds;
  for (const CacheStats::Tier& tier : from.tiers) {
    to.tiers.push_back({tier.tier, tier.state, tier.bytes_max, tier.used_bytes,
                        tier.allocated_bytes, tier.largest_free_bytes, tier.blocks, tier.hits,
                        tier.evictions, tier.kept_bytes});
  }
  to.sessions = from.sessions;
  to.leases = from.leases;
  to.pinned_bytes = from.pinned_bytes;
  to.reservations = from.reservations;
  to.requested_blocks = from.requested_blocks;
  to.missed_blocks = from.missed_blocks;
  to.published_blocks = from.published_blocks;
  to.rejected_blocks = from.rejected_blocks;
  to.corrupt_blocks = from.corrupt_blocks;
  to.namespaces = from.namespaces;
  to.pending_writes = from.pending_writes;
  to.asked_keys = from.asked_keys;
  to.matched_keys = from.matched_keys;
  to.distinct_keys = from.distinct_keys;
  to.infinite_hit_ratio = from.infinite_hit_ratio;
  to.is_draining = from.is_draining;
  for (const CacheStats::Method& m : from.methods) {
    to.methods.push_back({m.method, m.calls, m.errors, m.calls_in_progress, m.received_bytes,
                          m.sent_bytes, m.latency_seconds_sum, m.latency_bounds_seconds,
                          m.latency_counts});
  }
  to.pins = from.pins;
  to.is_recovering = from.is_recovering;
  return to;
}

}  // namespace

ClientImpl::ClientImpl(ClientOptions options)
    : options_(std::move(options)),
      placement_(options_.servers, options_.placement_group_blocks),
      executor_("ibid-client", ThreadsFor(options_.servers.size()), kQueuedPartsMax) {
  RegisterMetrics();
}

ClientImpl::~ClientImpl() {
  for (auto& link : links_) link->StartStopping();
}

absl::Status ClientImpl::Start() {
  for (const std::string& server : options_.servers) {
    IBID_ASSIGN_OR_RETURN(auto link, ServerLink::Create(server, &options_, &clock_));
    links_.push_back(std::move(link));
  }
  return absl::OkStatus();
}

absl::StatusOr<NamespaceHandle> ClientImpl::OpenNamespace(const NamespaceSpec& spec) {
  NamespaceHandle handle;
  IBID_ASSIGN_OR_RETURN(handle.layout, KvLayout::Parse(spec.layout));
  IBID_RETURN_IF_ERROR(handle.layout.Validate());
  handle.id = MakeNamespaceId(spec);
  {
    MutexLock lock(mutex_);
    const auto known = namespace_indices_.find(handle.id);
    if (known == namespace_indices_.end() && namespace_indices_.size() >= options_.namespaces_max) {
      return LimitReached("too many namespaces were opened by this client", "namespaces_max",
                          options_.namespaces_max);
    }
    handle.index =
        namespace_indices_.emplace(handle.id, static_cast<uint32_t>(namespace_indices_.size()))
            .first->second;
  }
  const absl::Time deadline = clock_.Now() + options_.admin_timeout;
  std::vector<absl::Status> statuses(links_.size());
  std::vector<std::function<void()>> calls;
  for (size_t i = 0; i < links_.size(); ++i) {
    calls.push_back([&, i] {
      statuses[i] =
          links_[i]->OpenNamespace(handle.index, spec, handle.layout.PayloadBytes(), deadline);
    });
  }
  FanOut(executor_, calls);
  // A refusal concerns the server that refuses: its link has logged it, and does without it for
  // this namespace. The others serve, and one that is away may.
  absl::Status refusal;
  size_t refusals_count = 0, answers_count = 0;
  for (size_t i = 0; i < links_.size(); ++i) {
    refusal.Update(statuses[i]);
    refusals_count += statuses[i].ok() ? 0 : 1;
    answers_count += statuses[i].ok() && !links_[i]->is_usable() ? 0 : 1;
  }
  if (refusals_count > 0 && refusals_count == answers_count) return refusal;
  if (refusals_count > 0) {
    IBID_LOG(error,
             "namespace {}: {} of {} cache servers refuse it, and blocks placed there are "
             "computed: {}",
             DigestToShortHex(handle.id.digest), refusals_count, links_.size(), refusal.message());
  }
  return handle;
}

absl::StatusOr<uint64_t> ClientImpl::Drop(const NamespaceId* ns, std::span<const BlockKey> keys) {
  if (ns == nullptr && !keys.empty())
    return absl::InvalidArgumentError("drop: keys without a namespace");
  const absl::Time deadline = clock_.Now() + options_.admin_timeout;
  std::vector<absl::Status> statuses(links_.size());
  std::vector<uint64_t> dropped(links_.size());
  std::vector<std::function<void()>> calls;
  for (size_t i = 0; i < links_.size(); ++i) {
    calls.push_back([&, i] {
      // At least one call: no keys means all of them.
      for (size_t begin = 0; begin == 0 || begin < keys.size(); begin += options_.match_keys_max) {
        const auto piece =
            keys.subspan(begin, std::min<size_t>(options_.match_keys_max, keys.size() - begin));
        statuses[i].Update(links_[i]->CallServer(
            CallKind::kDrop, deadline, [&](const LinkCall& call) -> absl::Status {
              const absl::StatusOr<DropReply> reply = call.channel->Drop(ns, piece, call.timeout);
              IBID_RETURN_IF_ERROR(reply.status());
              dropped[i] += reply->blocks;
              return links_[i]->CheckIncarnation(call, reply->incarnation);
            }));
      }
    });
  }
  FanOut(executor_, calls);
  uint64_t total = 0;
  std::vector<std::string> failed;
  for (size_t i = 0; i < links_.size(); ++i) {
    total += dropped[i];
    if (!statuses[i].ok())
      failed.push_back(absl::StrCat(links_[i]->address(), " (", statuses[i].message(), ")"));
  }
  if (failed.empty()) return total;
  return absl::UnavailableError(absl::StrCat("drop: not done on ", absl::StrJoin(failed, ", "),
                                             "; the others dropped ", total, " blocks"));
}

std::vector<ServerStats> ClientImpl::Stats() {
  const absl::Time deadline = clock_.Now() + options_.admin_timeout;
  std::vector<ServerStats> all(links_.size());
  std::vector<std::function<void()>> calls;
  for (size_t i = 0; i < links_.size(); ++i) {
    calls.push_back([&, i] {
      const absl::Status status = links_[i]->CallServer(
          CallKind::kStats, deadline, [&](const LinkCall& call) -> absl::Status {
            const absl::StatusOr<CacheStats> stats = call.channel->GetStats(call.timeout);
            IBID_RETURN_IF_ERROR(stats.status());
            all[i] = ToServerStats(links_[i]->address(), *stats);
            return absl::OkStatus();
          });
      all[i].address = links_[i]->address();
      all[i].status = status;
      ServerLink::Transport transport = links_[i]->transport();
      all[i].transport = std::move(transport.name);
      all[i].transport_reason = std::move(transport.reason);
    });
  }
  FanOut(executor_, calls);
  return all;
}

absl::StatusOr<std::unique_ptr<StoreWatch>> ClientImpl::Watch(StoreWatchOptions options) {
  if (options.queue_events_max == 0) {
    return absl::InvalidArgumentError("queue_events_max: is 0");
  }
  if (options.namespaces.size() > kWatchNamespacesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("namespaces: ", options.namespaces.size(),
                     " are over kWatchNamespacesMax=", kWatchNamespacesMax));
  }
  std::unique_ptr<StoreWatch> watch(new StoreWatch(options_, std::move(options)));
  IBID_RETURN_IF_ERROR(watch->Start());
  return watch;
}

bool ClientImpl::is_any_reachable() const {
  return std::any_of(links_.begin(), links_.end(),
                     [](const auto& link) { return link->is_usable(); });
}

void ClientImpl::RegisterMetrics() {
  if (options_.metrics == nullptr) return;
  const auto counter = [&](const char* name, const char* help) {
    return &MakeCounter(*options_.metrics, name, help);
  };
  metrics_.matched_blocks =
      counter("ibid_client_matched_blocks_total", "Blocks of matched chains that are stored");
  metrics_.unmatched_blocks =
      counter("ibid_client_unmatched_blocks_total", "Blocks of matched chains that are not");
  metrics_.fetched_blocks =
      counter("ibid_client_fetched_blocks_total", "Blocks fetched with the right checksum");
  metrics_.missed_blocks =
      counter("ibid_client_missed_blocks_total", "Blocks asked for that did not come");
  metrics_.corrupt_blocks =
      counter("ibid_client_corrupt_blocks_total", "Blocks that came with a wrong checksum");
  metrics_.fetched_bytes = counter("ibid_client_fetched_bytes_total", "Payload of fetched blocks");
  metrics_.published_blocks =
      counter("ibid_client_published_blocks_total", "Blocks stored by this client");
  metrics_.present_blocks =
      counter("ibid_client_present_blocks_total", "Blocks offered that were stored already");
  metrics_.pending_blocks =
      counter("ibid_client_pending_blocks_total", "Blocks offered that another client was storing");
  metrics_.unpublished_blocks =
      counter("ibid_client_unpublished_blocks_total", "Blocks rejected or failed");
  metrics_.published_bytes =
      counter("ibid_client_published_bytes_total", "Payload of blocks stored by this client");
}

std::optional<TransportChoice> TransportChoiceOf(absl::string_view name) {
  if (name == "auto") return TransportChoice::kAuto;
  if (name == "shm") return TransportChoice::kShm;
  if (name == "grpc") return TransportChoice::kGrpc;
  return std::nullopt;
}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(ClientOptions options) {
  IBID_RETURN_IF_ERROR(Validate(options));
  auto impl = std::make_unique<ClientImpl>(std::move(options));
  IBID_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<Client>(new Client(std::move(impl)));
}

Client::Client(std::unique_ptr<ClientImpl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

absl::StatusOr<NamespaceHandle> Client::OpenNamespace(const NamespaceSpec& spec) {
  return impl_->OpenNamespace(spec);
}

PrefixMatch Client::Match(const NamespaceHandle& ns, std::span<const ChainLink> chain,
                          const MatchCallOptions& options) {
  return impl_->Match(ns, chain, options);
}

std::vector<PrefixMatch> Client::MatchShards(std::span<const ShardLinks> shards,
                                             const MatchCallOptions& options) {
  return impl_->MatchShards(shards, options);
}

ClaimedPrefix Client::Claim(const NamespaceHandle& ns, std::span<const ChainLink> links,
                            absl::Duration timeout, absl::Duration take_over_after) {
  return impl_->Claim(ns, links, timeout, take_over_after);
}

void Client::Withdraw(const NamespaceHandle& ns, std::span<const ChainLink> links,
                      absl::Duration timeout) {
  impl_->Withdraw(ns, links, timeout);
}

PrefixCount Client::Probe(const NamespaceId& ns, std::span<const ChainLink> chain,
                          absl::Duration timeout) {
  return impl_->Probe(ns, chain, timeout);
}

FetchResult Client::Fetch(const PrefixMatch& match, uint32_t first,
                          std::span<const MutableByteView> into, absl::Duration timeout) {
  return impl_->Fetch(match, first, into, timeout);
}

PublishResult Client::Publish(const NamespaceHandle& ns, std::span<const ChainLink> links,
                              std::span<const ByteView> payloads,
                              const PublishCallOptions& options) {
  return impl_->Publish(ns, links, payloads, options);
}

absl::StatusOr<uint64_t> Client::Drop(const NamespaceId* ns, std::span<const BlockKey> keys) {
  return impl_->Drop(ns, keys);
}

std::vector<ServerStats> Client::Stats() { return impl_->Stats(); }

absl::StatusOr<std::unique_ptr<StoreWatch>> Client::Watch(StoreWatchOptions options) {
  return impl_->Watch(std::move(options));
}

bool Client::is_any_reachable() const { return impl_->is_any_reachable(); }

}  // namespace ibid
