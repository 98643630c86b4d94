#include "client/replay/replay.h"

#include <algorithm>
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
  TierReplay(const Trace& trace, absl::string_view policy_name, uint64_t capacity_blocks)
      : trace_(trace), capacity_blocks_(capacity_blocks), tier_(policy_name) {
    tier_.SetCapacity(capacity_blocks);
  }

  ReplayResult Run() {
    for (const TraceRequest& request : trace_.requests) Serve(request);
    return result_;
  }

 private:
  void Serve(const TraceRequest& request) {
    const auto chain = trace_.ChainOf(request);
    Count(trace_, request, LeadingCount(chain, [&](EntryId b) { return tier_.contains(b); }),
          &result_);
    keys_.clear();
    for (const EntryId b : chain) {
      keys_.push_back({trace_.fingerprints[b], tier_.contains(b) ? b : kNoEntry});
    }
    tier_.Lookup(keys_, trace_.block_tokens);
    for (uint32_t i = 0; i < chain.size(); ++i) {
      if (tier_.contains(chain[i])) continue;
      Put(chain[i], i, /*is_tail=*/i + 1 == chain.size() && trace_.HasTail(request));
    }
    while (held_blocks_ > capacity_blocks_) Evict();
  }

  void Put(EntryId b, uint32_t position, bool is_tail) {
    BlockTraits traits;
    traits.fingerprint = trace_.fingerprints[b];
    traits.parent = trace_.parents[b];
    traits.position = position;
    traits.block_tokens = trace_.block_tokens;
    traits.is_tail = is_tail;
    tier_.Insert(b, traits.parent);
    tier_.Admit(b, traits);
    ++held_blocks_;
  }

  void Evict() {
    const EntryId victim = tier_.TakeVictim();
    IBID_CHECK(victim != kNoEntry) << "a full tier has no leaf";
    LeavingBlock leaving;
    leaving.fingerprint = trace_.fingerprints[victim];
    leaving.is_eviction = true;
    tier_.Remove(victim, trace_.parents[victim], leaving);
    --held_blocks_;
    ++result_.evicted_blocks;
  }

  const Trace& trace_;
  const uint64_t capacity_blocks_;
  EvictionTier tier_;
  std::vector<ChainBlock> keys_;  // of the request that is served
  uint64_t held_blocks_ = 0;
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
                                         uint64_t capacity_blocks) {
  if (policy_name == kInfinitePolicy) return ReplayInfinite(trace);
  if (capacity_blocks == 0) {
    return absl::InvalidArgumentError("a capacity of no blocks; give one of a block or more");
  }
  if (policy_name == kMinPolicy) return ReplayMin(trace, capacity_blocks);
  IBID_RETURN_IF_ERROR(CheckEvictionPolicyName(policy_name));
  return TierReplay(trace, policy_name, capacity_blocks).Run();
}

uint64_t CapacityBlocks(const Trace& trace, double fraction) {
  const double blocks = fraction * static_cast<double>(trace.blocks_count());
  return std::max<uint64_t>(1, static_cast<uint64_t>(blocks));
}

}  // namespace ibid
