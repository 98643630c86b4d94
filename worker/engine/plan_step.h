// What the next step of the engine computes: pure functions from counts to counts.
//
// Continuous batching: every running sequence may have rows in every step. Sequences that decode
// need one row each and come first, so that a long prompt does not hold up the others; the rest of
// the budget goes to prompts, oldest first, in chunks. When pages run out, the youngest sequences
// are preempted: they give their pages back and are computed again later. The oldest sequence is
// never preempted, so each request ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ibid {

struct PlanLimits {
  uint32_t step_tokens_max = 512;
  uint32_t block_tokens = 16;
};

// A running sequence, seen by the planner.
struct PlanSequence {
  size_t tokens_count = 0;     // known: prompt and output so far
  size_t computed_count = 0;   // of these, with KV in pages; fewer than tokens_count
  size_t pages_count = 0;      // pages it holds
  size_t pages_own_count = 0;  // of these, pages that nobody else holds: what preempting it frees
};

struct PlannedRows {
  size_t index = 0;         // into the sequences given
  size_t tokens_count = 0;  // rows, at least 1
};

struct StepPlan {
  std::vector<PlannedRows> rows;  // by index
  std::vector<size_t> preempted;  // indices, youngest first; none of them has rows
};

// `running` is oldest first. Promises: rows sum to at most step_tokens_max; the pages that the rows
// need beyond those held are at most `pages_available` plus the own pages of the preempted;
// sequence 0 is not preempted, and has rows unless no page can be found for it (others' pages are
// being copied) or decoding alone uses up the budget.
StepPlan PlanStep(const PlanLimits& limits, std::span<const PlanSequence> running,
                  size_t pages_available);

// How many leading sequences of the waiting list may start now. `waiting_pages[i]`: pages for all
// known tokens of it. `pages_promised`: what the active ones still need for their known tokens, and
// one more page each to go on with. Without an active sequence the first one may always start.
// First come, first served: one that has no room yet holds up those behind it.
size_t CountAdmissible(std::span<const size_t> waiting_pages, size_t active_count,
                       size_t active_max, size_t pages_available, size_t pages_promised);

}  // namespace ibid
