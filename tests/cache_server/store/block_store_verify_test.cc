// What operators have a store do: read everything again, and keep what only memory has.
#include "tests/cache_server/store/faulty_extent_io.h"
#include "tests/cache_server/store/store_harness.h"

namespace ibid {
namespace {

class VerifyTest : public StoreFixture {
 protected:
  BlockStoreOptions Options(DiskWriteMode mode, size_t disk_pages = 256) {
    BlockStoreOptions options = WithDisk(64, disk_pages, 16);
    options.disk_write = mode;
    options.wrap_extent_io = [this](std::unique_ptr<ExtentIo> real) {
      return std::make_unique<FaultyExtentIo>(std::move(real), faults_);
    };
    return options;
  }
  static bool GoOn(const VerifyReport&) { return true; }

  // Flips a byte of the block's copy in memory.
  void SpoilInHost(const BlockKey& key) {
    const absl::StatusOr<BlockRef> ref = AcquireOne(key);
    ASSERT_TRUE(ref.ok()) << ref.status();
    ASSERT_EQ(ref->tier(), "host");
    const_cast<std::byte*>(ref->payload().data())[100] ^= std::byte{1};
  }

  std::shared_ptr<DiskFaults> faults_ = std::make_shared<DiskFaults>();
};

TEST_F(VerifyTest, AVerifyOfSoundBlocksReadsBothCopiesOfEachAndChangesNothing) {
  OpenStore(Options(DiskWriteMode::kThrough));
  const auto chain = ChainOf(ns_, 1, 20);
  PublishChain(chain);
  ASSERT_TRUE(Flush());
  const auto report = store_->Verify(0, GoOn);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->copies, 40u);
  EXPECT_EQ(report->checked_copies, 40u);
  EXPECT_EQ(report->checked_bytes, 40u * 4096);
  EXPECT_EQ(report->bad_copies(), 0u);
  EXPECT_EQ(Matched(chain), 20u);
  EXPECT_EQ(store_->stats().pinned_bytes, 0u);
  // It is no request: 43.
  EXPECT_EQ(store_->stats().requested_blocks, 0u);
}

// 1: whatever rotted is gone before anybody asks for it, and nothing else.
TEST_F(VerifyTest, ADamagedCopyLeavesAndTheSoundOneOfTheBlockStays) {
  OpenStore(Options(DiskWriteMode::kThrough));
  const auto chain = ChainOf(ns_, 1, 20);
  PublishChain(chain);
  ASSERT_TRUE(Flush());
  SpoilInHost(chain[19].key);
  const auto report = store_->Verify(0, GoOn);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->damaged_host_copies, 1u);
  EXPECT_EQ(report->bad_copies(), 1u);
  EXPECT_EQ(report->kept_blocks, 1u);
  EXPECT_EQ(Host().blocks, 19u);
  EXPECT_EQ(Host().used_bytes, 19u * 4096);
  EXPECT_EQ(Disk().blocks, 20u);
  EXPECT_EQ(store_->stats().corrupt_blocks, 1u);
  EXPECT_EQ(Matched(chain), 20u);
  const auto ref = AcquireOne(chain[19].key);
  ASSERT_TRUE(ref.ok()) << ref.status();
  EXPECT_EQ(ref->tier(), "disk");
  EXPECT_TRUE(HasRightBytes(*ref, chain[19].key));
}

TEST_F(VerifyTest, ADamagedDiskCopyLeavesForGoodAndTheBlockCanBeWrittenAgain) {
  OpenStore(Options(DiskWriteMode::kThrough));
  const auto chain = ChainOf(ns_, 1, 20);
  PublishChain(chain);
  ASSERT_TRUE(Flush());
  faults_->reads_to_flip = 1;
  const auto report = store_->Verify(0, GoOn);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->damaged_disk_copies, 1u);
  EXPECT_EQ(report->kept_blocks, 1u);
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Host().blocks, 20u);
  EXPECT_EQ(Disk().blocks, 19u);
  EXPECT_EQ(Disk().used_bytes, 19u * 4096) << "its slot is free";
  EXPECT_EQ(store_->KeepOnDisk(absl::Seconds(30)).written_blocks, 1u);
  Reopen();
  EXPECT_EQ(Disk().blocks, 20u);
  const auto again = store_->Verify(0, GoOn);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->bad_copies(), 0u);
  EXPECT_EQ(Matched(chain), 20u);
}

