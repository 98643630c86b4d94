// Match: the chain is split by the servers that own its groups. Each server is asked once for all
// of its keys and answers how many of them it has from the first on; the prefix ends at the first
// key that its own server lacks:
//
//   chain     [ A A A A | B B B B | A A A A | C C C C ]      one group a cell, its server's letter
//   asks      A: 8 keys -> 6     B: 4 keys -> 4     C: not asked, its keys lie behind A's first
//   miss prefix    [ A A A A | B B B B | A A ]
//
// The first group's server is asked first and alone: when it lacks the start, which is the common
// miss, nobody else is asked.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "client/client_impl.h"
#include "client/fan_out.h"
#include "core/check.h"
#include "core/log.h"
#include "core/random_id.h"

namespace ibid {

struct ClientImpl::MatchQuery {
  NamespaceId ns;
  std::optional<uint32_t> namespace_index;  // none: it is not open, a probe
  bool lease = false;
  absl::Duration wait_pending;
  bool is_repeat = false;
  absl::Time deadline;
};

// The keys of one server, and its answer.
struct ClientImpl::MatchPart {
  uint16_t server = 0;
  std::vector<uint32_t> positions;  // in the chain, ascending
  std::vector<BlockKey> keys;
  uint32_t first_position = 0;  // of the first key, in the whole chain
  absl::Status status;
  uint32_t matched_count = 0, pending_count = 0, host_blocks = 0, disk_blocks = 0;
  std::shared_ptr<HeldLease> lease;

