// When blocks go to disk: the three modes, each over a restart, and writes that found no room.
#include "tests/cache_server/store/faulty_extent_io.h"
#include "tests/cache_server/store/store_harness.h"

namespace ibid {
namespace {

class DiskWriteModeTest : public StoreFixture {
 protected:
  void Open(DiskWriteMode mode, size_t host_pages = 32) {
    BlockStoreOptions options = WithDisk(host_pages, 64, 1);
    options.disk_write = mode;
    OpenStore(options);
  }
  // What a request does with a prefix that it finds.
  uint32_t LookUp(const std::vector<ChainLink>& chain) {
    const auto found = store_->Match(session_, ns_, KeysOf(chain), {.lease = true});
    if (!found.ok()) return 0;
    store_->ReleaseLeases(session_, {&found->lease, 1});
    return found->matched_count;
  }
};

TEST_F(DiskWriteModeTest, ThroughKeepsWhateverWasPublishedOverARestart) {
  Open(DiskWriteMode::kThrough);
  const auto chain = ChainOf(ns_, 1, 3);
  PublishChain(chain);
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Disk().blocks, 3u);
  Reopen();
  EXPECT_EQ(Matched(chain), 3u);
}

TEST_F(DiskWriteModeTest, OnDemotionKeepsWhatLeftTheHostTierOverARestart) {
  Open(DiskWriteMode::kOnDemotion, 8);
  const auto first = ChainOf(ns_, 1, 4);
  const auto last = ChainOf(ns_, 2, 4);
  PublishChain(first);
  EXPECT_EQ(LookUp(first), 4u);
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Disk().blocks, 0u) << "a use is no reason";
  PublishChain(last);
  // At the pace of the disk: a publish that finds no room does not wait for it, and what it pushes
  // out is lost.
  for (const ChainLink& link : ChainOf(ns_, 3, 4)) {
    ASSERT_TRUE(Flush());
    PublishChain({link});
  }
  ASSERT_TRUE(Flush());
  // Twelve blocks where the host tier has room for eight: none is lost.
  std::vector<ChainLink> on_disk;
  for (const uint32_t seed : {1u, 2u, 3u}) {
    const auto chain = ChainOf(ns_, seed, 4);
    EXPECT_EQ(Matched(chain), 4u) << seed;
    for (const ChainLink& link : chain) {
      if (store_->Match({}, ns_, {&link.key, 1}, {})->disk_blocks == 1) on_disk.push_back(link);
    }
  }
  EXPECT_GE(on_disk.size(), 4u);
  EXPECT_EQ(Disk().blocks, on_disk.size());
  Reopen();
  EXPECT_EQ(Disk().blocks, on_disk.size());
  for (const ChainLink& link : on_disk) {
    const auto ref = AcquireOne(link.key);
    ASSERT_TRUE(ref.ok()) << ref.status();
    EXPECT_TRUE(HasRightBytes(*ref, link.key));
  }
}

TEST_F(DiskWriteModeTest, OnSecondUseKeepsWhatWasUsedAgainOverARestart) {
  Open(DiskWriteMode::kOnSecondUse);
  const auto used = ChainOf(ns_, 1, 3);
  const auto once = ChainOf(ns_, 2, 3);
  PublishChain(used);
  PublishChain(once);
  EXPECT_EQ(Matched(used), 3u) << "a probe is no use";
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Disk().blocks, 0u);
  EXPECT_EQ(LookUp(used), 3u);
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Disk().blocks, 3u);
  EXPECT_EQ(LookUp(used), 3u);
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Disk().blocks, 3u) << "each is written once";
  Reopen();
  EXPECT_EQ(Matched(used), 3u);
  EXPECT_EQ(Matched(once), 0u);
}

TEST_F(DiskWriteModeTest, ASecondPublicationAndAReadAreUsesToo) {
  Open(DiskWriteMode::kOnSecondUse);
  const auto chain = ChainOf(ns_, 1, 3);
  PublishChain(chain);
  ASSERT_EQ(store_->Offer(session_, ns_, std::vector<BlockKey>{chain[0].key})->at(0),
            OfferState::kPresent);
  ASSERT_TRUE(AcquireOne(chain[1].key).ok());
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Disk().blocks, 2u);
  Reopen();
  EXPECT_EQ(Matched(chain), 2u);
}

TEST_F(DiskWriteModeTest, OnSecondUseWhatIsNeverUsedAgainIsLostWithItsHostCopy) {
  Open(DiskWriteMode::kOnSecondUse, 4);
  const auto once = ChainOf(ns_, 1, 2);
  PublishChain(once);
  for (uint32_t seed = 10; seed < 20; ++seed) PublishChain(ChainOf(ns_, seed, 1));
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Matched(once), 0u);
  EXPECT_EQ(Disk().blocks, 0u);
}

TEST_F(DiskWriteModeTest, OnSecondUseADurablePublicationIsWrittenAtOnce) {
  Open(DiskWriteMode::kOnSecondUse);
  const auto chain = ChainOf(ns_, 1, 2);
  PublishChain(chain, /*durable=*/true);
  EXPECT_EQ(Disk().blocks, 2u);
  Reopen();
  EXPECT_EQ(Matched(chain), 2u);
}

// 33: a write that found the queue full is not given up for ever.
TEST_F(DiskWriteModeTest, WhatWasNotWrittenThroughIsWrittenAtItsNextUse) {
  const auto faults = std::make_shared<DiskFaults>();
  BlockStoreOptions options = WithDisk(64, 128, 1);
  options.disk_write_queue_max = 4;
  options.wrap_extent_io = [faults](std::unique_ptr<ExtentIo> real) {
    return std::make_unique<FaultyExtentIo>(std::move(real), faults);
  };
  OpenStore(options);
  WaitForRecovery();
  faults->writes_stall = true;
  const auto chain = ChainOf(ns_, 1, 40);
  PublishChain(chain);
  faults->writes_stall = false;
  ASSERT_TRUE(Flush());
  const uint64_t written = Disk().blocks;
  EXPECT_LT(written, 40u);
  // Four find room at a time.
  for (int i = 0; i < 40 && Disk().blocks < 40; ++i) {
    EXPECT_EQ(LookUp(chain), 40u);
    ASSERT_TRUE(Flush());
  }
  EXPECT_EQ(Disk().blocks, 40u);
  Reopen();
  EXPECT_EQ(Matched(chain), 40u);
}

}  // namespace
}  // namespace ibid
