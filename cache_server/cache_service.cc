#include "cache_server/cache_service.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache_server/cache_service_match.h"
#include "cache_server/fetch_stream.h"
#include "cache_server/publish_stream.h"
#include "cache_server/session_stream.h"
#include "cache_server/unary_call.h"
#include "cache_server/watch_stream.h"
#include "core/check.h"
#include "core/executor.h"
#include "core/limit.h"
#include "ibid/v1/cache.grpc.pb.h"
#include "transport/block_frame.h"
#include "transport/key_bytes.h"
#include "transport/limits.h"

namespace ibid {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

// Drops of whole namespaces that wait for their turn; more are refused.
constexpr size_t kDropsQueuedMax = 64;
// How long a drop waits for the disk tier to forget what was dropped.
constexpr absl::Duration kDropFlushMax = absl::Seconds(1);
// A client that misses this many heartbeats in a row has lost its session.
constexpr int kHeartbeatsPerTtl = 5;
constexpr uint32_t kGoldenTokensCount = 16;

absl::Status CheckText(absl::string_view what, absl::string_view text) {
  if (text.size() <= kTextFieldBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("OpenNamespace: ", what, " has ", text.size(),
                   " bytes, over kTextFieldBytesMax=", kTextFieldBytesMax));
}

absl::StatusOr<NamespaceSpec> SpecOf(const v1::NamespaceFields& fields) {
  IBID_RETURN_IF_ERROR(CheckText("model", fields.model()));
  IBID_RETURN_IF_ERROR(CheckText("engine", fields.engine()));
  IBID_RETURN_IF_ERROR(CheckText("layout", fields.layout()));
  IBID_RETURN_IF_ERROR(CheckText("shard", fields.shard()));
  IBID_RETURN_IF_ERROR(CheckText("adapter", fields.adapter()));
  IBID_RETURN_IF_ERROR(CheckText("salt", fields.salt()));
  return NamespaceSpec{fields.model(), fields.engine(),  fields.layout(),
                       fields.shard(), fields.adapter(), fields.salt()};
}

// Both sides must compute the same keys, or every lookup would silently miss.
absl::Status CheckGoldenKey(const NamespaceId& ns, absl::string_view golden_key) {
  IBID_ASSIGN_OR_RETURN(const Digest theirs, DigestFromBytes(golden_key, "golden_key"));
  std::vector<uint32_t> tokens(kGoldenTokensCount);
  std::iota(tokens.begin(), tokens.end(), 0);
  const BlockKey ours = MakeBlockKey(RootParent(ns), tokens);
  if (ours.digest == theirs) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("OpenNamespace: the client computes block keys otherwise: golden_key ",
                   DigestToShortHex(theirs), ", here ", DigestToShortHex(ours.digest)));
}

BlockOutcome OutcomeOf(OfferState state) {
  switch (state) {
    case OfferState::kWanted:
      return BlockOutcome::kWanted;
    case OfferState::kPresent:
      return BlockOutcome::kPresent;
    case OfferState::kPending:
      return BlockOutcome::kPending;
    case OfferState::kRejected:
      return BlockOutcome::kRejected;
  }
  return BlockOutcome::kUnspecified;
}

void FillTier(const BlockTierStats& from, v1::TierStats* to) {
  to->set_tier(from.tier);
  to->set_bytes_max(from.bytes_max);
  to->set_used_bytes(from.used_bytes);
  to->set_allocated_bytes(from.allocated_bytes);
  to->set_largest_free_bytes(from.largest_free_bytes);
  to->set_blocks(from.blocks);
  to->set_hits(from.hits);
  to->set_evictions(from.evictions);
  to->set_state(from.state);
  to->set_kept_bytes(from.kept_bytes);
}

