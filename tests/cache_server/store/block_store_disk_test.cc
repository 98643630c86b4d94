// The disk tier when all goes well: write-through, demotion, promotion, recovery, budget.
#include <fstream>

#include "cache_server/disk_directory.h"
#include "tests/cache_server/store/store_harness.h"

namespace ibid {
namespace {

class DiskTest : public StoreFixture {};

TEST_F(DiskTest, ABlockIsWrittenThroughAndReadBackAfterTheHostTierLetItGo) {
  OpenStore(WithDisk(4, 64, 16));
  const auto chain = ChainOf(ns_, 1, 4);
  PublishChain(chain);
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Disk().blocks, 4u);
  PublishChain(ChainOf(ns_, 2, 4));
  EXPECT_EQ(Host().blocks, 4u);
  const auto match = store_->Match({}, ns_, KeysOf(chain), {});
  EXPECT_EQ(match->matched_count, 4u);
  EXPECT_EQ(match->disk_blocks, 4u);
  for (const ChainLink& link : chain) {
    const auto ref = AcquireOne(link.key);
    ASSERT_TRUE(ref.ok()) << ref.status();
    EXPECT_TRUE(HasRightBytes(*ref, link.key));
    EXPECT_EQ(ref->tier(), "disk");
  }
  EXPECT_EQ(Disk().hits, 4u);
  EXPECT_EQ(store_->stats().requested_blocks, 4u);
}

// A chain that is longer than the host tier passes through it to the disk.
TEST_F(DiskTest, AChainLongerThanTheHostTierIsStoredWhole) {
  OpenStore(WithDisk(8, 128, 16));
  const auto chain = ChainOf(ns_, 1, 64);
  for (const ChainLink& link : chain) {
    ASSERT_TRUE(PublishOne(link).ok());
    ASSERT_TRUE(Flush());
  }
  EXPECT_EQ(Matched(chain), 64u);
  for (const ChainLink& link : chain) EXPECT_TRUE(HasRightBytes(*AcquireOne(link.key), link.key));
}

// failures 34
TEST_F(DiskTest, AllIsThereAfterARestart) {
  OpenStore(WithDisk(8, 64, 16));
  const auto chain = ChainOf(ns_, 1, 20);
  for (const ChainLink& link : chain) {
    ASSERT_TRUE(PublishOne(link).ok());
    ASSERT_TRUE(Flush());
  }
  const uint64_t incarnation = store_->incarnation();
  Reopen();
  EXPECT_NE(store_->incarnation(), incarnation);
  EXPECT_EQ(Disk().blocks, 20u);
  EXPECT_EQ(Disk().used_bytes, 20 * 4096u);
  EXPECT_EQ(Matched(chain), 20u);
  for (const ChainLink& link : chain) {
    const auto ref = AcquireOne(link.key);
    ASSERT_TRUE(ref.ok()) << ref.status();
    EXPECT_TRUE(HasRightBytes(*ref, link.key));
    EXPECT_EQ(ref->token_count(), 16u);
  }
  // The room of the recovered blocks is known: new ones get along with the rest.
  PublishChain(ChainOf(ns_, 2, 8));
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Disk().used_bytes, 28 * 4096u);
}

TEST_F(DiskTest, RecoveredChainsStillLoseTheirEndsFirst) {
  OpenStore(WithDisk(4, 16, 16));
  const auto chain = ChainOf(ns_, 1, 12);
  for (const ChainLink& link : chain) {
    ASSERT_TRUE(PublishOne(link).ok());
    ASSERT_TRUE(Flush());
  }
  Reopen();
  for (const ChainLink& link : ChainOf(ns_, 2, 10)) {
    ASSERT_TRUE(PublishOne(link).ok());
    ASSERT_TRUE(Flush());
  }
  const uint32_t left = Matched(chain);
  EXPECT_EQ(left, 6u);
  for (size_t i = left; i < chain.size(); ++i)
    EXPECT_EQ(MatchedCount(*store_, ns_, {chain[i].key}), 0u);
}

