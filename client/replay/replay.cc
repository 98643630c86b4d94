#include "client/replay/replay.h"

#include <algorithm>
#include <memory>
#include <set>
#include <tuple>

#include "core/check.h"
#include "core/eviction/eviction_policy.h"
#include "core/eviction/eviction_tier.h"

namespace ibid {
namespace {

void Count(const Trace& trace, const TraceRequest& request, size_t hit_blocks,
           ReplayResult* result) {
  result->input_tokens += request.input_tokens;
  result->hit_tokens +=
      std::min<uint64_t>(uint64_t{trace.block_tokens} * hit_blocks, request.input_tokens);
  result->asked_blocks += request.blocks_count;
  result->hit_blocks += hit_blocks;
}

// How many leading blocks of `chain` satisfy `is_there`.
template <typename IsThere>
size_t LeadingCount(std::span<const EntryId> chain, IsThere is_there) {
  return std::find_if_not(chain.begin(), chain.end(), is_there) - chain.begin();
}

class TierReplay {
 public:
  TierReplay(const Trace& trace, absl::string_view policy_name, uint64_t capacity_blocks,
             uint32_t servers_count)
      : trace_(trace), server_of_(trace.blocks_count()) {
    for (uint32_t i = 0; i < servers_count; ++i) {
      servers_.push_back(std::make_unique<Server>(policy_name));
      servers_[i]->capacity_blocks = std::max<uint64_t>(1, capacity_blocks / servers_count);
      servers_[i]->tier.SetCapacity(servers_[i]->capacity_blocks);
    }
  }

  ReplayResult Run() {
    for (const TraceRequest& request : trace_.requests) Serve(request);
    return result_;
  }

 private:
  struct Server {
    explicit Server(absl::string_view policy_name) : tier(policy_name) {}
    EvictionTier tier;
    uint64_t capacity_blocks = 0;
    uint64_t held_blocks = 0;
    std::vector<ChainBlock> keys;     // of the request that is served
    std::vector<uint32_t> positions;  // of them
  };

  void Serve(const TraceRequest& request) {
    const auto chain = trace_.ChainOf(request);
    Place(chain);
    const auto is_there = [&](EntryId b) { return ServerOf(b).tier.contains(b); };
    Count(trace_, request, LeadingCount(chain, is_there), &result_);
    Server& first = ServerOf(chain[0]);
    const uint32_t end = LookUp(first, chain, static_cast<uint32_t>(chain.size()));
    for (const auto& server : servers_) {
      if (server.get() != &first) LookUp(*server, chain, end);
    }
    for (uint32_t i = 0; i < chain.size(); ++i) {
      if (is_there(chain[i])) continue;
      Put(chain, i, /*is_tail=*/i + 1 == chain.size() && trace_.HasTail(request));
    }
    for (const auto& server : servers_) {
      while (server->held_blocks > server->capacity_blocks) Evict(*server);
    }
  }

  Server& ServerOf(EntryId b) { return *servers_[server_of_[b]]; }

  // A group lies where its first block's fingerprint says.
  void Place(std::span<const EntryId> chain) {
    for (const auto& server : servers_) {
      server->keys.clear();
      server->positions.clear();
    }
    for (uint32_t i = 0; i < chain.size(); ++i) {
      const EntryId first = chain[i - i % kReplayGroupBlocks];
      server_of_[chain[i]] = static_cast<uint16_t>(trace_.fingerprints[first] % servers_.size());
      ServerOf(chain[i]).positions.push_back(i);
    }
  }

  // Asks for the server's blocks of the chain before `end`. Returns where the first of them is that
  // it lacks, or the chain's length.
  uint32_t LookUp(Server& server, std::span<const EntryId> chain, uint32_t end) {
    auto first_miss = static_cast<uint32_t>(chain.size());
    for (const uint32_t i : server.positions) {
      if (i >= end) break;
      const bool is_found = i < first_miss && server.tier.contains(chain[i]);
      if (!is_found) first_miss = std::min(first_miss, i);
      server.keys.push_back({trace_.fingerprints[chain[i]], is_found ? chain[i] : kNoEntry});
    }
    if (server.keys.empty()) return first_miss;
    LookupTraits traits;
    traits.block_tokens = trace_.block_tokens;
    traits.first_position = server.positions.front();
    traits.is_part = servers_.size() > 1;
    server.tier.Lookup(server.keys, traits);
    return first_miss;
  }

  // The parent, if it is the same server's.
  EntryId ParentOf(EntryId b) const {
    const EntryId parent = trace_.parents[b];
    return parent == kNoEntry || server_of_[parent] != server_of_[b] ? kNoEntry : parent;
  }

