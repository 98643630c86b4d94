// MatchShards: one number for all ranks. Each rank's blocks have keys of their own, so that with
// several servers they lie apart:
//
//   one server        one call: the server finds the smallest common prefix and leases just that
//   several servers   first every shard is probed, side by side; then what all of them have is
//                     matched, and leased, shard by shard
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "client/client_impl.h"
#include "client/fan_out.h"
#include "core/check.h"
#include "core/log.h"
#include "core/random_id.h"
#include "transport/limits.h"

namespace ibid {

std::vector<PrefixMatch> ClientImpl::MatchShards(std::span<const ShardLinks> shards,
                                                 const MatchCallOptions& options) {
  IBID_CHECK(!shards.empty() && shards.size() <= kMatchShardsMax) << shards.size() << " shards";
  for (const ShardLinks& shard : shards) {
    IBID_CHECK(shard.links.size() == shards[0].links.size())
        << shard.links.size() << " and " << shards[0].links.size() << " links";
  }
  const absl::Time deadline = DeadlineIn(options.timeout, options_.match_timeout);
  const size_t keys_count = shards.size() * shards[0].links.size();
  std::vector<PrefixMatch> matches = links_.size() == 1 && keys_count <= options_.match_keys_max
                                         ? MatchShardsAtOnce(shards, options, deadline)
                                         : MatchShardsApart(shards, options, deadline);
  if (metrics_.matched_blocks != nullptr && !options.is_repeat) {
    const double stored = matches[0].blocks_count() * static_cast<double>(shards.size());
    metrics_.matched_blocks->Increment(stored);
    metrics_.unmatched_blocks->Increment(static_cast<double>(keys_count) - stored);
  }
  return matches;
}

std::vector<PrefixMatch> ClientImpl::MatchShardsAtOnce(std::span<const ShardLinks> shards,
                                                       const MatchCallOptions& options,
                                                       absl::Time deadline) {
  std::vector<std::vector<BlockKey>> keys(shards.size());
  std::vector<MatchShard> asked;
  std::vector<uint32_t> indices;
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const ChainLink& link : shards[i].links) keys[i].push_back(link.key);
    asked.push_back({shards[i].ns.id, keys[i]});
    indices.push_back(shards[i].ns.index);
    (void)placement_.Place(shards[i].links);  // so that the chains may be published from their ends
  }
  ServerLink& link = *links_[0];
  MatchReply found;
  std::shared_ptr<HeldLease> lease;
  const absl::Status status =
      link.Call(CallKind::kMatch, indices, deadline, [&](const LinkCall& call) -> absl::Status {
        MatchCall match;
        match.session_id = call.session->session_id();
        match.lease = options.lease;
        if (options.lease) match.lease_id = RandomId();
        match.is_repeat = options.is_repeat;
        if (!shards[0].links.empty()) match.first_position = shards[0].links[0].position;
        match.wait_pending = std::min(options.wait_pending, call.timeout * kWaitShare);
        const absl::StatusOr<MatchReply> reply =
            call.channel->MatchShards(match, asked, call.timeout);
        if (options.lease && !reply.ok()) call.session->ReleaseUnconfirmedLease(match.lease_id);
        IBID_RETURN_IF_ERROR(reply.status());
        IBID_RETURN_IF_ERROR(link.CheckIncarnation(call, reply->incarnation));
        found = *reply;
        lease = std::make_shared<HeldLease>(0, found.lease_id, call.session);
        return absl::OkStatus();
      });
  if (!status.ok()) IBID_LOG_EVERY(kLogPeriodSeconds, warn, "match: {}", status.ToString());
  std::vector<PrefixMatch> matches(shards.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    matches[i].state_ = std::make_unique<PrefixMatch::State>();
    PrefixMatch::State& state = *matches[i].state_;
    state.ns = shards[i].ns;
    state.keys.assign(keys[i].begin(), keys[i].begin() + found.matched_count);
    state.lease_indices.assign(found.matched_count, 0);
    if (found.matched_count > 0) state.leases.push_back(lease);
    state.pending_count = found.pending_count;
    state.host_blocks = found.host_blocks;
    state.disk_blocks = found.disk_blocks;
    state.is_complete = status.ok();
  }
  return matches;
}

std::vector<PrefixMatch> ClientImpl::MatchShardsApart(std::span<const ShardLinks> shards,
                                                      const MatchCallOptions& options,
                                                      absl::Time deadline) {
  const auto match_all = [&](size_t count, const MatchCallOptions& each) {
    std::vector<PrefixMatch> matches(shards.size());
    std::vector<std::function<void()>> calls;
    for (size_t i = 0; i < shards.size(); ++i) {
      calls.push_back([&, i] {
        matches[i] = MatchOne(shards[i].ns, shards[i].links.first(count), each, deadline);
      });
    }
    FanOut(executor_, calls);
    return matches;
  };
  MatchCallOptions probe = options;
  probe.lease = false;
  std::vector<PrefixMatch> matches = match_all(shards[0].links.size(), probe);
  uint32_t stored = std::numeric_limits<uint32_t>::max(), known = stored;
  bool is_complete = true;
  for (const PrefixMatch& match : matches) {
    stored = std::min(stored, match.blocks_count());
    known = std::min(known, match.blocks_count() + match.pending_count());
    is_complete = is_complete && match.is_complete();
  }
  if (options.lease) matches = match_all(stored, {.lease = true, .is_repeat = options.is_repeat});
  // What left between the two shortens the prefix of all.
  for (const PrefixMatch& match : matches) stored = std::min(stored, match.blocks_count());
  for (PrefixMatch& match : matches) {
    match.state_->Shorten(stored);
    match.state_->pending_count = known - stored;
    match.state_->is_complete = is_complete;
  }
  return matches;
}

}  // namespace ibid