TEST_F(DiskTest, BlocksAreServedBeforeTheScanIsOver) {
  OpenStore(WithDisk(4096, 16384, 1024));
  const auto chain = ChainOf(ns_, 1, 3000);
  PublishChain(chain);
  ASSERT_TRUE(Flush());
  store_.reset();
  OpenStore(options_);
  // Whether or not the scan has come to them, these are found.
  EXPECT_EQ(Matched(chain), 3000u);
  EXPECT_TRUE(HasRightBytes(*AcquireOne(chain[2999].key), chain[2999].key));
  EXPECT_EQ(store_->Offer(session_, ns_, {&chain[1500].key, 1})->at(0), OfferState::kPresent);
  EXPECT_EQ(store_->Reserve(session_, ns_, chain[77]).status(),
            absl::AlreadyExistsError("present"));
  EXPECT_EQ(store_->Drop(ns_, {&chain[2000].key, 1}), 1u);
  WaitForRecovery();
  EXPECT_EQ(Disk().blocks, 2999u);
  EXPECT_EQ(Matched(chain), 2000u);
}

TEST_F(DiskTest, ADropDuringRecoveryIsForGood) {
  OpenStore(WithDisk(4096, 16384, 1024));
  PublishChain(ChainOf(ns_, 1, 3000));
  ASSERT_TRUE(Flush());
  store_.reset();
  OpenStore(options_);
  store_->DropEverything();
  WaitForRecovery();
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Disk().blocks, 0u);
  EXPECT_EQ(Disk().used_bytes, 0u);
  Reopen();
  EXPECT_EQ(Matched(ChainOf(ns_, 1, 3000)), 0u);
}

TEST_F(DiskTest, ADropDuringRecoveryHoldsThoughTheStoreIsClosedAtOnce) {
  OpenStore(WithDisk(4096, 16384, 1024));
  PublishChain(ChainOf(ns_, 1, 3000));
  ASSERT_TRUE(Flush());
  store_.reset();
  OpenStore(options_);
  store_->Drop(ns_, {});
  ASSERT_TRUE(Flush()) << "which waits for the end of the recovery";
  EXPECT_FALSE(store_->stats().is_recovering);
  Reopen();
  EXPECT_EQ(Disk().blocks, 0u);
  EXPECT_EQ(Matched(ChainOf(ns_, 1, 3000)), 0u);
}

TEST_F(DiskTest, ADroppedBlockStaysAwayAfterARestart) {
  OpenStore(WithDisk(8, 64, 16));
  const auto chain = ChainOf(ns_, 1, 6);
  PublishChain(chain);
  ASSERT_TRUE(Flush());
  EXPECT_EQ(store_->Drop(ns_, {&chain[4].key, 1}), 1u);
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Disk().used_bytes, 5 * 4096u);
  Reopen();
  EXPECT_EQ(Matched(chain), 4u);
  PublishChain({chain[4]});
  EXPECT_EQ(Matched(chain), 6u);
}

TEST_F(DiskTest, ADurableCommitAnswersOnceTheBlockIsOnDisk) {
  OpenStore(WithDisk(8, 64, 16));
  const ChainLink link = ChainOf(ns_, 1, 1)[0];
  ASSERT_TRUE(PublishOne(link, /*durable=*/true).ok());
  EXPECT_EQ(Disk().blocks, 1u);
  Reopen();
  EXPECT_TRUE(HasRightBytes(*AcquireOne(link.key), link.key));
}

TEST_F(DiskTest, DurableWithoutADiskTierIsUnavailableAndTheBlockIsThere) {
  OpenStore(HostOnly(8, 8));
  const ChainLink link = ChainOf(ns_, 1, 1)[0];
  EXPECT_TRUE(absl::IsUnavailable(PublishOne(link, /*durable=*/true)));
  EXPECT_TRUE(AcquireOne(link.key).ok());
}

TEST_F(DiskTest, ClosingTheStoreWritesWhatIsQueued) {
  OpenStore(WithDisk(256, 1024, 64));
  const auto chain = ChainOf(ns_, 1, 200);
  PublishChain(chain);
  Reopen();
  EXPECT_EQ(Matched(chain), 200u);
}

