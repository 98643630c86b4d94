#include "worker/engine/plan_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace ibid {

bool operator==(const PlannedRows& a, const PlannedRows& b) {
  return a.index == b.index && a.tokens_count == b.tokens_count;
}
void PrintTo(const PlannedRows& rows, std::ostream* out) {
  *out << rows.index << ":" << rows.tokens_count;
}

namespace {

using testing::ElementsAre;
using testing::IsEmpty;

PlanSequence Decoding(size_t tokens, size_t own_pages) {
  return {tokens, tokens - 1, own_pages, own_pages};
}
PlanSequence Prompt(size_t tokens, size_t computed = 0) {
  return {tokens, computed, (computed + 15) / 16, (computed + 15) / 16};
}

TEST(PlanStep, NothingRunningIsNoWork) {
  const StepPlan plan = PlanStep({}, {}, 10);
  EXPECT_THAT(plan.rows, IsEmpty());
  EXPECT_THAT(plan.preempted, IsEmpty());
}

TEST(PlanStep, DecodesFirstAndFillsTheBudgetWithPromptsOldestFirst) {
  const std::vector<PlanSequence> running = {Prompt(100), Decoding(20, 2), Prompt(100),
                                             Decoding(5, 1)};
  EXPECT_THAT(PlanStep({64, 16}, running, 100).rows,
              ElementsAre(PlannedRows{0, 62}, PlannedRows{1, 1}, PlannedRows{3, 1}));
  EXPECT_THAT(
      PlanStep({128, 16}, running, 100).rows,
      ElementsAre(PlannedRows{0, 100}, PlannedRows{1, 1}, PlannedRows{2, 26}, PlannedRows{3, 1}));
}

TEST(PlanStep, CutsAPromptToThePagesThereAre) {
  EXPECT_THAT(PlanStep({512, 16}, std::vector{Prompt(100)}, 2).rows,
              ElementsAre(PlannedRows{0, 32}));
  // The page that it holds has room for 6 more tokens.
  EXPECT_THAT(PlanStep({512, 16}, std::vector{Prompt(100, 10)}, 2).rows,
              ElementsAre(PlannedRows{0, 38}));
}

TEST(PlanStep, PreemptsTheYoungestForAnOlderOne) {
  const std::vector<PlanSequence> running = {Decoding(17, 1), Decoding(33, 2), Decoding(30, 2)};
  const StepPlan plan = PlanStep({512, 16}, running, 0);
  EXPECT_THAT(plan.preempted, ElementsAre(2));
  EXPECT_THAT(plan.rows,
              ElementsAre(PlannedRows{0, 1}, PlannedRows{1, 1}));  // one page each, of the two
}

TEST(PlanStep, TakesBackRowsOfASequenceThatItPreemptsLater) {
  // The old prompt finds no page: the young decoder, already planned, gives way.
  const std::vector<PlanSequence> running = {Prompt(64, 16), Decoding(20, 2)};
  const StepPlan plan = PlanStep({512, 16}, running, 0);
  EXPECT_THAT(plan.preempted, ElementsAre(1));
  EXPECT_THAT(plan.rows, ElementsAre(PlannedRows{0, 32}));
}

TEST(PlanStep, TheYoungestWaitsWithItsPagesWhenNobodyIsYounger) {
  const std::vector<PlanSequence> running = {Decoding(20, 2), Decoding(17, 1)};
  const StepPlan plan = PlanStep({512, 16}, running, 0);
  EXPECT_THAT(plan.preempted, IsEmpty());
  EXPECT_THAT(plan.rows, ElementsAre(PlannedRows{0, 1}));
}

TEST(PlanStep, SharedPagesAreNotCountedAsFreed) {
  std::vector<PlanSequence> running = {Decoding(17, 1), Decoding(33, 3)};
  running[1].pages_own_count = 0;
  const StepPlan plan = PlanStep({512, 16}, running, 0);
  EXPECT_THAT(plan.preempted, ElementsAre(1));
  EXPECT_THAT(plan.rows, IsEmpty());
}

TEST(PlanStep, KeepsItsPromisesOnRandomStates) {
  std::mt19937 random(7);
  for (int round = 0; round < 20'000; ++round) {
    const PlanLimits limits{1 + static_cast<uint32_t>(random() % 80), 1u << random() % 5};
    std::vector<PlanSequence> running(random() % 8);
    for (PlanSequence& sequence : running) {
      sequence.computed_count = random() % 60;
      sequence.tokens_count = sequence.computed_count + (random() % 2 ? 1 : 1 + random() % 100);
      sequence.pages_count =
          (sequence.computed_count + limits.block_tokens - 1) / limits.block_tokens + random() % 2;
      sequence.pages_own_count =
          sequence.pages_count == 0 ? 0 : random() % (sequence.pages_count + 1);
    }
    const size_t available = random() % 12;
    const StepPlan plan = PlanStep(limits, running, available);

    size_t rows = 0, pages = 0, freed = 0;
    for (const size_t index : plan.preempted) freed += running[index].pages_own_count;
    for (const PlannedRows& planned : plan.rows) {
      const PlanSequence& sequence = running[planned.index];
      ASSERT_GE(planned.tokens_count, 1);
      ASSERT_LE(sequence.computed_count + planned.tokens_count, sequence.tokens_count);
      ASSERT_EQ(std::count(plan.preempted.begin(), plan.preempted.end(), planned.index), 0);
      rows += planned.tokens_count;
      const size_t needed =
          (sequence.computed_count + planned.tokens_count + limits.block_tokens - 1) /
          limits.block_tokens;
      pages += needed - std::min(needed, sequence.pages_count);
    }
    ASSERT_LE(rows, limits.step_tokens_max) << round;
    ASSERT_LE(pages, available + freed) << round;
    ASSERT_EQ(std::count(plan.preempted.begin(), plan.preempted.end(), 0u), 0) << round;
    // The preempted are the youngest.
    for (size_t i = 0; i < plan.preempted.size(); ++i)
      ASSERT_EQ(plan.preempted[i], running.size() - 1 - i);
    if (!running.empty() && limits.step_tokens_max > running.size() && available > 0) {
      ASSERT_TRUE(!plan.rows.empty() && plan.rows[0].index == 0) << round;
    }
  }
}

TEST(CountAdmissible, AdmitsInOrderWhileKnownTokensFit) {
  EXPECT_EQ(CountAdmissible(std::vector<size_t>{3, 3, 3}, 0, 10, 8, 0), 2u);
  EXPECT_EQ(CountAdmissible(std::vector<size_t>{3, 100, 1}, 0, 10, 8, 0), 1u);  // nobody overtakes
  EXPECT_EQ(CountAdmissible(std::vector<size_t>{1, 1, 1}, 8, 10, 100, 0), 2u);
  EXPECT_EQ(CountAdmissible(std::vector<size_t>{1}, 1, 10, 8, 7), 0u);
}

TEST(CountAdmissible, TheFirstMayAlwaysStartWhenNothingIsActive) {
  EXPECT_EQ(CountAdmissible(std::vector<size_t>{100, 1}, 0, 10, 8, 0), 1u);
}

// Every request ends, whatever the pages, as long as each fits alone (no request starves, nothing
// is stuck).
TEST(PlanStep, EveryRequestOfARandomWorkloadEnds) {
  struct Request {
    size_t prompt, output, tokens, computed, pages;
    bool is_running;
  };
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    constexpr size_t kBlock = 4;
    const size_t pages_total = 8 + random() % 30;
    const PlanLimits limits{6 + static_cast<uint32_t>(random() % 20), kBlock};
    std::map<size_t, Request> live;  // by arrival
    for (size_t i = 0; i < 12; ++i) {
      Request request{};
      request.prompt = 1 + random() % (pages_total * kBlock / 2);
      request.output = 1 + random() % (pages_total * kBlock / 2 - 1);
      request.tokens = request.prompt;
      live[i] = request;
    }
    size_t steps = 0, work = 0;
    for (const auto& [id, request] : live) work += request.prompt + request.output;
    while (!live.empty()) {
      ASSERT_LT(++steps, work * 20) << "round " << round;
      std::vector<size_t> waiting, needs, running;
      size_t used = 0, promised = 0;
      for (auto& [id, request] : live) {
        const size_t needed = (request.tokens + kBlock - 1) / kBlock;
        if (request.is_running) {
          running.push_back(id);
          used += request.pages;
          promised += needed + 1 - std::min(needed + 1, request.pages);
        } else {
          waiting.push_back(id);
          needs.push_back(needed);
        }
      }
      const size_t admitted =
          CountAdmissible(needs, running.size(), 5, pages_total - used, promised);
      for (size_t i = 0; i < admitted; ++i) {
        live[waiting[i]].is_running = true;
        running.push_back(waiting[i]);
      }
      std::sort(running.begin(), running.end());
      std::vector<PlanSequence> views;
      for (const size_t id : running) {
        views.push_back({live[id].tokens, live[id].computed, live[id].pages, live[id].pages});
      }
      const StepPlan plan = PlanStep(limits, views, pages_total - used);
      ASSERT_FALSE(plan.rows.empty()) << "stuck in round " << round;
      for (const size_t index : plan.preempted) {
        Request& request = live[running[index]];
        request.is_running = false;
        request.computed = request.pages = 0;
      }
      for (const PlannedRows& planned : plan.rows) {
        Request& request = live[running[planned.index]];
        request.computed += planned.tokens_count;
        request.pages = std::max(request.pages, (request.computed + kBlock - 1) / kBlock);
        if (request.computed == request.tokens &&
            ++request.tokens == request.prompt + request.output) {
          live.erase(running[planned.index]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace ibid
