#include "transport/cache_channel.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/limit.h"
#include "ibid/v1/cache.grpc.pb.h"
#include "transport/byte_streams.h"
#include "transport/cache_session.h"
#include "transport/call_deadline.h"
#include "transport/key_bytes.h"
#include "transport/limits.h"
#include "transport/staging.h"
#include "transport/status_conversion.h"
#include "transport/watch_stream.h"

namespace ibid {
namespace {

constexpr uint32_t kGoldenTokensCount = 16;
// A claim that is told to take over reservations older than this takes none over.
constexpr absl::Duration kTakeOverAfterMax = absl::Hours(24);

void FillFields(const NamespaceSpec& spec, v1::NamespaceFields* fields) {
  fields->set_model(spec.model);
  fields->set_engine(spec.engine);
  fields->set_layout(spec.layout);
  fields->set_shard(spec.shard);
  fields->set_adapter(spec.adapter);
  fields->set_salt(spec.salt);
}

CacheStats ToStats(const v1::GetStatsResponse& from) {
  CacheStats stats;
  stats.incarnation = from.incarnation();
  stats.version = from.version();
  stats.uptime_seconds = from.uptime_seconds();
  for (const v1::TierStats& tier : from.tiers()) {
    stats.tiers.push_back(CacheStats::Tier{tier.tier(), tier.state(), tier.bytes_max(),
                                           tier.used_bytes(), tier.allocated_bytes(),
                                           tier.largest_free_bytes(), tier.blocks(), tier.hits(),
                                           tier.evictions(), tier.kept_bytes()});
  }
  stats.sessions = from.sessions();
  stats.leases = from.leases();
  stats.pinned_bytes = from.pinned_bytes();
  stats.reservations = from.reservations();
  stats.requested_blocks = from.requested_blocks();
  stats.missed_blocks = from.missed_blocks();
  stats.published_blocks = from.published_blocks();
  stats.rejected_blocks = from.rejected_blocks();
  stats.corrupt_blocks = from.corrupt_blocks();
  stats.namespaces = from.namespaces();
  stats.pending_writes = from.pending_writes();
  stats.pins = from.pins();
  stats.is_recovering = from.is_recovering();
  stats.asked_keys = from.asked_keys();
  stats.matched_keys = from.matched_keys();
  stats.distinct_keys = from.distinct_keys();
  stats.infinite_hit_ratio = from.infinite_hit_ratio();
  stats.is_draining = from.is_draining();
  for (const v1::MethodStats& method : from.methods()) {
    stats.methods.push_back(
        {method.method(),
         method.calls(),
         method.errors(),
         method.calls_in_progress(),
         method.received_bytes(),
         method.sent_bytes(),
         method.latency_seconds_sum(),
         {method.latency_bounds_seconds().begin(), method.latency_bounds_seconds().end()},
         {method.latency_counts().begin(), method.latency_counts().end()}});
  }
  return stats;
}

absl::Status CheckKeysCount(absl::string_view call, size_t count) {
  if (count <= kRequestKeysMax) return absl::OkStatus();
  return LimitReached(absl::StrCat(call, ": ", count, " keys in one request"), "kRequestKeysMax",
                      kRequestKeysMax);
}

class GrpcCacheChannel final : public CacheChannel {
 public:
  explicit GrpcCacheChannel(std::shared_ptr<grpc::Channel> channel)
      : channel_(std::move(channel)),
        stub_(v1::CacheService::NewStub(channel_)),
        staging_(std::make_shared<StagingPool>()) {}

  bool is_connected() override {
    return channel_->GetState(/*try_to_connect=*/true) == GRPC_CHANNEL_READY;
  }

  bool WaitUntilConnected(absl::Duration timeout) override {
    return channel_->WaitForConnected(DeadlineAfter(timeout));
  }

  absl::StatusOr<OpenNamespaceReply> OpenNamespace(const NamespaceSpec& spec,
                                                   absl::string_view tenant,
                                                   absl::Duration timeout) override {
    const NamespaceId ns = MakeNamespaceId(spec);
    std::vector<uint32_t> tokens(kGoldenTokensCount);
    std::iota(tokens.begin(), tokens.end(), 0);
    v1::OpenNamespaceRequest request;
    request.set_namespace_id(DigestString(ns.digest));
    FillFields(spec, request.mutable_fields());
    request.set_tenant(std::string(tenant));
    request.set_golden_key(DigestString(MakeBlockKey(RootParent(ns), tokens).digest));
    IBID_ASSIGN_OR_RETURN(const v1::OpenNamespaceResponse response,
                          Call(&v1::CacheService::Stub::OpenNamespace, request, timeout));
    return OpenNamespaceReply{response.incarnation(), response.payload_bytes()};
  }