TEST_F(DiskTest, OnDemotionOnlyWhatLeavesTheHostTierIsWritten) {
  BlockStoreOptions options = WithDisk(32, 256, 32);
  options.disk_write = DiskWriteMode::kOnDemotion;
  OpenStore(options);
  const auto chain = ChainOf(ns_, 1, 16);
  PublishChain(chain);
  store_->RunMaintenance();
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Disk().blocks, 0u) << "the host tier is half empty";
  for (uint32_t seed = 2; seed < 6; ++seed) {
    for (const ChainLink& link : ChainOf(ns_, seed, 8)) {
      ASSERT_TRUE(PublishOne(link).ok());
      ASSERT_TRUE(Flush());
    }
  }
  EXPECT_GT(Disk().blocks, 0u);
  EXPECT_LE(Host().used_bytes, 32 * 4096u);
  EXPECT_EQ(Host().blocks + Disk().blocks, 48u) << "each block is in one tier";
  EXPECT_EQ(Matched(chain), 16u);
  for (const ChainLink& link : chain) EXPECT_TRUE(HasRightBytes(*AcquireOne(link.key), link.key));
}

// failures 37
TEST_F(DiskTest, ADiskHitIsServedThoughTheHostTierIsFullOfPins) {
  OpenStore(WithDisk(4, 64, 4));
  const auto chain = ChainOf(ns_, 1, 4);
  PublishChain(chain);
  ASSERT_TRUE(Flush());
  const auto pinned = ChainOf(ns_, 2, 4);
  PublishChain(pinned);
  std::vector<BlockRef> readers;
  for (const ChainLink& link : pinned) readers.push_back(*AcquireOne(link.key));
  for (const ChainLink& link : chain) {
    const auto ref = AcquireOne(link.key);
    ASSERT_TRUE(ref.ok()) << ref.status();
    EXPECT_TRUE(HasRightBytes(*ref, link.key));
  }
}

TEST_F(DiskTest, ABlockThatIsReadTwiceFromDiskIsPromoted) {
  OpenStore(WithDisk(4, 64, 4));
  const auto chain = ChainOf(ns_, 1, 1);
  PublishChain(chain);
  ASSERT_TRUE(Flush());
  PublishChain(ChainOf(ns_, 2, 4));
  ASSERT_TRUE(Flush());
  EXPECT_EQ(AcquireOne(chain[0].key)->tier(), "disk");
  EXPECT_EQ(AcquireOne(chain[0].key)->tier(), "disk")
      << "the first read did not wash out a host block";
  EXPECT_EQ(AcquireOne(chain[0].key)->tier(), "host");
  EXPECT_EQ(Host().blocks, 4u);
}

TEST_F(DiskTest, ABlockReadFromDiskIsPromotedWhenThereIsRoom) {
  OpenStore(WithDisk(8, 64, 8));
  const auto chain = ChainOf(ns_, 1, 2);
  PublishChain(chain);
  ASSERT_TRUE(Flush());
  Reopen();
  EXPECT_EQ(AcquireOne(chain[0].key)->tier(), "disk");
  EXPECT_EQ(AcquireOne(chain[0].key)->tier(), "host");
}

