#include "worker/engine/plan_step.h"

#include <algorithm>

#include "core/check.h"

namespace ibid {
namespace {

// The state of one planning: who is left, and what is left.
class Planner {
 public:
  Planner(const PlanLimits& limits, std::span<const PlanSequence> running, size_t pages_available)
      : block_tokens_(limits.block_tokens),
        running_(running),
        rows_(running.size(), 0),
        is_preempted_(running.size(), false),
        budget_(limits.step_tokens_max),
        pages_free_(pages_available),
        youngest_(running.size()) {}

  void Schedule(size_t index) {
    const PlanSequence& sequence = running_[index];
    const size_t wanted = sequence.tokens_count - sequence.computed_count;
    while (!is_preempted_[index] && budget_ > 0) {
      const size_t room =
          (sequence.pages_count + pages_free_) * block_tokens_ - sequence.computed_count;
      const size_t count = std::min({wanted, budget_, room});
      if (count > 0) {
        rows_[index] = count;
        budget_ -= count;
        pages_free_ -= NewPages(index);
        return;
      }
      if (!PreemptYoungerThan(index)) return;
    }
  }

  StepPlan Finish() && {
    StepPlan plan;
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i] > 0) plan.rows.push_back({i, rows_[i]});
    }
    plan.preempted = std::move(preempted_);
    return plan;
  }

 private:
  size_t NewPages(size_t index) const {
    const size_t needed =
        (running_[index].computed_count + rows_[index] + block_tokens_ - 1) / block_tokens_;
    return needed - std::min(needed, running_[index].pages_count);
  }

  bool PreemptYoungerThan(size_t index) {
    if (youngest_ <= index + 1) return false;
    const size_t victim = --youngest_;
    pages_free_ += running_[victim].pages_own_count + NewPages(victim) * (rows_[victim] > 0);
    budget_ += rows_[victim];
    rows_[victim] = 0;
    is_preempted_[victim] = true;
    preempted_.push_back(victim);
    return true;
  }

  const size_t block_tokens_;
  const std::span<const PlanSequence> running_;
  std::vector<size_t> rows_;
  std::vector<bool> is_preempted_;
  std::vector<size_t> preempted_;
  size_t budget_;
  size_t pages_free_;
  size_t youngest_;  // sequences from here on are preempted
};

}  // namespace

StepPlan PlanStep(const PlanLimits& limits, std::span<const PlanSequence> running,
                  size_t pages_available) {
  IBID_CHECK(limits.block_tokens > 0 && limits.step_tokens_max > 0);
  Planner planner(limits, running, pages_available);
  for (const bool is_decoding : {true, false}) {
    for (size_t i = 0; i < running.size(); ++i) {
      const PlanSequence& sequence = running[i];
      IBID_CHECK(sequence.computed_count < sequence.tokens_count);
      IBID_CHECK(sequence.computed_count <= sequence.pages_count * limits.block_tokens);
      if ((sequence.tokens_count - sequence.computed_count == 1) == is_decoding)
        planner.Schedule(i);
    }
  }
  return std::move(planner).Finish();
}

size_t CountAdmissible(std::span<const size_t> waiting_pages, size_t active_count,
                       size_t active_max, size_t pages_available, size_t pages_promised) {
  size_t count = 0;
  while (count < waiting_pages.size() && active_count < active_max) {
    const size_t needed = waiting_pages[count] + 1;
    if (active_count > 0 && pages_promised + needed > pages_available) break;
    pages_promised += needed;
    ++active_count;
    ++count;
  }
  return count;
}

}  // namespace ibid