void FillStats(const BlockStoreStats& from, v1::GetStatsResponse* to) {
  for (const BlockTierStats& tier : from.tiers) FillTier(tier, to->add_tiers());
  to->set_sessions(from.sessions);
  to->set_leases(from.leases);
  to->set_pinned_bytes(from.pinned_bytes);
  to->set_reservations(from.reservations);
  to->set_requested_blocks(from.requested_blocks);
  to->set_missed_blocks(from.missed_blocks);
  to->set_published_blocks(from.published_blocks);
  to->set_rejected_blocks(from.rejected_blocks);
  to->set_corrupt_blocks(from.corrupt_blocks);
  to->set_namespaces(from.namespaces);
  to->set_is_recovering(from.is_recovering);
  to->set_asked_keys(from.asked_keys);
  to->set_matched_keys(from.matched_keys);
  to->set_distinct_keys(from.distinct_keys);
  to->set_infinite_hit_ratio(from.infinite_hit_ratio);
  to->set_is_draining(from.is_refusing_blocks);
  to->set_pending_writes(from.pending_writes);
  to->set_pins(from.pins);
}

void FillMethod(const MethodCounts& from, v1::MethodStats* to) {
  to->set_method(from.method);
  to->set_calls(from.calls);
  to->set_errors(from.errors);
  to->set_calls_in_progress(from.calls_in_progress);
  to->set_received_bytes(from.received_bytes);
  to->set_sent_bytes(from.sent_bytes);
  to->set_latency_seconds_sum(from.latency_seconds_sum);
  to->mutable_latency_bounds_seconds()->Add(from.latency_bounds_seconds.begin(),
                                            from.latency_bounds_seconds.end());
  to->mutable_latency_counts()->Add(from.latency_counts.begin(), from.latency_counts.end());
}

// Publish and Fetch as raw bytes, all else as messages.
using GeneratedService = v1::CacheService::WithCallbackMethod_OpenNamespace<
    v1::CacheService::WithCallbackMethod_Session<v1::CacheService::WithCallbackMethod_Match<
        v1::CacheService::WithCallbackMethod_Offer<v1::CacheService::WithRawCallbackMethod_Publish<
            v1::CacheService::WithRawCallbackMethod_Fetch<v1::CacheService::WithCallbackMethod_Drop<
                v1::CacheService::WithCallbackMethod_Watch<
                    v1::CacheService::WithCallbackMethod_GetStats<
                        v1::CacheService::Service>>>>>>>>>;

class CacheServiceImpl final : public CacheService, private GeneratedService {
 public:
  explicit CacheServiceImpl(const CacheServiceOptions& options)
      : state_(options.metrics),
        version_(options.version),
        watches_(&state_),
        drops_("ibid-drop", 1, kDropsQueuedMax) {
    IBID_CHECK(options.store != nullptr);
    state_.store = options.store;
    state_.incarnation = options.store->incarnation();
    state_.shm = options.shm;
    state_.lease_ttl = options.lease_ttl;
    state_.wait_pending_max = options.wait_pending_max;
    state_.stalled_max = std::min(options.session_ttl, options.lease_ttl);
    state_.heartbeat = state_.stalled_max / kHeartbeatsPerTtl;
  }

  grpc::Service* grpc_service() override { return this; }

  void RefuseSessions() override {
    sessions_.Refuse(absl::UnavailableError("the server is draining and takes no more sessions"));
  }

  void TakeSessions() override { sessions_.Take(); }

  void Drain() override {
    store().EndWaits();
    const absl::Status why = absl::UnavailableError("the server is shutting down");
    sessions_.EndAll(why);
    watches_.EndAll(why);
  }

  ServiceState* state() override { return &state_; }

  bool WaitForNoHolds(absl::Duration timeout) override {
    return state_.holds->WaitForNone(timeout);
  }

 private:
  BlockStore& store() { return *state_.store; }