TEST_F(DiskTest, TheReadBufferLimitIsNamed) {
  BlockStoreOptions options = WithDisk(4, 64, 4);
  options.read_buffer_bytes_max = 2 * 4096;
  OpenStore(options);
  const auto chain = ChainOf(ns_, 1, 4);
  PublishChain(chain);
  ASSERT_TRUE(Flush());
  const auto pinned = ChainOf(ns_, 2, 4);
  PublishChain(pinned);
  std::vector<BlockRef> readers;
  for (const ChainLink& link : pinned) readers.push_back(*AcquireOne(link.key));
  readers.push_back(*AcquireOne(chain[0].key));
  readers.push_back(*AcquireOne(chain[1].key));
  EXPECT_EQ(
      AcquireOne(chain[2].key).status(),
      LimitReached("too many blocks are being read from disk", "read_buffer_bytes_max", 8192));
  readers.pop_back();
  // The thread that read for it may hold the buffer a moment longer.
  absl::Status status = absl::ResourceExhaustedError("");
  for (int i = 0; i < 5'000 && absl::IsResourceExhausted(status); ++i) {
    status = AcquireOne(chain[2].key).status();
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(DiskTest, ReadersOfOneBlockAreAllAnswered) {
  OpenStore(WithDisk(4, 64, 4));
  const auto chain = ChainOf(ns_, 1, 1);
  PublishChain(chain);
  ASSERT_TRUE(Flush());
  PublishChain(ChainOf(ns_, 2, 4));
  ASSERT_TRUE(Flush());
  constexpr int kReaders = 50;
  std::atomic<int> right{0};
  std::vector<std::promise<void>> promises(kReaders);
  for (auto& promise : promises) {
    store_->Acquire(ns_, chain[0].key, [&](absl::StatusOr<BlockRef> ref) {
      if (ref.ok() && HasRightBytes(*ref, chain[0].key)) ++right;
      promise.set_value();
    });
  }
  for (auto& promise : promises) promise.get_future().wait();
  EXPECT_EQ(right, kReaders);
  EXPECT_EQ(store_->stats().requested_blocks, uint64_t{kReaders});
  EXPECT_EQ(store_->stats().missed_blocks, 0u);
}

// failures 33
TEST_F(DiskTest, TheExtentFilesNeverExceedTheBudget) {
  OpenStore(WithDisk(32, 67, 16));  // four extents of 16 pages and one of 3
  for (uint32_t seed = 1; seed < 30; ++seed) {
    PublishChain(ChainOf(ns_, seed, 10));
    ASSERT_TRUE(Flush());
    EXPECT_LE(AllocatedBytesUnder(options_.disk_directory + "/extents"), 67 * 4096u);
    EXPECT_LE(Disk().used_bytes, 67 * 4096u);
  }
  EXPECT_EQ(Disk().used_bytes, 67 * 4096u) << "and all of it is used";
  EXPECT_EQ(Disk().allocated_bytes, AllocatedBytesUnder(options_.disk_directory + "/extents"));
  EXPECT_LE(AllocatedBytesUnder(options_.disk_directory), options_.disk_bytes_max)
      << "with the directory";
}

// 33: what the directory needs beyond its reserve, it takes from the extents.
TEST_F(DiskTest, ADirectoryThatGrowsMakesTheExtentsGiveWay) {
  BlockStoreOptions options = WithDisk(64, 1'024, 16);
  options.disk_bytes_max -= options.disk_directory_bytes_reserve;
  options.disk_directory_bytes_reserve = uint64_t{128} << 10;
  options.disk_bytes_max += options.disk_directory_bytes_reserve;
  OpenStore(options);
  PublishChain(ChainOf(ns_, 1, 10));
  ASSERT_TRUE(Flush());
  uint64_t allocated_most = 0;
  for (uint32_t seed = 2; seed < 120; ++seed) {
    PublishChain(ChainOf(ns_, seed, 50));
    ASSERT_TRUE(Flush());
    const BlockTierStats disk = Disk();
    allocated_most = std::max(allocated_most, disk.allocated_bytes);
    ASSERT_LE(disk.allocated_bytes + disk.directory_bytes, options.disk_bytes_max) << seed;
    // What it grew by since it was measured is little.
    ASSERT_LE(AllocatedBytesUnder(options.disk_directory), options.disk_bytes_max + (256 << 10));
    ASSERT_EQ(disk.used_bytes, disk.blocks * 4096);
  }
  EXPECT_GT(allocated_most, Disk().allocated_bytes) << "the files of some extents are gone";
  EXPECT_GT(Disk().blocks, 100u);
  EXPECT_EQ(Disk().state, "ok");
  // The store measures its directory also when it is idle: blocks may go until it is closed, and
  // after it is open again.
  const uint64_t blocks = Disk().blocks;
  Reopen();
  const uint64_t recovered_blocks = Disk().blocks;
  EXPECT_LE(recovered_blocks, blocks);
  uint64_t right_blocks = 0;
  for (uint32_t seed = 1; seed < 120; ++seed) {
    for (const ChainLink& link : ChainOf(ns_, seed, 50)) {
      const auto ref = AcquireOne(link.key);
      if (ref.ok() && HasRightBytes(*ref, link.key)) ++right_blocks;
    }
  }
  EXPECT_LE(right_blocks, recovered_blocks);
  EXPECT_GE(right_blocks, Disk().blocks) << "no record names a block of a deleted file";
  EXPECT_GT(right_blocks, 100u);
}

TEST_F(DiskTest, ASmallerBudgetAfterARestartIsKeptTo) {
  OpenStore(WithDisk(64, 64, 16));
  PublishChain(ChainOf(ns_, 1, 64));
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Disk().blocks, 64u);
  options_.disk_bytes_max =
      24 * 4096 + options_.disk_directory_bytes_reserve;  // one and a half extents
  Reopen();
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Disk().blocks, 24u);
  EXPECT_LE(AllocatedBytesUnder(options_.disk_directory + "/extents"), 24 * 4096u);
  options_.disk_bytes_max = 64 * 4096 + options_.disk_directory_bytes_reserve;
  Reopen();
  EXPECT_EQ(Disk().blocks, 24u) << "the records of the others are gone too";
  PublishChain(ChainOf(ns_, 2, 30));
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Disk().blocks, 54u);
}