  // Number of this part's keys before chain position `end`.
  uint32_t CountBefore(uint32_t end) const {
    return static_cast<uint32_t>(std::lower_bound(positions.begin(), positions.end(), end) -
                                 positions.begin());
  }
  // Where, in the chain, this server's run of stored or pending keys ends.
  uint32_t FirstMiss() const {
    const size_t run = size_t{matched_count} + pending_count;
    return run < positions.size() ? positions[run] : std::numeric_limits<uint32_t>::max();
  }
  // Of the first `kept` matched keys, how many only the disk has. The server counts over all that
  // it matched: where the prefix needs fewer, its share is taken for theirs.
  uint32_t DiskBlocks(uint32_t kept) const {
    if (matched_count == 0) return 0;
    return static_cast<uint32_t>(uint64_t{std::min(disk_blocks, matched_count)} * kept /
                                 matched_count);
  }
};

namespace {

// How many blocks from the start are stored, and how many right behind them are pending.
template <typename Parts>
std::pair<uint32_t, uint32_t> CountPrefix(const Parts& parts) {
  uint32_t asked = 0;
  for (const auto& part : parts) {
    if (!part.positions.empty()) asked = std::max(asked, part.positions.back() + 1);
  }
  enum : uint8_t { kMissing, kStored, kPending };
  std::vector<uint8_t> found(asked, kMissing);
  for (const auto& part : parts) {
    for (uint32_t i = 0; i < part.matched_count; ++i) found[part.positions[i]] = kStored;
    for (uint32_t i = 0; i < part.pending_count; ++i)
      found[part.positions[part.matched_count + i]] = kPending;
  }
  uint32_t stored = 0;
  while (stored < asked && found[stored] == kStored) ++stored;
  uint32_t pending = 0;
  while (stored + pending < asked && found[stored + pending] == kPending) ++pending;
  return {stored, pending};
}

}  // namespace

std::vector<ClientImpl::MatchPart> ClientImpl::SplitForMatch(std::span<const ChainLink> chain) {
  const std::vector<uint16_t> placed = placement_.Place(chain);
  std::vector<MatchPart> parts;
  std::vector<int> part_of_server(links_.size(), -1);
  for (uint32_t i = 0; i < chain.size(); ++i) {
    if (placed[i] == Placement::kUnplaced) {
      IBID_LOG_EVERY(
          kLogPeriodSeconds, warn,
          "match: block {} of the chain is not placed: a chain begins at block 0 or at a block "
          "whose parent this client has matched or published",
          i);
      break;
    }
    int& part = part_of_server[placed[i]];
    if (part < 0 || parts[part].keys.size() >= options_.match_keys_max) {
      part = static_cast<int>(parts.size());
      parts.emplace_back();
      parts.back().server = placed[i];
      parts.back().first_position = chain[i].position;
    }
    parts[part].positions.push_back(i);
    parts[part].keys.push_back(chain[i].key);
  }
  return parts;
}

void ClientImpl::MatchOnServer(const MatchQuery& query, MatchPart* part) {
  ServerLink& link = *links_[part->server];
  const auto attempt = [&](const LinkCall& call) -> absl::Status {
    MatchCall match;
    match.session_id = call.session->session_id();
    match.ns = query.ns;
    match.lease = query.lease;
    if (query.lease) match.lease_id = RandomId();
    match.is_repeat = query.is_repeat;
    match.first_position = part->first_position;
    match.is_part = links_.size() > 1;
    match.wait_pending = std::min(query.wait_pending, call.timeout * kWaitShare);
    const absl::StatusOr<MatchReply> reply = call.channel->Match(match, part->keys, call.timeout);
    if (!query.namespace_index.has_value() && absl::IsFailedPrecondition(reply.status())) {
      return absl::OkStatus();  // the server does not know the namespace: it has no block of it
    }
    // The server may hold a lease for an answer that never came, and heartbeats would renew it.
    if (query.lease && !reply.ok()) call.session->ReleaseUnconfirmedLease(match.lease_id);
    IBID_RETURN_IF_ERROR(reply.status());
    IBID_RETURN_IF_ERROR(link.CheckIncarnation(call, reply->incarnation));
    if (uint64_t{reply->matched_count} + reply->pending_count > part->keys.size()) {
      return absl::InternalError(
          absl::StrCat(link.address(), ": matched more keys than it was asked for"));
    }
    part->matched_count = reply->matched_count;
    part->pending_count = reply->pending_count;
    part->host_blocks = reply->host_blocks;
    part->disk_blocks = reply->disk_blocks;
    part->lease = std::make_shared<HeldLease>(part->server, reply->lease_id, call.session);
    return absl::OkStatus();
  };
  part->status = query.namespace_index.has_value()
                     ? link.Call(CallKind::kMatch, *query.namespace_index, query.deadline, attempt)
                     : link.CallOnce(CallKind::kMatch, query.deadline, attempt);
  if (!part->status.ok())
    IBID_LOG_EVERY(kLogPeriodSeconds, warn, "match: {}", part->status.ToString());
}

std::vector<ClientImpl::MatchPart> ClientImpl::RunMatch(const MatchQuery& query,
                                                        std::span<const ChainLink> chain) {
  std::vector<MatchPart> parts = SplitForMatch(chain);
  if (parts.empty()) return parts;
  MatchOnServer(query, &parts[0]);
  const uint32_t end = parts[0].FirstMiss();
  std::vector<std::function<void()>> others;
  for (size_t i = 1; i < parts.size(); ++i) {
    const uint32_t count = parts[i].CountBefore(end);
    parts[i].positions.resize(count);
    parts[i].keys.resize(count);
    if (count > 0)
      others.push_back([this, &query, part = &parts[i]] { MatchOnServer(query, part); });
  }
  FanOut(executor_, others);
  return parts;
}

PrefixMatch ClientImpl::Match(const NamespaceHandle& ns, std::span<const ChainLink> chain,
                              const MatchCallOptions& options) {
  PrefixMatch match =
      MatchOne(ns, chain, options, DeadlineIn(options.timeout, options_.match_timeout));
  if (metrics_.matched_blocks != nullptr && !options.is_repeat) {
    const uint32_t stored = match.blocks_count();
    metrics_.matched_blocks->Increment(stored);
    metrics_.unmatched_blocks->Increment(static_cast<double>(chain.size()) - stored);
  }
  return match;
}

PrefixMatch ClientImpl::MatchOne(const NamespaceHandle& ns, std::span<const ChainLink> chain,
                                 const MatchCallOptions& options, absl::Time deadline) {
  MatchQuery query;
  query.ns = ns.id;
  query.namespace_index = ns.index;
  query.lease = options.lease;
  query.wait_pending = options.wait_pending;
  query.is_repeat = options.is_repeat;
  query.deadline = deadline;
  std::vector<MatchPart> parts = RunMatch(query, chain);

  PrefixMatch match;
  match.state_ = std::make_unique<PrefixMatch::State>();
  PrefixMatch::State& state = *match.state_;
  state.ns = ns;
  const auto [stored, pending] = CountPrefix(parts);
  state.pending_count = pending;
  state.keys.reserve(stored);
  for (uint32_t i = 0; i < stored; ++i) state.keys.push_back(chain[i].key);
  state.lease_indices.resize(stored);
  state.is_complete = true;
  for (const MatchPart& part : parts) {
    state.is_complete = state.is_complete && part.status.ok();
    const uint32_t kept = std::min(part.matched_count, part.CountBefore(stored));
    // Found behind the prefix's end: nobody will fetch it, and its lease ends with the part.
    if (kept == 0) continue;
    for (uint32_t i = 0; i < kept; ++i)
      state.lease_indices[part.positions[i]] = static_cast<uint32_t>(state.leases.size());
    state.leases.push_back(part.lease);
    state.disk_blocks += part.DiskBlocks(kept);
  }
  state.host_blocks = stored - state.disk_blocks;
  return match;
}

PrefixCount ClientImpl::Probe(const NamespaceId& ns, std::span<const ChainLink> chain,
                              absl::Duration timeout) {
  MatchQuery query;
  query.ns = ns;
  query.deadline = DeadlineIn(timeout, options_.match_timeout);
  const std::vector<MatchPart> parts = RunMatch(query, chain);
  PrefixCount count;
  std::tie(count.blocks, count.pending) = CountPrefix(parts);
  for (const MatchPart& part : parts) {
    count.disk_blocks +=
        part.DiskBlocks(std::min(part.matched_count, part.CountBefore(count.blocks)));
    count.is_complete = count.is_complete && part.status.ok();
  }
  count.host_blocks = count.blocks - count.disk_blocks;
  return count;
}

HeldLease::~HeldLease() {
  if (lease_id == 0) return;
  if (const auto holder = session.lock()) holder->ReleaseLeases({&lease_id, 1});
}

void PrefixMatch::State::Shorten(uint32_t count) {
  if (count >= keys.size()) return;
  disk_blocks = static_cast<uint32_t>(uint64_t{disk_blocks} * count / keys.size());
  host_blocks = count - disk_blocks;
  keys.resize(count);
  lease_indices.resize(count);
  std::vector<bool> is_used(leases.size(), false);
  for (const uint32_t index : lease_indices) is_used[index] = true;
  for (size_t i = 0; i < leases.size(); ++i) {
    if (!is_used[i]) leases[i].reset();
  }
}

PrefixMatch::PrefixMatch() = default;
PrefixMatch::PrefixMatch(PrefixMatch&&) noexcept = default;
PrefixMatch& PrefixMatch::operator=(PrefixMatch&&) noexcept = default;
PrefixMatch::~PrefixMatch() = default;

uint32_t PrefixMatch::blocks_count() const {
  return state_ == nullptr ? 0 : static_cast<uint32_t>(state_->keys.size());
}
uint32_t PrefixMatch::pending_count() const {
  return state_ == nullptr ? 0 : state_->pending_count;
}
bool PrefixMatch::is_complete() const { return state_ != nullptr && state_->is_complete; }
uint32_t PrefixMatch::host_blocks() const { return state_ == nullptr ? 0 : state_->host_blocks; }
uint32_t PrefixMatch::disk_blocks() const { return state_ == nullptr ? 0 : state_->disk_blocks; }

}  // namespace ibid