  ServerUnaryReactor* OpenNamespace(CallbackServerContext* context,
                                    const v1::OpenNamespaceRequest* request,
                                    v1::OpenNamespaceResponse* response) override {
    UnaryCall call(&state_, context, RpcMethod::kOpenNamespace, *request);
    return call.Answer(OpenNamespaceNow(*request, response), *response);
  }

  absl::Status OpenNamespaceNow(const v1::OpenNamespaceRequest& request,
                                v1::OpenNamespaceResponse* response) {
    response->set_incarnation(state_.incarnation);
    IBID_RETURN_IF_ERROR(CheckText("tenant", request.tenant()));
    IBID_ASSIGN_OR_RETURN(const NamespaceSpec spec, SpecOf(request.fields()));
    NamespaceId theirs;
    IBID_ASSIGN_OR_RETURN(theirs.digest, DigestFromBytes(request.namespace_id(), "namespace_id"));
    const NamespaceId ns = MakeNamespaceId(spec);
    if (ns != theirs) {
      return absl::InvalidArgumentError(
          absl::StrCat("OpenNamespace: namespace_id ", DigestToShortHex(theirs.digest),
                       " is not the hash of the fields, which is ", DigestToShortHex(ns.digest)));
    }
    IBID_RETURN_IF_ERROR(CheckGoldenKey(ns, request.golden_key()));
    IBID_ASSIGN_OR_RETURN(const KvLayout layout, KvLayout::Parse(spec.layout));
    IBID_ASSIGN_OR_RETURN(const uint64_t payload_bytes,
                          store().OpenNamespace(ns, layout, request.tenant()));
    response->set_payload_bytes(payload_bytes);
    return absl::OkStatus();
  }

  SessionReactor* Session(CallbackServerContext* context) override {
    return sessions_.Start(&state_);
  }

  ServerUnaryReactor* Match(CallbackServerContext* context, const v1::MatchRequest* request,
                            v1::MatchResponse* response) override {
    return StartMatchCall(&state_, context, request, response);
  }

  ServerUnaryReactor* Offer(CallbackServerContext* context, const v1::OfferRequest* request,
                            v1::OfferResponse* response) override {
    UnaryCall call(&state_, context, RpcMethod::kOffer, *request);
    return call.Answer(OfferNow(*request, response), *response);
  }