  void Put(std::span<const EntryId> chain, uint32_t position, bool is_tail) {
    const EntryId b = chain[position];
    Server& server = ServerOf(b);
    BlockTraits traits;
    traits.fingerprint = trace_.fingerprints[b];
    traits.parent = ParentOf(b);
    traits.position = position;
    traits.block_tokens = trace_.block_tokens;
    traits.is_tail = is_tail;
    server.tier.Insert(b, traits.parent);
    server.tier.Admit(b, traits);
    ++server.held_blocks;
  }

  void Evict(Server& server) {
    const EntryId victim = server.tier.TakeVictim();
    IBID_CHECK(victim != kNoEntry) << "a full tier has no leaf";
    LeavingBlock leaving;
    leaving.fingerprint = trace_.fingerprints[victim];
    leaving.is_eviction = true;
    server.tier.Remove(victim, ParentOf(victim), leaving);
    --server.held_blocks;
    ++result_.evicted_blocks;
  }

  const Trace& trace_;
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<uint16_t> server_of_;  // by block
  ReplayResult result_;
};

// Belady's MIN: after each request the blocks with the nearest next use stay, of one request's the
// first of its chain; a block may be left out at once. Each use of a block is one of its parents',
// so what stays is closed under prefixes, and nothing of this size can hit more.
ReplayResult ReplayMin(const Trace& trace, uint64_t capacity_blocks) {
  constexpr uint32_t kNever = UINT32_MAX;
  // By place in trace.chains: the request that asks for the block next.
  std::vector<uint32_t> next_request(trace.chains.size(), kNever);
  std::vector<uint32_t> seen(trace.blocks_count(), kNever);
  for (size_t r = trace.requests.size(); r > 0; --r) {
    const TraceRequest& request = trace.requests[r - 1];
    for (size_t i = 0; i < request.blocks_count; ++i) {
      uint32_t& next = seen[trace.chains[request.chain_begin + i]];
      next_request[request.chain_begin + i] = next;
      next = static_cast<uint32_t>(r - 1);
    }
  }

  struct Held {
    uint32_t next_request = 0;  // 0: not held
    uint32_t position = 0;
  };
  std::vector<Held> held(trace.blocks_count());
  std::set<std::tuple<uint32_t, uint32_t, EntryId>> order;  // next request, position, block
  ReplayResult result;
  for (const TraceRequest& request : trace.requests) {
    const auto chain = trace.ChainOf(request);
    Count(trace, request, LeadingCount(chain, [&](EntryId b) { return held[b].next_request != 0; }),
          &result);
    for (uint32_t i = 0; i < chain.size(); ++i) {
      const EntryId b = chain[i];
      if (held[b].next_request != 0) order.erase({held[b].next_request, held[b].position, b});
      const uint32_t next = next_request[request.chain_begin + i];
      held[b] = {next == kNever ? 0 : next, i};
      if (next != kNever) order.emplace(next, i, b);
    }
    for (; order.size() > capacity_blocks; ++result.evicted_blocks) {
      const auto furthest = std::prev(order.end());
      held[std::get<2>(*furthest)] = {};
      order.erase(furthest);
    }
  }
  return result;
}

ReplayResult ReplayInfinite(const Trace& trace) {
  std::vector<bool> is_there(trace.blocks_count());
  ReplayResult result;
  for (const TraceRequest& request : trace.requests) {
    const auto chain = trace.ChainOf(request);
    Count(trace, request, LeadingCount(chain, [&](EntryId b) { return is_there[b]; }), &result);
    for (const EntryId b : chain) is_there[b] = true;
  }
  return result;
}

double Ratio(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

double ReplayResult::token_hit_ratio() const { return Ratio(hit_tokens, input_tokens); }
double ReplayResult::block_hit_ratio() const { return Ratio(hit_blocks, asked_blocks); }

absl::StatusOr<ReplayResult> ReplayTrace(const Trace& trace, absl::string_view policy_name,
                                         uint64_t capacity_blocks, uint32_t servers_count) {
  IBID_CHECK(servers_count > 0 && servers_count <= kReplayServersMax);
  if (policy_name == kInfinitePolicy) return ReplayInfinite(trace);
  if (capacity_blocks == 0) {
    return absl::InvalidArgumentError("a capacity of no blocks; give one of a block or more");
  }
  if (policy_name == kMinPolicy) return ReplayMin(trace, capacity_blocks);
  IBID_RETURN_IF_ERROR(CheckEvictionPolicyName(policy_name));
  return TierReplay(trace, policy_name, capacity_blocks, servers_count).Run();
}

uint64_t CapacityBlocks(const Trace& trace, double fraction) {
  const double blocks = fraction * static_cast<double>(trace.blocks_count());
  return std::max<uint64_t>(1, static_cast<uint64_t>(blocks));
}

}  // namespace ibid
