// A device that can be told to fail or to stand still, and a store with a gpu tier over it.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "cache_server/gpu_tier.h"
#include "core/device_memory.h"
#include "core/mutex.h"
#include "tests/cache_server/store/store_harness.h"

namespace ibid {

// Copies of one direction, begun at once or once they are let go. Thread-safe.
class CopyGate {
 public:
  void Hold() {
    MutexLock lock(mutex_);
    is_held_ = true;
  }
  void Release() {
    std::deque<std::function<void()>> held;
    {
      MutexLock lock(mutex_);
      is_held_ = false;
      held.swap(held_);
    }
    for (const auto& begin : held) begin();
  }
  void Begin(std::function<void()> begin) {
    {
      MutexLock lock(mutex_);
      if (is_held_) {
        held_.push_back(std::move(begin));
        ++held_count;
        return;
      }
    }
    begin();
  }
  std::atomic<int> held_count{0};  // so far

 private:
  Mutex mutex_;
  bool is_held_ IBID_GUARDED_BY(mutex_) = false;
  std::deque<std::function<void()>> held_ IBID_GUARDED_BY(mutex_);
};

// What the test tells the device to do. Outlives the store.
struct DeviceFaults {
  std::atomic<bool> reads_fail{false};
  std::atomic<bool> writes_fail{false};
  std::atomic<int> reads_to_flip{0};  // the next ones have a bit flipped
  CopyGate reads, writes;             // copies out of the device, and into it
};

class FaultyDeviceMemory final : public DeviceMemory {
 public:
  FaultyDeviceMemory(std::unique_ptr<DeviceMemory> device, DeviceFaults& faults)
      : device_(std::move(device)), faults_(faults) {}

  absl::string_view kind() const override { return device_->kind(); }
  uint64_t bytes() const override { return device_->bytes(); }
  uint32_t streams_count() const override { return device_->streams_count(); }
  absl::Status RegisterHost(MutableByteView memory) override {
    return absl::ResourceExhaustedError("not here");
  }
  void CopyToHost(Stream stream, uint64_t offset, MutableByteView to, Done done) override {
    if (faults_.reads_fail) return done(absl::UnavailableError("the device is gone"));
    if (faults_.reads_to_flip > 0) {
      --faults_.reads_to_flip;
      done = [to, done = std::move(done)](absl::Status status) {
        to[100] ^= std::byte{1};
        done(std::move(status));
      };
    }
    faults_.reads.Begin([this, stream, offset, to, done = std::move(done)] {
      device_->CopyToHost(stream, offset, to, done);
    });
  }
  void CopyFromHost(Stream stream, uint64_t offset, ByteView from, Done done) override {
    if (faults_.writes_fail) return done(absl::UnavailableError("the device is gone"));
    faults_.writes.Begin([this, stream, offset, from, done = std::move(done)] {
      device_->CopyFromHost(stream, offset, from, done);
    });
  }
  void CopyWithin(Stream stream, uint64_t from, uint64_t to, uint64_t bytes, Done done) override {
    device_->CopyWithin(stream, from, to, bytes, std::move(done));
  }
  std::shared_ptr<Event> Record(Stream stream) override { return device_->Record(stream); }
  void WaitFor(Stream stream, std::shared_ptr<Event> event) override {
    device_->WaitFor(stream, std::move(event));
  }

 private:
  const std::unique_ptr<DeviceMemory> device_;
  DeviceFaults& faults_;
};

class GpuTest : public StoreFixture {
 protected:
  BlockStoreOptions WithGpu(BlockStoreOptions options, size_t gpu_pages) {
    options.create_gpu_memory = [this,
                                 gpu_pages]() -> absl::StatusOr<std::unique_ptr<DeviceMemory>> {
      auto memory = CreateHostDeviceMemory(gpu_pages * 4096, GpuTier::kStreamsCount);
      if (!memory.ok()) return memory.status();
      return std::make_unique<FaultyDeviceMemory>(*std::move(memory), faults_);
    };
    return options;
  }

  // A request that finds the chain: what it finds is a candidate for the gpu tier.
  void Ask(const std::vector<ChainLink>& chain) {
    MatchOptions options;
    options.lease = true;
    const auto match = store_->Match(session_, ns_, KeysOf(chain), options);
    ASSERT_TRUE(match.ok()) << match.status();
    const LeaseId lease = match->lease;
    EXPECT_TRUE(Flush());
    if (lease.value != 0) store_->ReleaseLeases(session_, {&lease, 1});
  }
  VerifyReport Verify() {
    const auto report = store_->Verify(0, [](const VerifyReport&) { return true; });
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *report : VerifyReport{};
  }
  // Nothing tells when, so this looks again until it is so. False after ten seconds.
  template <typename Condition>
  static bool Becomes(const Condition& condition) {
    const SteadyClock clock;
    const absl::Time until = clock.Now() + absl::Seconds(10);
    while (!condition() && clock.Now() < until) std::this_thread::yield();
    return condition();
  }
  BlockTierStats Gpu() { return TierOf(store_->stats(), "gpu"); }
  MatchResult Probe(const std::vector<ChainLink>& chain) {
    return *store_->Match({}, ns_, KeysOf(chain), {});
  }
  void ExpectServed(const std::vector<ChainLink>& chain, absl::string_view tier) {
    for (const ChainLink& link : chain) {
      const auto ref = AcquireOne(link.key);
      ASSERT_TRUE(ref.ok()) << ref.status() << " at " << link.position;
      EXPECT_TRUE(HasRightBytes(*ref, link.key));
      EXPECT_EQ(ref->tier(), tier) << link.position;
    }
  }

  DeviceFaults faults_;
};

}  // namespace ibid
