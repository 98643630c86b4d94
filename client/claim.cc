// Claim: who computes what. The chain is claimed from its front on, server by server in the order
// of the chain, and ends at the first block that is not wanted: so of several clients that claim
// one chain at the same time one gets all of it, whatever the number of servers.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/client_impl.h"
#include "core/log.h"

namespace ibid {
namespace {

struct Run {
  uint16_t server = 0;
  size_t begin = 0, count = 0;  // in the links
};

// Consecutive links of one server, in order. Ends at a link that is not placed.
std::vector<Run> SplitIntoRuns(std::span<const uint16_t> placed, size_t keys_max) {
  std::vector<Run> runs;
  for (size_t i = 0; i < placed.size() && placed[i] != Placement::kUnplaced; ++i) {
    const bool goes_on =
        !runs.empty() && runs.back().server == placed[i] && runs.back().count < keys_max;
    if (!goes_on) runs.push_back({placed[i], i, 0});
    ++runs.back().count;
  }
  return runs;
}

std::vector<BlockKey> KeysOf(std::span<const ChainLink> links) {
  std::vector<BlockKey> keys;
  keys.reserve(links.size());
  for (const ChainLink& link : links) keys.push_back(link.key);
  return keys;
}

BlockResult RefusalOf(BlockOutcome outcome) {
  switch (outcome) {
    case BlockOutcome::kPresent:
      return BlockResult::kPresent;
    case BlockOutcome::kPending:
      return BlockResult::kPending;
    case BlockOutcome::kRejected:
      return BlockResult::kRejected;
    default:
      return BlockResult::kFailed;
  }
}

}  // namespace

ClaimedPrefix ClientImpl::Claim(const NamespaceHandle& ns, std::span<const ChainLink> links,
                                absl::Duration timeout, absl::Duration take_over_after) {
  const absl::Time deadline = DeadlineIn(timeout, options_.match_timeout);
  ClaimedPrefix result;
  for (const Run& run : SplitIntoRuns(placement_.Place(links), options_.match_keys_max)) {
    ServerLink& link = *links_[run.server];
    const std::vector<BlockKey> keys = KeysOf(links.subspan(run.begin, run.count));
    uint32_t wanted_count = 0;
    BlockOutcome refusal = BlockOutcome::kUnspecified;
    const absl::Status status =
        link.Call(CallKind::kOffer, ns.index, deadline, [&](const LinkCall& call) -> absl::Status {
          const absl::StatusOr<ClaimReply> reply = call.channel->Claim(
              call.session->session_id(), ns.id, keys, take_over_after, call.timeout);
          IBID_RETURN_IF_ERROR(reply.status());
          IBID_RETURN_IF_ERROR(link.CheckIncarnation(call, reply->incarnation));
          wanted_count = reply->wanted_count;
          refusal = reply->refusal;
          return absl::OkStatus();
        });
    result.wanted_count += wanted_count;
    if (wanted_count == keys.size()) continue;
    result.refusal = status.ok() ? RefusalOf(refusal) : BlockResult::kFailed;
    if (!status.ok()) IBID_LOG_EVERY(kLogPeriodSeconds, warn, "claim: {}", status.ToString());
    return result;
  }
  if (result.wanted_count < links.size()) result.refusal = BlockResult::kFailed;
  return result;
}

void ClientImpl::Withdraw(const NamespaceHandle& ns, std::span<const ChainLink> links,
                          absl::Duration timeout) {
  const absl::Time deadline = DeadlineIn(timeout, options_.match_timeout);
  for (const Run& run : SplitIntoRuns(placement_.Place(links), options_.match_keys_max)) {
    const std::vector<BlockKey> keys = KeysOf(links.subspan(run.begin, run.count));
    // A server that is away has forgotten the claims with the session, or soon will.
    (void)links_[run.server]->CallOnce(
        CallKind::kOffer, deadline, [&](const LinkCall& call) -> absl::Status {
          return call.channel->Withdraw(call.session->session_id(), ns.id, keys, call.timeout)
              .status();
        });
  }
}

}  // namespace ibid
