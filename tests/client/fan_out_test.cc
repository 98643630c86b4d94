#include "client/fan_out.h"

#include <atomic>
#include <set>
#include <thread>

#include "core/mutex.h"
#include "gtest/gtest.h"

namespace ibid {
namespace {

TEST(FanOutTest, RunsEachPartOnceAndReturnsWhenAllAreDone) {
  Executor executor("test", 4, 64);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::atomic<int>> runs(9);
    std::vector<std::function<void()>> parts;
    for (auto& run : runs) parts.push_back([&run] { ++run; });
    FanOut(executor, parts);
    for (auto& run : runs) EXPECT_EQ(run, 1);
  }
}

TEST(FanOutTest, NoPartsIsNoWork) {
  Executor executor("test", 1, 1);
  FanOut(executor, {});
}

// The parts meet each other: they would wait for ever if they did not run side by side.
TEST(FanOutTest, PartsRunSideBySide) {
  Executor executor("test", 3, 8);
  Mutex mutex;
  CondVar changed;
  int arrived_count = 0;
  const auto meet = [&] {
    MutexLock lock(mutex);
    ++arrived_count;
    changed.NotifyAll();
    while (arrived_count < 3) changed.Wait(mutex);
  };
  const std::vector<std::function<void()>> parts = {meet, meet, meet};
  FanOut(executor, parts);
  EXPECT_EQ(arrived_count, 3);
}

TEST(FanOutTest, ABusyExecutorDoesNotHoldTheCallUp) {
  Executor executor("test", 1, 1);
  Mutex mutex;
  CondVar changed;
  bool may_end = false;
  ASSERT_TRUE(executor.TrySubmit([&] {
    MutexLock lock(mutex);
    while (!may_end) changed.Wait(mutex);
  }));
  std::set<std::thread::id> threads;
  const auto part = [&] { threads.insert(std::this_thread::get_id()); };
  const std::vector<std::function<void()>> parts = {part, part, part, part};
  FanOut(executor, parts);
  EXPECT_EQ(threads, std::set<std::thread::id>{std::this_thread::get_id()});
  MutexLock lock(mutex);
  may_end = true;
  changed.NotifyAll();
}

}  // namespace
}  // namespace ibid