TEST_F(DiskTest, AnotherBlockSizeGetsRoomOnDiskToo) {
  OpenStore(WithDisk(64, 64, 16));
  const NamespaceId big = NamespaceOf("big");
  ASSERT_TRUE(store_->OpenNamespace(big, LayoutOfPages(16)).ok());
  PublishChain(ChainOf(ns_, 1, 64));
  ASSERT_TRUE(Flush());
  const auto big_chain = ChainOf(big, 1, 3);
  for (const ChainLink& link : big_chain) {
    const absl::Status status = Publish(*store_, session_, big, link, /*durable=*/true);
    ASSERT_TRUE(status.ok()) << status;
  }
  Reopen();
  ASSERT_TRUE(store_->OpenNamespace(big, LayoutOfPages(16)).ok());
  for (const ChainLink& link : big_chain)
    EXPECT_TRUE(HasRightBytes(*AcquireNow(*store_, big, link.key), link.key));
  const uint32_t left = Matched(ChainOf(ns_, 1, 64));
  EXPECT_EQ(left, 16u);
  for (uint32_t i = 0; i < left; ++i) {
    const BlockKey key = ChainOf(ns_, 1, 64)[i].key;
    EXPECT_TRUE(HasRightBytes(*AcquireOne(key), key))
        << "a block that was moved on disk kept its bytes";
  }
}

TEST_F(DiskTest, OddPayloadSizesAreKeptExactly) {
  OpenStore(WithDisk(8, 64, 16));
  const NamespaceId odd = NamespaceOf("odd");
  const KvLayout layout = LayoutOfPages(2, /*less_16=*/3);
  ASSERT_EQ(*store_->OpenNamespace(odd, layout), 2 * 4096u - 48);
  const auto chain = ChainOf(odd, 1, 3);
  PublishAll(*store_, session_, odd, chain, /*durable=*/true);
  Reopen();
  ASSERT_TRUE(store_->OpenNamespace(odd, layout).ok());
  for (const ChainLink& link : chain) {
    const auto ref = AcquireNow(*store_, odd, link.key);
    ASSERT_TRUE(ref.ok()) << ref.status();
    EXPECT_EQ(ref->payload().size(), 2 * 4096u - 48);
    EXPECT_TRUE(HasRightBytes(*ref, link.key));
  }
}

// failures 2, 8
TEST_F(DiskTest, ANamespaceKeepsItsLayoutAcrossARestart) {
  OpenStore(WithDisk(8, 64, 16));
  PublishChain(ChainOf(ns_, 1, 1), /*durable=*/true);
  store_.reset();
  auto store = *BlockStore::Open(options_);
  EXPECT_TRUE(absl::IsFailedPrecondition(store->OpenNamespace(ns_, LayoutOfPages(2)).status()));
  EXPECT_TRUE(store->OpenNamespace(ns_, layout_).ok());
}

