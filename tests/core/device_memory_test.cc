#include "core/device_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <vector>

#include "core/check.h"

namespace ibid {
namespace {

constexpr size_t kBytes = 1 << 16;

// A copy that somebody can wait for.
class Completion {
 public:
  DeviceMemory::Done done() {
    return [this](absl::Status status) { promise_.set_value(std::move(status)); };
  }
  absl::Status Wait() { return future_.get(); }

 private:
  std::promise<absl::Status> promise_;
  std::future<absl::Status> future_ = promise_.get_future();
};

class DeviceMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto memory = CreateHostDeviceMemory(4 * kBytes, 2);
    ASSERT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
  }

  static std::vector<std::byte> Filled(uint8_t value) {
    return std::vector<std::byte>(kBytes, std::byte{value});
  }

  std::unique_ptr<DeviceMemory> memory_;
};

TEST_F(DeviceMemoryTest, WhatWasCopiedInComesOutFromWhereItWasMoved) {
  const std::vector<std::byte> in = Filled(7);
  std::vector<std::byte> out = Filled(0);
  Completion written, moved, read;
  memory_->CopyFromHost(0, kBytes, in, written.done());
  memory_->CopyWithin(0, kBytes, 3 * kBytes, kBytes, moved.done());
  memory_->CopyToHost(0, 3 * kBytes, out, read.done());
  EXPECT_TRUE(read.Wait().ok());
  EXPECT_TRUE(written.Wait().ok());
  EXPECT_TRUE(moved.Wait().ok());
  EXPECT_EQ(out, in);
}

// failures 6: a copy must not read what is still being written on another stream.
TEST_F(DeviceMemoryTest, AStreamThatWaitsForAnEventBeginsNothingBeforeIt) {
  for (int round = 0; round < 200; ++round) {
    const std::vector<std::byte> in = Filled(static_cast<uint8_t>(round));
    std::vector<std::byte> out = Filled(255);
    Completion written, read;
    std::promise<void> gate;
    std::shared_future<void> opened = gate.get_future().share();
    Completion gate_done;
    // The first stream is busy with something until the gate opens.
    memory_->CopyFromHost(0, 0, in, [opened, done = gate_done.done()](absl::Status status) {
      opened.wait();
      done(std::move(status));
    });
    memory_->CopyFromHost(0, kBytes, in, written.done());
    memory_->WaitFor(1, memory_->Record(0));
    memory_->CopyToHost(1, kBytes, out, read.done());
    gate.set_value();
    EXPECT_TRUE(read.Wait().ok());
    ASSERT_EQ(out, in) << round;
    EXPECT_TRUE(written.Wait().ok());
    EXPECT_TRUE(gate_done.Wait().ok());
  }
}

TEST_F(DeviceMemoryTest, StreamsDoNotWaitForEachOtherUnasked) {
  std::promise<void> gate;
  std::shared_future<void> opened = gate.get_future().share();
  Completion blocked, free;
  const std::vector<std::byte> in = Filled(1);
  memory_->CopyFromHost(0, 0, in, [opened, done = blocked.done()](absl::Status status) {
    opened.wait();
    done(std::move(status));
  });
  memory_->CopyFromHost(1, kBytes, in, free.done());
  EXPECT_TRUE(free.Wait().ok()) << "though the other stream stands still";
  gate.set_value();
  EXPECT_TRUE(blocked.Wait().ok());
}

TEST_F(DeviceMemoryTest, TheEndWaitsForAllCopies) {
  std::atomic<int> done_count{0};
  const std::vector<std::byte> in = Filled(1);
  for (int i = 0; i < 100; ++i) {
    memory_->CopyFromHost(i % 2, i % 2 * kBytes, in, [&](absl::Status) { ++done_count; });
  }
  memory_.reset();
  EXPECT_EQ(done_count, 100);
}

TEST(HostDeviceMemory, NoBytesAndNoStreamsAreRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(CreateHostDeviceMemory(0, 1).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(CreateHostDeviceMemory(4096, 0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(CreateHostDeviceMemory(4096, 1000).status()));
}

}  // namespace
}  // namespace ibid