  absl::StatusOr<std::unique_ptr<CacheSession>> OpenSession(
      absl::string_view client_name, absl::Duration timeout,
      std::function<void(absl::Status)> on_broken) override {
    return OpenCacheSession(channel_, client_name, timeout, std::move(on_broken));
  }

  absl::StatusOr<MatchReply> Match(const MatchCall& call, std::span<const BlockKey> chain,
                                   absl::Duration timeout) override {
    IBID_RETURN_IF_ERROR(CheckKeysCount("Match", chain.size()));
    v1::MatchRequest request;
    request.set_namespace_id(DigestString(call.ns.digest));
    request.set_keys(EncodeKeys(chain));
    return SendMatch(call, chain.size(), timeout, &request);
  }

  absl::StatusOr<MatchReply> MatchShards(const MatchCall& call, std::span<const MatchShard> shards,
                                         absl::Duration timeout) override {
    if (shards.empty() || shards.size() > kMatchShardsMax) {
      return LimitReached(absl::StrCat("Match: ", shards.size(), " shards"), "kMatchShardsMax",
                          kMatchShardsMax);
    }
    IBID_RETURN_IF_ERROR(CheckKeysCount("Match", shards.size() * shards.front().keys.size()));
    v1::MatchRequest request;
    for (const MatchShard& shard : shards) {
      v1::ShardChain* const to = request.add_shards();
      to->set_namespace_id(DigestString(shard.ns.digest));
      to->set_keys(EncodeKeys(shard.keys));
    }
    return SendMatch(call, shards.front().keys.size(), timeout, &request);
  }

  absl::StatusOr<ClaimReply> Claim(uint64_t session_id, const NamespaceId& ns,
                                   std::span<const BlockKey> keys, absl::Duration take_over_after,
                                   absl::Duration timeout) override {
    v1::OfferRequest request;
    request.set_stops_at_refusal(true);
    if (take_over_after < kTakeOverAfterMax) {
      request.set_take_over_after_ms(
          static_cast<uint32_t>(std::max<int64_t>(1, absl::ToInt64Milliseconds(take_over_after))));
    }
    IBID_ASSIGN_OR_RETURN(const v1::OfferResponse response,
                          SendOffer(session_id, ns, keys, timeout, &request));
    ClaimReply reply{response.incarnation()};
    for (const int outcome : response.outcomes()) {
      reply.refusal = static_cast<BlockOutcome>(outcome);
      if (reply.refusal != BlockOutcome::kWanted) break;
      reply.refusal = BlockOutcome::kUnspecified;
      ++reply.wanted_count;
    }
    const bool is_all = reply.wanted_count == keys.size();
    if (reply.wanted_count > keys.size() ||
        is_all != (reply.refusal == BlockOutcome::kUnspecified)) {
      return absl::InternalError(
          "Offer: the server answered another number of keys than were claimed");
    }
    return reply;
  }

  absl::StatusOr<uint64_t> Withdraw(uint64_t session_id, const NamespaceId& ns,
                                    std::span<const BlockKey> keys,
                                    absl::Duration timeout) override {
    v1::OfferRequest request;
    request.set_withdraws(true);
    IBID_ASSIGN_OR_RETURN(const v1::OfferResponse response,
                          SendOffer(session_id, ns, keys, timeout, &request));
    return response.incarnation();
  }

  absl::StatusOr<OfferReply> Offer(uint64_t session_id, const NamespaceId& ns,
                                   std::span<const BlockKey> keys,
                                   absl::Duration timeout) override {
    v1::OfferRequest request;
    IBID_ASSIGN_OR_RETURN(const v1::OfferResponse response,
                          SendOffer(session_id, ns, keys, timeout, &request));
    if (static_cast<size_t>(response.outcomes_size()) != keys.size()) {
      return absl::InternalError(
          "Offer: the server answered another number of keys than were offered");
    }
    OfferReply reply{response.incarnation()};
    reply.outcomes.reserve(keys.size());
    for (const int outcome : response.outcomes())
      reply.outcomes.push_back(static_cast<BlockOutcome>(outcome));
    return reply;
  }

  absl::StatusOr<FetchReply> Fetch(
      const FetchCall& call, std::span<const BlockKey> keys, std::span<const MutableByteView> into,
      absl::Duration timeout,
      const std::function<void(uint32_t, BlockOutcome)>& on_block) override {
    IBID_RETURN_IF_ERROR(CheckKeysCount("Fetch", keys.size()));
    return FetchBlocks(channel_.get(), call, keys, into, timeout, on_block);
  }

  absl::StatusOr<LocateReply> Locate(const FetchCall& call, std::span<const BlockKey> keys,
                                     uint64_t payload_bytes, absl::Duration timeout) override {
    IBID_RETURN_IF_ERROR(CheckKeysCount("Fetch", keys.size()));
    return LocateBlocks(channel_.get(), call, keys, payload_bytes, timeout);
  }