  absl::Status OfferNow(const v1::OfferRequest& request, v1::OfferResponse* response) {
    response->set_incarnation(state_.incarnation);
    NamespaceId ns;
    IBID_ASSIGN_OR_RETURN(ns.digest, DigestFromBytes(request.namespace_id(), "namespace_id"));
    IBID_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys, DecodeKeys(request.keys()));
    const SessionId session{request.session_id()};
    if (request.withdraws()) {
      store().Withdraw(session, ns, keys);
      return absl::OkStatus();
    }
    if (request.stops_at_refusal()) {
      const absl::Duration take_over_after = request.take_over_after_ms() == 0
                                                 ? absl::InfiniteDuration()
                                                 : absl::Milliseconds(request.take_over_after_ms());
      return ClaimNow(session, ns, keys, take_over_after, response);
    }
    IBID_ASSIGN_OR_RETURN(const std::vector<OfferState> states, store().Offer(session, ns, keys));
    IBID_CHECK(states.size() == keys.size()) << states.size() << " " << keys.size();
    for (const OfferState state : states)
      response->add_outcomes(static_cast<v1::BlockOutcome>(OutcomeOf(state)));
    return absl::OkStatus();
  }

  absl::Status ClaimNow(SessionId session, const NamespaceId& ns, const std::vector<BlockKey>& keys,
                        absl::Duration take_over_after, v1::OfferResponse* response) {
    IBID_ASSIGN_OR_RETURN(const ClaimResult claim,
                          store().Claim(session, ns, keys, take_over_after));
    for (uint32_t i = 0; i < claim.wanted_count; ++i)
      response->add_outcomes(v1::BLOCK_OUTCOME_WANTED);
    if (claim.refusal != OfferState::kWanted)
      response->add_outcomes(static_cast<v1::BlockOutcome>(OutcomeOf(claim.refusal)));
    return absl::OkStatus();
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Publish(
      CallbackServerContext* context) override {
    return StartPublishStream(&state_);
  }

  FetchReactor* Fetch(CallbackServerContext* context, const grpc::ByteBuffer* request) override {
    return StartFetchStream(&state_, context, request);
  }

  ServerUnaryReactor* Drop(CallbackServerContext* context, const v1::DropRequest* request,
                           v1::DropResponse* response) override {
    auto call = std::make_shared<UnaryCall>(&state_, context, RpcMethod::kDrop, *request);
    // Whole namespaces may be millions of blocks: not on gRPC's thread.
    if (!drops_.TrySubmit([this, call, request, response] {
          call->Answer(DropNow(*request, response), *response);
        })) {
      return call->Answer(
          LimitReached("Drop: too many are waiting", "kDropsQueuedMax", kDropsQueuedMax),
          *response);
    }
    return call->reactor();
  }

  absl::Status DropNow(const v1::DropRequest& request, v1::DropResponse* response) {
    response->set_incarnation(state_.incarnation);
    if (request.only_corrupt()) return DropCorruptNow(request, response);
    if (request.everything()) {
      if (!request.namespace_id().empty() || !request.keys().empty()) {
        return absl::InvalidArgumentError(
            "Drop: everything goes with neither namespace_id nor keys");
      }
      response->set_blocks(store().DropEverything());
      (void)store().FlushRemovals(kDropFlushMax);
      return absl::OkStatus();
    }
    NamespaceId ns;
    IBID_ASSIGN_OR_RETURN(ns.digest, DigestFromBytes(request.namespace_id(), "namespace_id"));
    IBID_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys, DecodeKeys(request.keys()));
    response->set_blocks(store().Drop(ns, keys));
    (void)store().FlushRemovals(kDropFlushMax);
    return absl::OkStatus();
  }

  absl::Status DropCorruptNow(const v1::DropRequest& request, v1::DropResponse* response) {
    NamespaceId ns;
    IBID_ASSIGN_OR_RETURN(ns.digest, DigestFromBytes(request.namespace_id(), "namespace_id"));
    IBID_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys, DecodeKeys(request.keys()));
    if (request.everything() || keys.empty() || keys.size() > kDropCorruptKeysMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("Drop: only_corrupt goes with 1 to ", kDropCorruptKeysMax,
                       " keys (kDropCorruptKeysMax), not ", keys.size()));
    }
    response->set_blocks(store().DropCorrupt(ns, keys));
    return absl::OkStatus();
  }

  WatchReactor* Watch(CallbackServerContext* context, const v1::WatchRequest* request) override {
    return watches_.Start(context, *request);
  }

  ServerUnaryReactor* GetStats(CallbackServerContext* context, const v1::GetStatsRequest* request,
                               v1::GetStatsResponse* response) override {
    UnaryCall call(&state_, context, RpcMethod::kGetStats, *request);
    response->set_incarnation(state_.incarnation);
    response->set_version(version_);
    response->set_uptime_seconds(absl::ToDoubleSeconds(clock_.Now() - began_));
    FillStats(store().stats(), response);
    for (const MethodCounts& counts : state_.metrics.Counts()) {
      FillMethod(counts, response->add_methods());
    }
    return call.Answer(absl::OkStatus(), *response);
  }

  const SteadyClock clock_;
  const absl::Time began_ = clock_.Now();
  ServiceState state_;
  const std::string version_;
  SessionStreams sessions_;
  WatchStreams watches_;
  Executor drops_;  // last, so that it ends first: its work uses all of the above
};

}  // namespace

std::unique_ptr<CacheService> CacheService::Create(const CacheServiceOptions& options) {
  return std::make_unique<CacheServiceImpl>(options);
}

}  // namespace ibid
