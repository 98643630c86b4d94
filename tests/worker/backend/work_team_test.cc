#include "worker/backend/work_team.h"

#include <atomic>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace ibid {
namespace {

TEST(WorkTeam, RunsEveryTaskOnceWhateverTheNumberOfThreads) {
  for (const size_t threads : {1, 2, 3, 8}) {
    WorkTeam team(threads, [] {});
    EXPECT_EQ(team.threads(), threads);
    for (size_t count : {0, 1, 2, 7, 100}) {
      std::vector<std::atomic<int>> runs(count);
      for (int round = 0; round < 200; ++round) {
        team.Run(count, [&](size_t index, size_t thread) {
          EXPECT_LT(thread, threads);
          runs[index].fetch_add(1, std::memory_order_relaxed);
        });
      }
      for (const auto& n : runs) EXPECT_EQ(n.load(), 200);
    }
  }
}

TEST(WorkTeam, WhatTasksWroteIsSeenAfterTheRun) {
  WorkTeam team(4, [] {});
  std::vector<size_t> values(64);
  for (size_t round = 1; round <= 500; ++round) {
    team.Run(values.size(), [&](size_t index, size_t) { values[index] += index; });
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), size_t{0}), round * 63 * 64 / 2);
  }
}

TEST(WorkTeam, NoTwoTasksShareAThreadIndexAtOnce) {
  WorkTeam team(4, [] {});
  std::vector<std::atomic<int>> busy(4);
  for (int round = 0; round < 100; ++round) {
    team.Run(32, [&](size_t, size_t thread) {
      EXPECT_EQ(busy[thread].fetch_add(1), 0);
      busy[thread].fetch_sub(1);
    });
  }
}

TEST(WorkTeam, EndsWhileHelpersPollOrSleep) {
  for (int round = 0; round < 50; ++round) {
    WorkTeam team(3, [] {});
    if (round % 2 == 0) team.Run(5, [](size_t, size_t) {});
  }
}

}  // namespace
}  // namespace ibid
