#include "cache_server/cache_service_match.h"

#include <grpcpp/server_context.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/limit.h"
#include "transport/key_bytes.h"
#include "transport/limits.h"
#include "transport/status_conversion.h"

namespace ibid {
namespace {

constexpr uint64_t kPositionsMax = UINT32_MAX;

absl::StatusOr<ShardChain> ShardOf(const std::string& namespace_id, const std::string& keys) {
  ShardChain shard;
  IBID_ASSIGN_OR_RETURN(shard.ns.digest, DigestFromBytes(namespace_id, "namespace_id"));
  IBID_ASSIGN_OR_RETURN(shard.keys, DecodeKeys(keys));
  return shard;
}

absl::StatusOr<std::vector<ShardChain>> ShardsOf(const v1::MatchRequest& request) {
  std::vector<ShardChain> shards;
  if (request.shards().empty()) {
    IBID_ASSIGN_OR_RETURN(ShardChain only, ShardOf(request.namespace_id(), request.keys()));
    shards.push_back(std::move(only));
    return shards;
  }
  if (!request.namespace_id().empty() || !request.keys().empty()) {
    return absl::InvalidArgumentError("Match: shards go with neither namespace_id nor keys");
  }
  if (static_cast<size_t>(request.shards_size()) > kMatchShardsMax) {
    return LimitReached(absl::StrCat("Match: ", request.shards_size(), " shards"),
                        "kMatchShardsMax", kMatchShardsMax);
  }
  for (const v1::ShardChain& shard : request.shards()) {
    IBID_ASSIGN_OR_RETURN(ShardChain next, ShardOf(shard.namespace_id(), shard.keys()));
    shards.push_back(std::move(next));
  }
  return shards;
}

void AddTier(const char* name, uint32_t blocks, v1::MatchResponse* response) {
  if (blocks == 0) return;
  v1::TierCount* tier = response->add_tiers();
  tier->set_tier(name);
  tier->set_blocks(blocks);
}

class MatchCall final : public grpc::ServerUnaryReactor {
 public:
  MatchCall(ServiceState* state, grpc::CallbackServerContext* context,
            const v1::MatchRequest* request, v1::MatchResponse* response)
      : state_(state),
        context_(context),
        session_(SessionId{request->session_id()}),
        response_(response),
        hold_(state->holds),
        record_(&state->metrics, RpcMethod::kMatch) {
    record_.OnReceived(request->ByteSizeLong());
    response_->set_incarnation(state_->incarnation);
  }

  void Start(const v1::MatchRequest& request) {
    // A lease whose number reaches nobody would be renewed with the session's others for ever.
    if (context_->IsCancelled()) return End(absl::CancelledError("Match: nobody waits"));
    absl::StatusOr<std::vector<ShardChain>> shards = ShardsOf(request);
    if (!shards.ok()) return End(shards.status());
    if (uint64_t{request.first_position()} + shards->front().keys.size() > kPositionsMax) {
      return End(absl::InvalidArgumentError(
          absl::StrCat("Match: first_position=", request.first_position(), " with ",
                       shards->front().keys.size(), " keys: a chain has no such position")));
    }
    MatchOptions options;
    options.lease = request.lease();
    options.lease_id = LeaseId{request.lease_id()};
    options.first_position = request.first_position();
    options.is_part = request.is_part();
    options.is_repeat = request.is_repeat();
    options.wait_pending =
        std::min(absl::Milliseconds(request.wait_pending_ms()), state_->wait_pending_max);
    // gRPC tells of the end of a call only after the handler, which calls this, has returned.
    wait_ = state_->store
                ->StartMatch(
                    session_, *std::move(shards), options,
                    [this](absl::StatusOr<MatchResult> result) { OnMatched(std::move(result)); })
                .value;
  }

  void OnCancel() override { state_->store->CancelMatch(MatchWaitId{wait_.load()}); }

  void OnDone() override { delete this; }

 private:
  void OnMatched(absl::StatusOr<MatchResult> result) {
    if (!result.ok()) return End(result.status());
    if (context_->IsCancelled()) {
      state_->store->ReleaseLeases(session_, {&result->lease, 1});
      return End(absl::CancelledError("Match: nobody waits"));
    }
    response_->set_matched_count(result->matched_count);
    response_->set_pending_count(result->pending_count);
    response_->set_lease_id(result->lease.value);
    AddTier("gpu", result->gpu_blocks, response_);
    AddTier("host", result->host_blocks, response_);
    AddTier("disk", result->disk_blocks, response_);
    End(absl::OkStatus());
  }

  void End(const absl::Status& status) {
    const grpc::Status final_status = ToGrpcStatus(status, state_->incarnation);
    if (status.ok()) record_.OnSent(response_->ByteSizeLong());
    record_.OnDone(final_status.error_code());
    Finish(final_status);
  }

  ServiceState* const state_;
  grpc::CallbackServerContext* const context_;
  const SessionId session_;
  v1::MatchResponse* const response_;
  const Hold hold_;
  RpcRecord record_;
  std::atomic<uint64_t> wait_{0};
};

}  // namespace

grpc::ServerUnaryReactor* StartMatchCall(ServiceState* state, grpc::CallbackServerContext* context,
                                         const v1::MatchRequest* request,
                                         v1::MatchResponse* response) {
  auto* const call = new MatchCall(state, context, request, response);
  call->Start(*request);
  return call;
}

}  // namespace ibid