TEST_F(VerifyTest, ABlockWithoutASoundCopyIsDropped) {
  OpenStore(Options(DiskWriteMode::kThrough));
  const auto chain = ChainOf(ns_, 1, 1);
  PublishChain(chain);
  ASSERT_TRUE(Flush());
  SpoilInHost(chain[0].key);
  faults_->reads_to_flip = 1;
  const auto report = store_->Verify(0, GoOn);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->damaged_host_copies, 1u);
  EXPECT_EQ(report->damaged_disk_copies, 1u);
  EXPECT_EQ(report->kept_blocks, 0u);
  EXPECT_EQ(store_->stats().corrupt_blocks, 1u);
  EXPECT_TRUE(absl::IsNotFound(AcquireOne(chain[0].key).status()));
  ASSERT_TRUE(Flush());
  Reopen();  // and it does not come back
  EXPECT_EQ(Disk().blocks, 0u);
}

// Its reader looks at the damaged bytes: they cannot be given away under it, and nobody else is to
// find them.
TEST_F(VerifyTest, ADamagedBlockThatIsBeingReadIsDropped) {
  OpenStore(Options(DiskWriteMode::kThrough));
  const auto chain = ChainOf(ns_, 1, 2);
  PublishChain(chain);
  ASSERT_TRUE(Flush());
  SpoilInHost(chain[1].key);
  {
    const auto reader = AcquireOne(chain[1].key);
    ASSERT_TRUE(reader.ok()) << reader.status();
    const auto report = store_->Verify(0, GoOn);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->damaged_host_copies, 1u);
    EXPECT_EQ(report->kept_blocks, 0u);
    EXPECT_EQ(Matched(chain), 1u);
  }
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Host().blocks, 1u);
  EXPECT_EQ(Disk().blocks, 1u);
}

TEST_F(VerifyTest, ADownTierEndsTheVerifyAndCostsOnlyTheBlocksThatWereTried) {
  OpenStore(Options(DiskWriteMode::kThrough));
  PublishChain(ChainOf(ns_, 1, 60));
  ASSERT_TRUE(Flush());
  faults_->reads_fail = true;
  EXPECT_TRUE(absl::IsUnavailable(store_->Verify(0, GoOn).status()));
  EXPECT_GE(Host().blocks, 52u);  // down after eight reads in a row
}

TEST_F(VerifyTest, ACallerWhoSaysNoEndsIt) {
  OpenStore(Options(DiskWriteMode::kThrough));
  PublishChain(ChainOf(ns_, 1, 20));
  ASSERT_TRUE(Flush());
  int calls = 0;
  // At this pace the whole would take hours: it must be asked while it waits.
  const auto result = store_->Verify(10, [&](const VerifyReport&) { return ++calls < 3; });
  EXPECT_TRUE(absl::IsCancelled(result.status())) << result.status();
  EXPECT_EQ(calls, 3);
}

TEST_F(VerifyTest, AVerifyKeepsThePaceThatItWasGiven) {
  OpenStore(HostOnly(64, 16));
  PublishChain(ChainOf(ns_, 1, 30));
  const absl::Time began = SteadyClock().Now();
  ASSERT_TRUE(store_->Verify(30 * 4096 * 5, GoOn).ok());
  EXPECT_GE(SteadyClock().Now() - began, absl::Milliseconds(200));
}

TEST_F(VerifyTest, KeepOnDiskWritesWhatOnlyMemoryHas) {
  OpenStore(Options(DiskWriteMode::kOnDemotion));
  const auto chain = ChainOf(ns_, 1, 20);
  PublishChain(chain);
  ASSERT_TRUE(Flush());
  ASSERT_EQ(Disk().blocks, 0u);
  const KeepResult kept = store_->KeepOnDisk(absl::Seconds(30));
  EXPECT_EQ(kept.written_blocks, 20u);
  EXPECT_EQ(kept.remaining_blocks, 0u);
  EXPECT_EQ(Host().blocks, 20u);
  EXPECT_EQ(store_->KeepOnDisk(absl::Seconds(30)).written_blocks, 0u);
  Reopen();
  EXPECT_EQ(Matched(chain), 20u);
}

