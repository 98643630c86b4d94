// FetchInPlace: where the leased blocks lie in the memory of servers on this host.
#include <utility>

#include "client/client_impl.h"
#include "client/fan_out.h"
#include "core/check.h"
#include "core/log.h"

namespace ibid {

BlocksInPlace::BlocksInPlace() = default;
BlocksInPlace::BlocksInPlace(BlocksInPlace&&) noexcept = default;
BlocksInPlace& BlocksInPlace::operator=(BlocksInPlace&&) noexcept = default;
BlocksInPlace::~BlocksInPlace() = default;

size_t BlocksInPlace::size() const { return state_ == nullptr ? 0 : state_->blocks.size(); }

ByteView BlocksInPlace::block(size_t i) const {
  IBID_CHECK(i < size()) << i;
  return state_->blocks[i].bytes;
}

bool BlocksInPlace::is_current(size_t i) const {
  IBID_CHECK(i < size()) << i;
  const State::Block& block = state_->blocks[i];
  return block.shm != nullptr && block.shm->IsCurrent(block.located.place);
}

bool BlocksInPlace::Verify(size_t i) const {
  IBID_CHECK(i < size()) << i;
  const State::Block& block = state_->blocks[i];
  return block.shm != nullptr && Checksum(block.bytes) == block.located.checksum && is_current(i);
}

// Those of `blocks` that are under one lease; each call writes to other blocks.
void ClientImpl::LocateOnServer(const PrefixMatch::State& match, uint32_t lease_index,
                                uint32_t first, absl::Time deadline, BlocksInPlace::State* blocks) {
  const HeldLease& lease = *match.leases[lease_index];
  if (lease.lease_id == 0) return;
  std::vector<uint32_t> indices;
  std::vector<BlockKey> keys;
  for (uint32_t i = 0; i < blocks->blocks.size(); ++i) {
    if (match.lease_indices[first + i] != lease_index) continue;
    indices.push_back(i);
    keys.push_back(match.keys[first + i]);
  }
  if (keys.empty()) return;
  ServerLink& link = *links_[lease.server];
  const absl::Status status = link.Call(
      CallKind::kFetch, match.ns.index, deadline, [&](const LinkCall& call) -> absl::Status {
        if (call.shm == nullptr || lease.session.lock() != call.session) return absl::OkStatus();
        FetchCall fetch;
        fetch.session_id = call.session->session_id();
        fetch.ns = match.ns.id;
        fetch.lease_id = lease.lease_id;
        fetch.shm = call.shm;
        const absl::StatusOr<LocateReply> reply =
            call.channel->Locate(fetch, keys, match.ns.layout.PayloadBytes(), call.timeout);
        IBID_RETURN_IF_ERROR(reply.status());
        IBID_RETURN_IF_ERROR(link.CheckIncarnation(call, reply->incarnation));
        for (size_t i = 0; i < keys.size(); ++i) {
          if (!reply->blocks[i].has_value()) continue;
          BlocksInPlace::State::Block& block = blocks->blocks[indices[i]];
          block.located = *reply->blocks[i];
          block.bytes = *call.shm->BytesAt(block.located.place);
          block.shm = call.shm;
        }
        return absl::OkStatus();
      });
  if (!status.ok()) {
    IBID_LOG_EVERY(kLogPeriodSeconds, warn, "fetch in place: {}", status.ToString());
  }
}

BlocksInPlace ClientImpl::FetchInPlace(const PrefixMatch& match, uint32_t first, uint32_t count,
                                       absl::Duration timeout) {
  IBID_CHECK(size_t{first} + count <= match.blocks_count()) << "more blocks than were matched";
  BlocksInPlace result;
  if (count == 0) return result;
  const PrefixMatch::State& state = *match.state_;
  const absl::Time deadline = DeadlineIn(timeout, options_.fetch_timeout);
  result.state_ = std::make_unique<BlocksInPlace::State>();
  result.state_->blocks.resize(count);
  result.state_->leases = state.leases;
  std::vector<std::function<void()>> calls;
  for (uint32_t i = 0; i < state.leases.size(); ++i) {
    calls.push_back([this, &state, i, first, deadline, blocks = result.state_.get()] {
      LocateOnServer(state, i, first, deadline, blocks);
    });
  }
  FanOut(executor_, calls);
  return result;
}

BlocksInPlace Client::FetchInPlace(const PrefixMatch& match, uint32_t first, uint32_t count,
                                   absl::Duration timeout) {
  return impl_->FetchInPlace(match, first, count, timeout);
}

}  // namespace ibid
