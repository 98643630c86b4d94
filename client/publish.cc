// Publish: ask each server what it would like of its blocks, and send only that.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/client_impl.h"
#include "client/fan_out.h"
#include "core/check.h"
#include "core/log.h"

namespace ibid {
namespace {

BlockResult ResultOf(BlockOutcome outcome) {
  switch (outcome) {
    case BlockOutcome::kOk:
      return BlockResult::kOk;
    case BlockOutcome::kPresent:
      return BlockResult::kPresent;
    case BlockOutcome::kPending:
      return BlockResult::kPending;
    case BlockOutcome::kRejected:
    case BlockOutcome::kInvalid:
      return BlockResult::kRejected;
    default:
      return BlockResult::kFailed;
  }
}

}  // namespace

// The blocks of one server.
struct ClientImpl::PublishPart {
  uint16_t server = 0;
  std::vector<uint32_t> indices;  // in the call's links
  absl::Status status;
};

std::vector<ClientImpl::PublishPart> ClientImpl::SplitForPublish(std::span<const ChainLink> links,
                                                                 PublishResult* result) {
  const std::vector<uint16_t> placed = placement_.Place(links);
  std::vector<PublishPart> parts;
  std::vector<int> part_of_server(links_.size(), -1);
  for (uint32_t i = 0; i < links.size(); ++i) {
    if (placed[i] == Placement::kUnplaced) {
      result->status = absl::FailedPreconditionError(absl::StrCat(
          "block ", links[i].position,
          " of a chain is not placed: publish from block 0 on, or match the chain first"));
      continue;
    }
    int& part = part_of_server[placed[i]];
    if (part < 0 || parts[part].indices.size() >= options_.match_keys_max) {
      part = static_cast<int>(parts.size());
      parts.emplace_back();
      parts.back().server = placed[i];
    }
    parts[part].indices.push_back(i);
  }
  return parts;
}

void ClientImpl::PublishToServer(const NamespaceHandle& ns, std::span<const ChainLink> links,
                                 std::span<const ByteView> payloads,
                                 const PublishCallOptions& options, absl::Time deadline,
                                 PublishPart* part, PublishResult* result) {
  ServerLink& link = *links_[part->server];
  std::vector<BlockKey> keys;
  for (uint32_t index : part->indices) keys.push_back(links[index].key);
  std::vector<uint32_t> wanted;
  part->status =
      link.Call(CallKind::kOffer, ns.index, deadline, [&](const LinkCall& call) -> absl::Status {
        const absl::StatusOr<OfferReply> reply =
            call.channel->Offer(call.session->session_id(), ns.id, keys, call.timeout);
        IBID_RETURN_IF_ERROR(reply.status());
        IBID_RETURN_IF_ERROR(link.CheckIncarnation(call, reply->incarnation));
        if (reply->outcomes.size() != keys.size())
          return absl::InternalError(link.address() + ": an offer's answer is short");
        for (size_t i = 0; i < keys.size(); ++i) {
          const BlockOutcome outcome = reply->outcomes[i];
          if (outcome == BlockOutcome::kWanted) {
            wanted.push_back(part->indices[i]);
          } else {
            result->blocks[part->indices[i]] = ResultOf(outcome);
          }
        }
        return absl::OkStatus();
      });
  if (!part->status.ok() || wanted.empty()) return;

  absl::Status refused;  // of single blocks: no reason to stop the others
  part->status =
      link.Call(CallKind::kPublish, ns.index, deadline, [&](const LinkCall& call) -> absl::Status {
        std::vector<PublishBlock> blocks;
        std::vector<uint32_t> sent;
        for (uint32_t index : wanted) {
          if (result->blocks[index] != BlockResult::kFailed)
            continue;  // answered in the attempt before
          blocks.push_back({links[index], payloads[index], std::nullopt, nullptr});
          sent.push_back(index);
        }
        const auto on_result = [&](const PublishBlockResult& answer) {
          if (answer.index >= sent.size()) return;
          BlockResult& block = result->blocks[sent[answer.index]];
          block = ResultOf(answer.outcome);
          if (block == BlockResult::kRejected || block == BlockResult::kFailed) {
            refused.Update(
                absl::ResourceExhaustedError(absl::StrCat(link.address(), ": ", answer.detail)));
          }
        };
        const PublishCall publish = {call.session->session_id(), ns.id, options.durable, call.shm};
        const absl::StatusOr<uint64_t> incarnation =
            call.channel->Publish(publish, blocks, call.timeout, on_result);
        IBID_RETURN_IF_ERROR(incarnation.status());
        return link.CheckIncarnation(call, *incarnation);
      });
  part->status.Update(refused);
}

// Which of the part's pending blocks their writers have stored before `wait` is over.
void ClientImpl::WaitForOthers(const NamespaceHandle& ns, std::span<const ChainLink> links,
                               absl::Time deadline, absl::Duration wait, const PublishPart& part,
                               PublishResult* result) {
  std::vector<uint32_t> pending;
  std::vector<BlockKey> keys;
  for (const uint32_t index : part.indices) {
    if (result->blocks[index] != BlockResult::kPending) continue;
    pending.push_back(index);
    keys.push_back(links[index].key);
  }
  if (pending.empty() || wait <= absl::ZeroDuration()) return;
  (void)links_[part.server]->Call(
      CallKind::kMatch, ns.index, deadline, [&](const LinkCall& call) -> absl::Status {
        MatchCall match;
        match.ns = ns.id;
        match.wait_pending = std::min(wait, call.timeout * kWaitShare);
        const absl::StatusOr<MatchReply> reply = call.channel->Match(match, keys, call.timeout);
        IBID_RETURN_IF_ERROR(reply.status());
        const size_t stored_count = std::min<size_t>(reply->matched_count, pending.size());
        for (size_t i = 0; i < stored_count; ++i) {
          result->blocks[pending[i]] = BlockResult::kPresent;
        }
        return absl::OkStatus();
      });
}

PublishResult ClientImpl::Publish(const NamespaceHandle& ns, std::span<const ChainLink> links,
                                  std::span<const ByteView> payloads,
                                  const PublishCallOptions& options) {
  IBID_CHECK(links.size() == payloads.size());
  for (ByteView payload : payloads) {
    IBID_CHECK(payload.size() == ns.layout.PayloadBytes())
        << "a payload has " << payload.size() << " bytes";
  }
  PublishResult result;
  result.blocks.assign(links.size(), BlockResult::kFailed);
  const absl::Time deadline = DeadlineIn(options.timeout, options_.publish_timeout);
  std::vector<PublishPart> parts = SplitForPublish(links, &result);
  std::vector<std::function<void()>> calls;
  for (PublishPart& part : parts) {
    calls.push_back([&, part = &part] {
      PublishToServer(ns, links, payloads, options, deadline, part, &result);
      WaitForOthers(ns, links, deadline, options.wait_pending, *part, &result);
    });
  }
  FanOut(executor_, calls);

  for (const PublishPart& part : parts) result.status.Update(part.status);
  const auto count = [&](BlockResult kind) {
    return static_cast<uint32_t>(std::count(result.blocks.begin(), result.blocks.end(), kind));
  };
  result.stored_count = count(BlockResult::kOk);
  result.present_count = count(BlockResult::kPresent);
  result.pending_count = count(BlockResult::kPending);
  if (!result.status.ok())
    IBID_LOG_EVERY(kLogPeriodSeconds, warn, "publish: {}", result.status.ToString());
  if (metrics_.published_blocks != nullptr) {
    metrics_.published_blocks->Increment(result.stored_count);
    metrics_.present_blocks->Increment(result.present_count);
    metrics_.pending_blocks->Increment(result.pending_count);
    metrics_.unpublished_blocks->Increment(static_cast<double>(links.size()) - result.stored_count -
                                           result.present_count - result.pending_count);
    metrics_.published_bytes->Increment(static_cast<double>(result.stored_count) *
                                        static_cast<double>(ns.layout.PayloadBytes()));
  }
  return result;
}

}  // namespace ibid