TEST_F(VerifyTest, WhereTheDiskIsSmallerTheStartsOfChainsAreKept) {
  OpenStore(Options(DiskWriteMode::kOnDemotion, /*disk_pages=*/32));
  std::vector<std::vector<ChainLink>> chains;
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    chains.push_back(ChainOf(ns_, seed, 10));
    PublishChain(chains.back());
  }
  const uint64_t on_disk_before = Disk().blocks;  // some were demoted as the host tier filled up
  const KeepResult kept = store_->KeepOnDisk(absl::Seconds(30));
  EXPECT_LE(kept.written_blocks, 32u);
  EXPECT_GE(kept.written_blocks + on_disk_before, 16u);
  EXPECT_GT(kept.remaining_blocks, 0u);
  Reopen();
  for (const auto& chain : chains) EXPECT_GE(Matched(chain), 3u);
}

TEST_F(VerifyTest, WhereTheDiskIsSmallerPinnedBlocksAreKeptByTheirPriority) {
  OpenStore(Options(DiskWriteMode::kOnSecondUse, /*disk_pages=*/32));
  const auto low = ChainOf(ns_, 1, 20), high = ChainOf(ns_, 2, 20);
  PublishChain(low);
  PublishChain(high);
  ASSERT_TRUE(store_->Pin({1}, ns_, KeysOf(low), {KeepPriority::kLow}).ok());
  ASSERT_TRUE(store_->Pin({2}, ns_, KeysOf(high), {KeepPriority::kHigh}).ok());
  for (uint32_t seed = 3; seed < 23; ++seed) PublishChain(ChainOf(ns_, seed, 1));
  ASSERT_EQ(Disk().blocks, 0u);
  store_->KeepOnDisk(absl::Seconds(30));
  Reopen();
  EXPECT_EQ(Matched(high), 20u);
  EXPECT_EQ(Matched(low), 12u) << "and its start";
}

TEST_F(VerifyTest, KeepOnDiskSaysWhatAFailingDiskLeavesBehind) {
  OpenStore(Options(DiskWriteMode::kOnDemotion));
  PublishChain(ChainOf(ns_, 1, 20));
  faults_->writes_fail = true;
  const KeepResult kept = store_->KeepOnDisk(absl::Seconds(30));
  EXPECT_EQ(kept.written_blocks, 0u);
  EXPECT_EQ(kept.remaining_blocks, 20u);
}

TEST_F(VerifyTest, KeepOnDiskStopsInTimeAndAtAWord) {
  OpenStore(Options(DiskWriteMode::kOnDemotion));
  PublishChain(ChainOf(ns_, 1, 20));
  faults_->writes_stall = true;
  EXPECT_GT(store_->KeepOnDisk(absl::Milliseconds(50)).remaining_blocks, 0u);
  EXPECT_GT(store_->KeepOnDisk(absl::Hours(1), [] { return true; }).remaining_blocks, 0u);
  faults_->writes_stall = false;
  EXPECT_TRUE(Flush());
}

TEST_F(VerifyTest, WithoutADiskTierEverythingRemains) {
  OpenStore(HostOnly(64, 16));
  PublishChain(ChainOf(ns_, 1, 5));
  const KeepResult kept = store_->KeepOnDisk(absl::Seconds(30));
  EXPECT_EQ(kept.written_blocks, 0u);
  EXPECT_EQ(kept.remaining_blocks, 5u);
}

TEST_F(VerifyTest, AStoreThatRefusesBlocksCommitsWhatWasReservedServesAndCanTakeBlocksAgain) {
  OpenStore(HostOnly(64, 16));
  const auto chain = ChainOf(ns_, 1, 3);
  ASSERT_TRUE(PublishOne(chain[0]).ok());
  absl::StatusOr<Reservation> reservation = store_->Reserve(session_, ns_, chain[1]);
  ASSERT_TRUE(reservation.ok());
  store_->RefuseBlocks();
  EXPECT_TRUE(absl::IsUnavailable(PublishOne(chain[2])));
  const auto states = store_->Offer(session_, ns_, KeysOf(chain));
  ASSERT_TRUE(states.ok());
  EXPECT_EQ((*states)[2], OfferState::kRejected);
  EXPECT_TRUE(CommitFilled(*std::move(reservation), chain[1].key).ok());
  EXPECT_EQ(Matched(chain), 2u);
  EXPECT_TRUE(AcquireOne(chain[0].key).ok());
  store_->TakeBlocks();
  EXPECT_TRUE(PublishOne(chain[2]).ok());
  EXPECT_EQ(Matched(chain), 3u);
}

}  // namespace
}  // namespace ibid