// A namespace that gave way to others and came back has another number; its old record may still
// be there.
TEST_F(DiskTest, ANamespaceThatWasClosedAndOpenedAgainKeepsItsNewBlocks) {
  BlockStoreOptions options = WithDisk(64, 256, 16);
  options.namespaces_max = 2;
  OpenStore(options);
  PublishChain(ChainOf(ns_, 1, 1));  // so that this one stays open
  const NamespaceId a = NamespaceOf("a");
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(store_->OpenNamespace(a, layout_).ok()) << round;
    const auto old_chain = ChainOf(a, 1, 4);
    PublishAll(*store_, session_, a, old_chain);
    ASSERT_TRUE(Flush());
    EXPECT_EQ(store_->Drop(a, {}), 4u);
    ASSERT_TRUE(store_->OpenNamespace(NamespaceOf("b"), layout_).ok())
        << "a is empty: it gives way";
    EXPECT_TRUE(absl::IsFailedPrecondition(store_->LayoutOf(a).status()));
    ASSERT_TRUE(store_->OpenNamespace(a, layout_).ok()) << "b is empty";
    const auto chain = ChainOf(a, 2, 5);
    PublishAll(*store_, session_, a, chain);
    Reopen();
    EXPECT_EQ(MatchedCount(*store_, a, KeysOf(chain)), 5u) << round;
    EXPECT_EQ(MatchedCount(*store_, a, KeysOf(old_chain)), 0u) << round;
    EXPECT_EQ(store_->Drop(a, {}), 5u);
  }
}

// Of two records of one namespace the newer counts; a number that stood in the directory is not
// given to another.
TEST_F(DiskTest, AnOldRecordOfANamespaceIsVoid) {
  OpenStore(WithDisk(64, 256, 16));
  const auto chain = ChainOf(ns_, 1, 3);
  PublishChain(chain);
  store_.reset();
  {
    const auto directory = *DiskDirectory::Open(options_.disk_directory + "/directory", 16 * 4096);
    const std::vector<DiskNamespace> stored = *directory->Namespaces();
    ASSERT_EQ(stored.size(), 1u);
    DiskDirectory::Change change;
    change.put_namespaces.push_back({stored[0].number + 7, NamespaceOf("x"), "no layout"});
    change.put_namespaces.push_back({stored[0].number + 9, ns_, stored[0].layout});
    DiskRecord block = *directory->Lookup(stored[0].number, chain[0].key);
    block.ns = stored[0].number + 9;
    change.put_blocks.push_back(block);
    ASSERT_TRUE(directory->Apply(change, false).ok());
  }
  OpenStore(options_);
  WaitForRecovery();
  EXPECT_EQ(Matched(chain), 1u) << "what the newer record has";
  EXPECT_TRUE(HasRightBytes(*AcquireOne(chain[0].key), chain[0].key));
  ASSERT_TRUE(store_->OpenNamespace(NamespaceOf("y"), layout_).ok());
  const NamespaceId y = NamespaceOf("y");
  PublishAll(*store_, session_, y, ChainOf(y, 1, 2));
  Reopen();
  EXPECT_EQ(MatchedCount(*store_, y, KeysOf(ChainOf(y, 1, 2))), 2u);
  EXPECT_EQ(store_->stats().namespaces, 2u);
  EXPECT_EQ(Disk().blocks, 3u);
}

TEST_F(DiskTest, ADropIsOnDiskOnceItsRemovalsAreFlushed) {
  OpenStore(WithDisk(64, 256, 16));
  const auto chain = ChainOf(ns_, 1, 20);
  PublishChain(chain);
  ASSERT_TRUE(Flush());
  EXPECT_EQ(store_->Drop(ns_, KeysOf(chain)), 20u);
  ASSERT_TRUE(store_->FlushRemovals(absl::Seconds(30)));
  EXPECT_EQ(Disk().used_bytes, 0u);
}

TEST_F(DiskTest, TwoServersCannotOpenOneDirectory) {
  OpenStore(WithDisk(8, 64, 16));
  const auto second = BlockStore::Open(options_);
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status())) << second.status();
  EXPECT_NE(second.status().message().find("give another --disk_dir"), absl::string_view::npos);
  store_.reset();
  EXPECT_TRUE(BlockStore::Open(options_).ok());
}

TEST_F(DiskTest, ADirectoryOfSomethingElseIsRefused) {
  std::filesystem::create_directories(directory_.path() + "/tier");
  std::ofstream(directory_.path() + "/tier/thesis.txt") << "all my work";
  const auto store = BlockStore::Open(WithDisk(8, 64, 16));
  EXPECT_TRUE(absl::IsFailedPrecondition(store.status())) << store.status();
  EXPECT_NE(store.status().message().find("give another --disk_dir"), absl::string_view::npos);
}

}  // namespace
}  // namespace ibid
