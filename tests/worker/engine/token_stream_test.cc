#include "worker/engine/token_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace ibid {
namespace {

using testing::ElementsAre;

TEST(TokenStream, GivesWhatIsThereAsOneItemAndTheFinishLast) {
  TokenStream stream(RequestId{1}, 3);
  stream.Push(7, "a");
  stream.Push(8, "b");
  auto item = stream.Next(absl::Seconds(10));
  ASSERT_TRUE(item.has_value());
  EXPECT_THAT(item->tokens, ElementsAre(7, 8));
  EXPECT_EQ(item->text, "ab");
  EXPECT_FALSE(item->finish.has_value());
  EXPECT_FALSE(stream.Next(absl::ZeroDuration()).has_value());
  stream.Push(9, "");
  stream.Close({});
  item = stream.Next(absl::Seconds(10));
  ASSERT_TRUE(item.has_value() && item->finish.has_value());
  EXPECT_THAT(item->tokens, ElementsAre(9));
  EXPECT_FALSE(stream.Next(absl::Hours(1)).has_value());
}

TEST(TokenStream, CallsTheListenerForEachAdditionAndForgetsItAfterTheFinish) {
  TokenStream stream(RequestId{1}, 3);
  stream.Push(1, "");
  auto calls = std::make_shared<int>(0);
  stream.SetListener([calls] { ++*calls; });
  EXPECT_EQ(*calls, 1);  // something was there
  stream.Push(2, "");
  EXPECT_EQ(*calls, 2);
  stream.Close({});
  EXPECT_EQ(*calls, 3);
  EXPECT_EQ(calls.use_count(), 1);
}

TEST(TokenStream, CarriesTokensBetweenThreadsInOrder) {
  constexpr uint32_t kCount = 10'000;
  TokenStream stream(RequestId{1}, kCount);
  std::thread engine([&] {
    for (uint32_t i = 0; i < kCount; ++i) stream.Push(i, "");
    stream.Close({});
  });
  uint32_t next = 0;
  bool is_finished = false;
  while (!is_finished) {
    const auto item = stream.Next(absl::Seconds(30));
    ASSERT_TRUE(item.has_value());
    for (const uint32_t token : item->tokens) ASSERT_EQ(token, next++);
    is_finished = item->finish.has_value();
  }
  EXPECT_EQ(next, kCount);
  engine.join();
}

}  // namespace
}  // namespace ibid
