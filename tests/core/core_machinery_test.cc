#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "core/bounded_queue.h"
#include "core/checksum.h"
#include "core/clock.h"
#include "core/executor.h"
#include "core/host_memory.h"
#include "core/log.h"
#include "core/metrics.h"

namespace ibid {
namespace {

TEST(Checksum, OfPiecesEqualsOfTheWhole) {
  std::vector<std::byte> bytes(100'000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 >> 3);
  ChecksumStream stream;
  const ByteView view(bytes);
  for (size_t at = 0; at < bytes.size();) {
    const size_t count = std::min<size_t>(1 + at % 977, bytes.size() - at);
    stream.Add(view.subspan(at, count));
    at += count;
  }
  EXPECT_EQ(stream.Finish(), Checksum(view));
  bytes[50'000] ^= std::byte{1};
  EXPECT_NE(stream.Finish(), Checksum(view));
}

// The published value of XXH3-64 for no bytes at all (xxHash specification, seed 0).
TEST(Checksum, IsXxh3) { EXPECT_EQ(Checksum({}), 0x2D06800538D394C2u); }

TEST(BoundedQueue, RefusesWhenFullAndKeepsOrder) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.TryPush(2));
  EXPECT_FALSE(queue.TryPush(3));
  EXPECT_EQ(queue.Pop(absl::Seconds(1)), 1);
  EXPECT_EQ(queue.Pop(absl::Seconds(1)), 2);
  EXPECT_EQ(queue.Pop(absl::ZeroDuration()), std::nullopt);
}

TEST(BoundedQueue, ClosingWakesAWaiterAndKeepsWhatIsInside) {
  BoundedQueue<int> queue(2);
  std::thread waiter([&] { EXPECT_EQ(queue.Pop(absl::Hours(1)), std::nullopt); });
  queue.Close();
  waiter.join();
  EXPECT_FALSE(queue.TryPush(1));

  BoundedQueue<int> filled(2);
  EXPECT_TRUE(filled.TryPush(7));
  filled.Close();
  EXPECT_EQ(filled.Pop(absl::Hours(1)), 7);
}

TEST(Executor, RunsAllThatItTookBeforeItEnds) {
  std::atomic<int> ran = 0;
  int taken = 0;
  {
    Executor executor("test", 3, 100);
    for (int i = 0; i < 1000; ++i) taken += executor.TrySubmit([&] { ran.fetch_add(1); });
  }
  EXPECT_GE(taken, 100);
  EXPECT_EQ(ran.load(), taken);
}

TEST(ManualClock, MovesOnlyWhenMoved) {
  ManualClock clock;
  const absl::Time start = clock.Now();
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(absl::Seconds(3));
  EXPECT_EQ(clock.Now() - start, absl::Seconds(3));
}

TEST(HostMemory, IsZeroAlignedAndShared) {
  auto memory = HostMemory::CreateReadableByOthers("ibid-test", 3 * kPageBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->begin()) % kPageBytes, 0u);
  EXPECT_EQ(memory->begin()[kPageBytes], std::byte{0});
  EXPECT_GE(memory->fd(), 0);
  HostMemory moved = std::move(*memory);
  EXPECT_EQ(moved.size(), 3 * kPageBytes);
  EXPECT_FALSE(HostMemory::CreatePrivate(size_t{1} << 60).ok());
}

TEST(Checksum, OfACopyIsThatOfTheSourceForAnySizeAndAlignment) {
  std::vector<std::byte> source(2'200'000), copy(source.size() + 64);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 7 + (i >> 11));
  for (const size_t size : {0, 1, 63, 64, 4'096, 16'383, 16'384, 16'385, 524'287, 524'288, 524'289,
                            524'351, 2'097'152, 2'199'999}) {
    for (const size_t shift : {0, 1, 32}) {
      std::fill(copy.begin(), copy.end(), std::byte{0xee});
      const ByteView from(source.data() + (size < source.size() ? shift % 2 : 0), size);
      EXPECT_EQ(CopyLarge(from, {copy.data() + shift, size}), Checksum(from)) << size;
      EXPECT_EQ(std::memcmp(copy.data() + shift, from.data(), size), 0) << size << " " << shift;
      EXPECT_EQ(copy[shift + size], std::byte{0xee}) << "nothing is written behind it";
    }
  }
}

TEST(Metrics, AreWrittenAsPrometheusText) {
  MetricsRegistry registry;
  MakeCounter(registry, "ibid_test_events_total", "Events.", {{"tier", "host"}}).Increment(3);
  MakeLatencyHistogram(registry, "ibid_test_seconds", "Time.").Observe(0.001);
  const std::string text = SerializeMetrics(registry);
  EXPECT_NE(text.find("ibid_test_events_total{tier=\"host\"} 3"), std::string::npos) << text;
  EXPECT_NE(text.find("ibid_test_seconds_count 1"), std::string::npos) << text;
}

TEST(Log, RefusesAnUnknownLevel) {
  EXPECT_TRUE(InitLog("test", "warn").ok());
  const absl::Status status = InitLog("test", "loud");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("loud"), std::string::npos);
}

}  // namespace
}  // namespace ibid
