// What happens to a block while a copy of it into the gpu tier or out of it is under way: nobody
// sees half of it, and its places are given to nobody else before the copy is over.
#include "tests/cache_server/store/faulty_device_memory.h"

namespace ibid {
namespace {

class GpuOrderTest : public GpuTest {
 protected:
  // The chain is in the host tier, and the copies of its blocks are begun and held.
  void HoldCopiesOf(const std::vector<ChainLink>& chain) {
    PublishChain(chain);
    faults_.writes.Hold();
    const auto match = store_->Match(session_, ns_, KeysOf(chain), {.lease = true});
    ASSERT_TRUE(match.ok()) << match.status();
    store_->ReleaseLeases(session_, {&match->lease, 1});
    const int count = static_cast<int>(chain.size());
    ASSERT_TRUE(Becomes([&] { return faults_.writes.held_count == count; }));
  }
  void TearDown() override {
    faults_.writes.Release();
    faults_.reads.Release();
  }

  // Two chains of four blocks: the first in the gpu tier alone, which it fills, the second in the
  // host tier, where there is room for four more. A lease of the second sends the first down.
  void OpenWithOneUpAndOneDown(uint32_t io_threads_count) {
    BlockStoreOptions options = WithGpu(HostOnly(8, 8), 4);
    options.eviction_policy = "lru";
    options.io_threads_count = io_threads_count;
    OpenStore(options);
    PublishChain(up_);
    Ask(up_);
    const auto others = ChainOf(ns_, 3, 4);
    PublishChain(others);
    PublishChain(down_);
    store_->Drop(ns_, KeysOf(others));
    ASSERT_EQ(Probe(up_).gpu_blocks, 4u);
    ASSERT_EQ(Probe(up_).host_blocks, 0u);
    ASSERT_EQ(Probe(down_).host_blocks, 4u);
    ASSERT_EQ(Host().used_bytes, 4u * 4096);
  }
  void LeaseDown() {
    const auto match = store_->Match(session_, ns_, KeysOf(down_), {.lease = true});
    ASSERT_TRUE(match.ok()) << match.status();
    store_->ReleaseLeases(session_, {&match->lease, 1});
  }
  std::future<absl::StatusOr<BlockRef>> AcquireLater(const BlockKey& key) {
    const auto promise = std::make_shared<std::promise<absl::StatusOr<BlockRef>>>();
    store_->Acquire(
        ns_, key, [promise](absl::StatusOr<BlockRef> ref) { promise->set_value(std::move(ref)); });
    return promise->get_future();
  }
  void ExpectNothingIsLost() {
    ASSERT_TRUE(Flush());
    EXPECT_EQ(store_->stats().pinned_bytes, 0u);
    EXPECT_EQ(Host().used_bytes, Host().blocks * 4096);
    EXPECT_EQ(Gpu().used_bytes, Gpu().blocks * 4096);
    EXPECT_EQ(Matched(up_), 4u);
    EXPECT_EQ(Matched(down_), 4u);
    EXPECT_EQ(Verify().bad_copies(), 0u);
  }

  const std::vector<ChainLink> up_ = ChainOf(ns_, 1, 4), down_ = ChainOf(ns_, 2, 4);
};

TEST_F(GpuOrderTest, ABlockOnItsWayUpIsServedFromTheHostTier) {
  OpenStore(WithGpu(HostOnly(16, 8), 8));
  const auto chain = ChainOf(ns_, 1, 4);
  HoldCopiesOf(chain);
  EXPECT_EQ(Probe(chain).gpu_blocks, 0u);
  EXPECT_EQ(Probe(chain).host_blocks, 4u);
  EXPECT_EQ(Gpu().blocks, 0u) << "a copy counts once it is whole";
  ExpectServed(chain, "host");
  faults_.writes.Release();
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Probe(chain).gpu_blocks, 4u);
  EXPECT_EQ(store_->stats().pinned_bytes, 0u);
}

TEST_F(GpuOrderTest, ABlockDroppedOnItsWayUpIsGoneAndItsPlacesWaitForTheCopy) {
  OpenStore(WithGpu(HostOnly(8, 8), 8));
  const auto chain = ChainOf(ns_, 1, 4);
  HoldCopiesOf(chain);
  EXPECT_EQ(store_->Drop(ns_, KeysOf(chain)), 4u);
  EXPECT_EQ(Matched(chain), 0u);
  EXPECT_TRUE(absl::IsNotFound(AcquireOne(chain[0].key).status()));
  // Others fill the host tier meanwhile: what is being read of it is not theirs.
  const auto others = ChainOf(ns_, 2, 4), last = ChainOf(ns_, 3, 1);
  PublishChain(others);
  PublishChain(last);
  EXPECT_EQ(Matched(others), 3u) << "the last one took the place of one of them";
  EXPECT_EQ(Host().used_bytes, 8u * 4096) << "four places are still read by the device";
  faults_.writes.Release();
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Matched(chain), 0u);
  EXPECT_EQ(Gpu().used_bytes, 0u);
  EXPECT_EQ(Host().used_bytes, Host().blocks * 4096);
  ExpectServed({others.begin(), others.begin() + 3}, "host");
  ExpectServed(last, "host");
}

TEST_F(GpuOrderTest, ABlockPublishedAgainAfterItsDropIsAnotherOne) {
  OpenStore(WithGpu(HostOnly(16, 8), 8));
  const auto chain = ChainOf(ns_, 1, 2);
  HoldCopiesOf(chain);
  store_->Drop(ns_, KeysOf(chain));
  PublishChain(chain);
  EXPECT_EQ(Probe(chain).host_blocks, 2u);
  faults_.writes.Release();
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Probe(chain).gpu_blocks, 0u) << "what was copied up is the dropped one";
  EXPECT_EQ(Gpu().used_bytes, 0u);
  ExpectServed(chain, "host");
  Ask(chain);
  EXPECT_EQ(Probe(chain).gpu_blocks, 2u);
}

