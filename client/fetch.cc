// Fetch: one stream a server, side by side; in each the blocks come in the order of the chain.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/client_impl.h"
#include "client/fan_out.h"
#include "core/check.h"
#include "core/log.h"
#include "transport/limits.h"

namespace ibid {

// The blocks that are under one lease.
struct ClientImpl::FetchPart {
  const HeldLease* lease = nullptr;
  std::vector<uint32_t> indices;  // in the result
  std::vector<BlockKey> keys;
  std::vector<MutableByteView> into;
  absl::Status status;
};

void ClientImpl::FetchFromServer(const NamespaceHandle& ns, absl::Time deadline, FetchPart* part,
                                 FetchResult* result) {
  ServerLink& link = *links_[part->lease->server];
  part->status =
      link.Call(CallKind::kFetch, ns.index, deadline, [&](const LinkCall& call) -> absl::Status {
        // The lease is looked at before anything is written to the destinations: with its session
        // it is void, and what the server, perhaps another incarnation, holds now is not what was
        // matched.
        const bool is_leased = part->lease->lease_id != 0;
        if (is_leased && part->lease->session.lock() != call.session) {
          return absl::FailedPreconditionError(
              absl::StrCat(link.address(), ": the lease ended with its session"));
        }
        FetchCall fetch;
        fetch.session_id = call.session->session_id();
        fetch.ns = ns.id;
        fetch.lease_id = part->lease->lease_id;
        fetch.shm = call.shm;
        const auto on_block = [&](uint32_t index, BlockOutcome outcome) {
          result->blocks[part->indices[index]] = outcome == BlockOutcome::kOk ? BlockResult::kOk
                                                 : outcome == BlockOutcome::kCorrupt
                                                     ? BlockResult::kCorrupt
                                                     : BlockResult::kMiss;
        };
        const absl::StatusOr<FetchReply> reply =
            call.channel->Fetch(fetch, part->keys, part->into, call.timeout, on_block);
        IBID_RETURN_IF_ERROR(reply.status());
        return link.CheckIncarnation(call, reply->incarnation);
      });
}

// A flip in the server's memory would be sent to everybody who asks: the server looks for itself
// what is wrong, and drops it. Best effort.
void ClientImpl::ReportCorrupt(const NamespaceHandle& ns, absl::Time deadline,
                               const FetchPart& part, const FetchResult& result) {
  std::vector<BlockKey> keys;
  for (size_t i = 0; i < part.keys.size() && keys.size() < kDropCorruptKeysMax; ++i) {
    if (result.blocks[part.indices[i]] == BlockResult::kCorrupt) keys.push_back(part.keys[i]);
  }
  if (keys.empty()) return;
  ServerLink& link = *links_[part.lease->server];
  const absl::Status status =
      link.CallOnce(CallKind::kDrop, deadline, [&](const LinkCall& call) -> absl::Status {
        const auto reply = call.channel->DropCorrupt(ns.id, keys, call.timeout);
        IBID_RETURN_IF_ERROR(reply.status());
        IBID_LOG_EVERY(kLogPeriodSeconds, warn, "fetch: {} dropped {} of {} corrupt blocks",
                       link.address(), reply->blocks, keys.size());
        return absl::OkStatus();
      });
  if (!status.ok()) {
    IBID_LOG_EVERY(kLogPeriodSeconds, warn, "fetch: {} was not told of {} corrupt blocks: {}",
                   link.address(), keys.size(), status.ToString());
  }
}

FetchResult ClientImpl::Fetch(const PrefixMatch& match, uint32_t first,
                              std::span<const MutableByteView> into, absl::Duration timeout) {
  IBID_CHECK(size_t{first} + into.size() <= match.blocks_count())
      << "more blocks than were matched";
  FetchResult result;
  if (into.empty()) return result;
  const PrefixMatch::State& state = *match.state_;
  const size_t payload_bytes = state.ns.layout.PayloadBytes();
  const absl::Time deadline = DeadlineIn(timeout, options_.fetch_timeout);
  result.blocks.assign(into.size(), BlockResult::kMiss);

  std::vector<FetchPart> parts(state.leases.size());
  for (uint32_t i = 0; i < into.size(); ++i) {
    IBID_CHECK(into[i].size() == payload_bytes)
        << "destination " << i << " has " << into[i].size() << " bytes";
    FetchPart& part = parts[state.lease_indices[first + i]];
    part.lease = state.leases[state.lease_indices[first + i]].get();
    part.indices.push_back(i);
    part.keys.push_back(state.keys[first + i]);
    part.into.push_back(into[i]);
  }
  std::erase_if(parts, [](const FetchPart& part) { return part.keys.empty(); });
  std::vector<std::function<void()>> calls;
  for (FetchPart& part : parts) {
    calls.push_back([this, &state, deadline, part = &part, &result] {
      FetchFromServer(state.ns, deadline, part, &result);
      ReportCorrupt(state.ns, deadline, *part, result);
    });
  }
  FanOut(executor_, calls);

  for (const FetchPart& part : parts) result.status.Update(part.status);
  const auto count = [&](BlockResult kind) {
    return std::count(result.blocks.begin(), result.blocks.end(), kind);
  };
  const auto first_bad = std::find_if(result.blocks.begin(), result.blocks.end(),
                                      [](BlockResult block) { return block != BlockResult::kOk; });
  result.leading_ok = static_cast<uint32_t>(first_bad - result.blocks.begin());
  result.bytes = static_cast<uint64_t>(count(BlockResult::kOk)) * payload_bytes;
  if (!result.status.ok())
    IBID_LOG_EVERY(kLogPeriodSeconds, warn, "fetch: {}", result.status.ToString());
  if (const auto corrupt = count(BlockResult::kCorrupt); corrupt > 0) {
    IBID_LOG_EVERY(kLogPeriodSeconds, error, "fetch: {} of {} blocks came with a wrong checksum",
                   corrupt, result.blocks.size());
    result.status.Update(
        absl::DataLossError(absl::StrCat(corrupt, " blocks came with a wrong checksum")));
  }
  if (metrics_.fetched_blocks != nullptr) {
    metrics_.fetched_blocks->Increment(static_cast<double>(count(BlockResult::kOk)));
    metrics_.missed_blocks->Increment(static_cast<double>(count(BlockResult::kMiss)));
    metrics_.corrupt_blocks->Increment(static_cast<double>(count(BlockResult::kCorrupt)));
    metrics_.fetched_bytes->Increment(static_cast<double>(result.bytes));
  }
  return result;
}

}  // namespace ibid