  absl::StatusOr<uint64_t> Publish(
      const PublishCall& call, std::span<const PublishBlock> blocks, absl::Duration timeout,
      const std::function<void(const PublishBlockResult&)>& on_result) override {
    return PublishBlocks(channel_, staging_.get(), call, blocks, timeout, on_result);
  }

  absl::StatusOr<DropReply> Drop(const NamespaceId* ns, std::span<const BlockKey> keys,
                                 absl::Duration timeout) override {
    IBID_RETURN_IF_ERROR(CheckKeysCount("Drop", keys.size()));
    v1::DropRequest request;
    if (ns != nullptr) request.set_namespace_id(DigestString(ns->digest));
    request.set_everything(ns == nullptr);
    request.set_keys(EncodeKeys(keys));
    IBID_ASSIGN_OR_RETURN(const v1::DropResponse response,
                          Call(&v1::CacheService::Stub::Drop, request, timeout));
    return DropReply{response.incarnation(), response.blocks()};
  }

  absl::StatusOr<DropReply> DropCorrupt(const NamespaceId& ns, std::span<const BlockKey> keys,
                                        absl::Duration timeout) override {
    v1::DropRequest request;
    request.set_namespace_id(DigestString(ns.digest));
    request.set_keys(EncodeKeys(keys));
    request.set_only_corrupt(true);
    IBID_ASSIGN_OR_RETURN(const v1::DropResponse response,
                          Call(&v1::CacheService::Stub::Drop, request, timeout));
    return DropReply{response.incarnation(), response.blocks()};
  }

  std::unique_ptr<CacheWatch> Watch(const WatchCall& call) override {
    return StartCacheWatch(channel_, call);
  }

  absl::StatusOr<CacheStats> GetStats(absl::Duration timeout) override {
    IBID_ASSIGN_OR_RETURN(const v1::GetStatsResponse response,
                          Call(&v1::CacheService::Stub::GetStats, v1::GetStatsRequest(), timeout));
    return ToStats(response);
  }

 private:
  // Sends what `request` asks of chains with `length` keys.
  absl::StatusOr<MatchReply> SendMatch(const MatchCall& call, size_t length, absl::Duration timeout,
                                       v1::MatchRequest* request) {
    request->set_session_id(call.session_id);
    request->set_lease(call.lease);
    request->set_lease_id(call.lease_id);
    request->set_is_repeat(call.is_repeat);
    request->set_first_position(call.first_position);
    request->set_is_part(call.is_part);
    const absl::Duration wait =
        std::clamp(call.wait_pending, absl::ZeroDuration(), kWaitPendingMax);
    request->set_wait_pending_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(wait)));
    IBID_ASSIGN_OR_RETURN(const v1::MatchResponse response,
                          Call(&v1::CacheService::Stub::Match, *request, timeout));
    if (response.matched_count() > length) {
      return absl::InternalError("Match: the server matched more keys than were asked for");
    }
    MatchReply reply{response.incarnation(), response.matched_count(), response.pending_count(),
                     response.lease_id()};
    for (const v1::TierCount& tier : response.tiers()) {
      if (tier.tier() == "host") reply.host_blocks = tier.blocks();
      if (tier.tier() == "disk") reply.disk_blocks = tier.blocks();
    }
    return reply;
  }

  // Sends `request`, of which the kind of offer is set.
  absl::StatusOr<v1::OfferResponse> SendOffer(uint64_t session_id, const NamespaceId& ns,
                                              std::span<const BlockKey> keys,
                                              absl::Duration timeout, v1::OfferRequest* request) {
    IBID_RETURN_IF_ERROR(CheckKeysCount("Offer", keys.size()));
    request->set_session_id(session_id);
    request->set_namespace_id(DigestString(ns.digest));
    request->set_keys(EncodeKeys(keys));
    return Call(&v1::CacheService::Stub::Offer, *request, timeout);
  }

  template <typename Request, typename Response>
  using UnaryMethod = grpc::Status (v1::CacheService::Stub::*)(grpc::ClientContext*, const Request&,
                                                               Response*);

  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(UnaryMethod<Request, Response> method, const Request& request,
                                absl::Duration timeout) {
    grpc::ClientContext context;
    SetTimeout(timeout, &context);
    Response response;
    IBID_RETURN_IF_ERROR(FromGrpcStatus((stub_.get()->*method)(&context, request, &response)));
    return response;
  }

  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::CacheService::Stub> stub_;
  const std::shared_ptr<StagingPool> staging_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CacheChannel>> CacheChannel::Create(absl::string_view address,
                                                                   const ChannelOptions& options) {
  IBID_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, MakeChannel(address, options));
  return std::unique_ptr<CacheChannel>(std::make_unique<GrpcCacheChannel>(std::move(channel)));
}

}  // namespace ibid
