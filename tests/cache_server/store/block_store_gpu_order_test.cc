// What happens to a block while a copy of it into the gpu tier is under way: nobody sees half of
// it, and its places are given to nobody else before the copy is over.
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
  void TearDown() override { faults_.writes.Release(); }
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