// The policy would have them leave the host tier: their bytes are being read.
TEST_F(GpuOrderTest, BlocksOnTheirWayUpDoNotLeaveTheHostTier) {
  BlockStoreOptions options = WithGpu(HostOnly(8, 8), 8);
  options.eviction_policy = "lru";
  OpenStore(options);
  const auto chain = ChainOf(ns_, 1, 4);
  HoldCopiesOf(chain);
  const auto others = ChainOf(ns_, 2, 4), last = ChainOf(ns_, 3, 1);
  PublishChain(others);
  PublishChain(last);
  EXPECT_EQ(Probe(chain).host_blocks, 4u) << "the least recently used";
  EXPECT_EQ(Matched(others), 3u);
  faults_.writes.Release();
  ASSERT_TRUE(Flush());
  ASSERT_EQ(Probe(chain).gpu_blocks, 4u);
  // And from then on they may.
  PublishChain(ChainOf(ns_, 4, 8));
  EXPECT_EQ(Probe(chain).gpu_blocks, 4u);
  for (const ChainLink& link : chain) {
    const auto ref = AcquireOne(link.key);
    ASSERT_TRUE(ref.ok()) << ref.status();
    EXPECT_TRUE(HasRightBytes(*ref, link.key));
  }
}

// Room in the gpu tier is made for others while a copy of one is written there: not its place.
TEST_F(GpuOrderTest, APlaceThatIsBeingWrittenIsGivenToNoOtherBlock) {
  OpenStore(WithGpu(HostOnly(32, 8), 4));
  const auto first = ChainOf(ns_, 1, 4);
  HoldCopiesOf(first);
  const auto second = ChainOf(ns_, 2, 4);
  PublishChain(second);
  const auto match = store_->Match(session_, ns_, KeysOf(second), {.lease = true});
  ASSERT_TRUE(match.ok()) << match.status();
  store_->ReleaseLeases(session_, {&match->lease, 1});
  faults_.writes.Release();
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Gpu().used_bytes, 4u * 4096);
  EXPECT_EQ(Gpu().blocks, 4u);
  EXPECT_EQ(Verify().bad_copies(), 0u);
}

// Who asked for the gpu copy finds the block one tier lower when its turn comes.
TEST_F(GpuOrderTest, ABlockCopiedDownWhileItsReadIsQueuedIsServedFromTheHostTier) {
  OpenWithOneUpAndOneDown(/*io_threads_count=*/1);
  // The one thread that reads is held by the first block's reader.
  std::promise<void> is_held, may_go;
  store_->Acquire(ns_, up_[0].key, [&](const absl::StatusOr<BlockRef>& ref) {
    EXPECT_TRUE(ref.ok()) << ref.status();
    is_held.set_value();
    may_go.get_future().wait();
  });
  is_held.get_future().wait();
  std::vector<std::future<absl::StatusOr<BlockRef>>> results;
  for (size_t i = 1; i < up_.size(); ++i) results.push_back(AcquireLater(up_[i].key));
  LeaseDown();
  ASSERT_TRUE(Becomes([this] { return Probe(down_).gpu_blocks >= 3; }));
  EXPECT_EQ(Gpu().evictions, 3u);
  EXPECT_EQ(Probe(up_).host_blocks, 3u);
  const uint64_t device_hits_before = Gpu().hits;
  may_go.set_value();
  for (size_t i = 1; i < up_.size(); ++i) {
    const auto ref = results[i - 1].get();
    ASSERT_TRUE(ref.ok()) << ref.status() << " at " << i;
    EXPECT_TRUE(HasRightBytes(*ref, up_[i].key));
    EXPECT_EQ(ref->tier(), "host");
  }
  EXPECT_EQ(Gpu().hits, device_hits_before);
  results.clear();
  ExpectNothingIsLost();
}

TEST_F(GpuOrderTest, ABlockThatIsReadWhileItIsCopiedDownIsCopiedOnce) {
  OpenWithOneUpAndOneDown(/*io_threads_count=*/4);
  faults_.reads.Hold();
  LeaseDown();
  ASSERT_TRUE(Becomes([this] { return faults_.reads.held_count == 1; })) << "one is copied down";
  std::vector<std::future<absl::StatusOr<BlockRef>>> results;
  for (const ChainLink& link : up_) results.push_back(AcquireLater(link.key));
  ASSERT_TRUE(Becomes([this] { return faults_.reads.held_count == 5; })) << "all are read";
  faults_.reads.Release();
  for (size_t i = 0; i < up_.size(); ++i) {
    const auto ref = results[i].get();
    ASSERT_TRUE(ref.ok()) << ref.status() << " at " << i;
    EXPECT_TRUE(HasRightBytes(*ref, up_[i].key));
  }
  results.clear();
  ExpectNothingIsLost();
}

TEST_F(GpuOrderTest, TheEndOfAStoreWaitsForCopiesUnderWay) {
  OpenStore(WithGpu(HostOnly(16, 8), 8));
  HoldCopiesOf(ChainOf(ns_, 1, 4));
  std::thread later([this] {
    absl::SleepFor(absl::Milliseconds(20));
    faults_.writes.Release();
  });
  store_.reset();
  later.join();
}

}  // namespace
}  // namespace ibid
