// A disk that errs, tears, flips, fills up or loses files: never wrong bytes, never a failed
// publish, and it heals.
#include <fcntl.h>
#include <unistd.h>

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/cache_server/store/faulty_extent_io.h"
#include "tests/cache_server/store/store_harness.h"

namespace ibid {
namespace {

class FaultTest : public StoreFixture {
 protected:
  void OpenFaulty(size_t host_pages = 4, size_t disk_pages = 64, size_t extent_pages = 16,
                  uint32_t block_pages = 1) {
    BlockStoreOptions options = WithDisk(host_pages, disk_pages, extent_pages);
    options.metrics = options_.metrics;
    options.disk_write_queue_max = options_.disk_write_queue_max;
    options.acquire_queue_max = options_.acquire_queue_max;
    options.wrap_extent_io = [faults = faults_](std::unique_ptr<ExtentIo> real) {
      return std::make_unique<FaultyExtentIo>(std::move(real), faults);
    };
    OpenStore(options, block_pages);
    WaitForRecovery();
  }
  // The chain is on disk and nowhere else.
  void PutOnDiskOnly(const std::vector<ChainLink>& chain) {
    PublishChain(chain);
    ASSERT_TRUE(Flush());
    PublishChain(ChainOf(ns_, 999, 4));
    ASSERT_TRUE(Flush());
    ASSERT_EQ(store_->Match({}, ns_, KeysOf(chain), {})->disk_blocks, chain.size());
  }
  void Heal() {
    for (int i = 0; i < 200 && Disk().state != "ok"; ++i) {
      clock_.Advance(absl::Seconds(31));
      store_->RunMaintenance();
    }
    EXPECT_EQ(Disk().state, "ok");
    session_ = *store_->OpenSession("after the time that passed");
  }

  // Blocks of two pages, written by one call: they came while the disk stood still at another.
  void PublishARun(const std::function<void()>& spoil) {
    OpenFaulty(80, 64, 16, /*block_pages=*/2);
    faults_->writes_count = 0;
    faults_->writes_stall = true;
    PublishChain(ChainOf(ns_, 1, 1));
    while (faults_->writes_count == 0) std::this_thread::yield();
    run_ = ChainOf(ns_, 2, 6);
    PublishChain(run_);
    spoil();
    faults_->writes_stall = false;
    ASSERT_TRUE(Flush());
  }

  void SpoilDirectory() {
    int spoilt_count = 0;
    for (const auto& file :
         std::filesystem::directory_iterator(options_.disk_directory + "/directory")) {
      if (file.path().extension() != ".sst" || file.file_size() < 100'000) continue;
      std::fstream table(file.path(), std::ios::in | std::ios::out | std::ios::binary);
      table.seekp(static_cast<std::streamoff>(file.file_size() / 2));
      table.write("spoilt spoilt spoilt", 20);
      ++spoilt_count;
    }
    ASSERT_GT(spoilt_count, 0);
  }

  std::vector<ChainLink> run_;
  std::shared_ptr<DiskFaults> faults_ = std::make_shared<DiskFaults>();
};

TEST_F(FaultTest, AFlippedBitIsDataLossOnceThenAMiss) {
  OpenFaulty();
  const auto chain = ChainOf(ns_, 1, 3);
  PutOnDiskOnly(chain);
  faults_->reads_to_flip = 1;
  EXPECT_TRUE(absl::IsDataLoss(AcquireOne(chain[2].key).status()));
  EXPECT_EQ(store_->stats().corrupt_blocks, 1u);
  EXPECT_TRUE(absl::IsNotFound(AcquireOne(chain[2].key).status()));
  EXPECT_EQ(Matched(chain), 2u);
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Disk().used_bytes, 6 * 4096u) << "its room is free";
  EXPECT_TRUE(PublishOne(chain[2]).ok());
  EXPECT_TRUE(HasRightBytes(*AcquireOne(chain[2].key), chain[2].key));
  EXPECT_EQ(store_->stats().requested_blocks, 3u);
  EXPECT_EQ(store_->stats().missed_blocks, 2u);
}

// failures 35
TEST_F(FaultTest, ATornWriteIsFoundByItsChecksum) {
  OpenFaulty(4, 64, 16, /*block_pages=*/2);
  options_.host_bytes_max = 8 * 4096;
  const auto chain = ChainOf(ns_, 1, 1);
  faults_->writes_to_tear = 1;
  PublishChain(chain);
  ASSERT_TRUE(Flush());
  Reopen();
  EXPECT_EQ(Matched(chain), 1u);
  EXPECT_TRUE(absl::IsDataLoss(AcquireOne(chain[0].key).status()));
  EXPECT_EQ(Matched(chain), 0u);
}

// Blocks that are written by one call: what lies before the tear is right.
TEST_F(FaultTest, ARunTornBetweenOrInsideBlocksCostsThoseBehindTheTear) {
  constexpr uint64_t kSlotBytes = 2 * 4096;
  for (const uint64_t written : {3 * kSlotBytes, 3 * kSlotBytes + 4096, uint64_t{0}}) {
    SCOPED_TRACE(written);
    PublishARun([&] {
      faults_->run_bytes_written = written;
      faults_->runs_to_tear = 1;
    });
    ASSERT_EQ(faults_->runs_to_tear, 0) << "no run was written";
    Reopen();
    ASSERT_EQ(Matched(run_), run_.size());
    for (size_t i = 0; i < run_.size(); ++i) {
      const auto ref = AcquireOne(run_[i].key);
      ASSERT_EQ(ref.status().code(), (i + 1) * kSlotBytes <= written ? absl::StatusCode::kOk
                                                                     : absl::StatusCode::kDataLoss)
          << i;
      if (!ref.ok()) continue;
      EXPECT_TRUE(HasRightBytes(*ref, run_[i].key));
    }
    store_.reset();
    std::filesystem::remove_all(options_.disk_directory);
  }
}

TEST_F(FaultTest, OfARunThatBreaksNoBlockIsOnDiskAndNoRoomIsLost) {
  PublishARun([&] {
    faults_->run_bytes_written = 3 * 2 * 4096 + 4096;
    faults_->runs_to_break = 1;
  });
  ASSERT_EQ(faults_->runs_to_break, 0) << "no run was written";
  EXPECT_EQ(Disk().blocks, 1u) << "the one that was written before";
  EXPECT_EQ(Disk().used_bytes, 2u * 4096);
  for (const ChainLink& link : run_) {
    const auto ref = AcquireOne(link.key);
    ASSERT_TRUE(ref.ok()) << ref.status();
    EXPECT_EQ(ref->tier(), "host");
  }
  Heal();
  PublishChain(ChainOf(ns_, 3, 31), /*durable=*/true);  // all of the room can be had
  EXPECT_GE(Disk().blocks, 31u);
}

TEST_F(FaultTest, ABitFlippedInTheFileIsDataLoss) {
  OpenFaulty();
  const auto chain = ChainOf(ns_, 1, 2);
  PublishChain(chain);
  ASSERT_TRUE(Flush());
  store_.reset();
  const std::string file = options_.disk_directory + "/extents/000000.ext";
  const int fd = open(file.c_str(), O_RDWR);
  char byte = 0;
  ASSERT_EQ(pread(fd, &byte, 1, 4096 + 123), 1);
  byte = static_cast<char>(byte ^ 1);
  ASSERT_EQ(pwrite(fd, &byte, 1, 4096 + 123), 1);
  fsync(fd);
  close(fd);
  OpenFaulty();
  EXPECT_TRUE(HasRightBytes(*AcquireOne(chain[0].key), chain[0].key));
  EXPECT_TRUE(absl::IsDataLoss(AcquireOne(chain[1].key).status()));
}

// failures 36
TEST_F(FaultTest, AVanishedFileIsAMissAndItsEntriesGo) {
  OpenFaulty();
  const auto chain = ChainOf(ns_, 1, 3);
  PutOnDiskOnly(chain);
  faults_->files_vanished = true;
  EXPECT_TRUE(absl::IsNotFound(AcquireOne(chain[1].key).status()));
  const int reads = faults_->reads_count;
  EXPECT_TRUE(absl::IsNotFound(AcquireOne(chain[1].key).status()));
  EXPECT_EQ(faults_->reads_count, reads) << "it is not looked for again";
  EXPECT_EQ(Matched(chain), 1u);
  EXPECT_EQ(Disk().state, "ok");
}

TEST_F(FaultTest, AFileDeletedWhileTheServerWasDownTakesItsBlocksWithIt) {
  OpenFaulty(16, 64, 4);
  const auto chain = ChainOf(ns_, 1, 8);
  PublishChain(chain);
  ASSERT_TRUE(Flush());
  store_.reset();
  std::filesystem::remove(options_.disk_directory + "/extents/000001.ext");
  OpenFaulty(16, 64, 4);
  EXPECT_EQ(Disk().blocks, 4u);
  EXPECT_EQ(Matched(chain), 4u);
  EXPECT_TRUE(PublishOne(chain[4]).ok());
}

TEST_F(FaultTest, AFailedReadIsNotRepeatedForEver) {
  OpenFaulty();
  const auto chain = ChainOf(ns_, 1, 2);
  PutOnDiskOnly(chain);
  faults_->reads_fail = true;
  EXPECT_TRUE(absl::IsUnavailable(AcquireOne(chain[1].key).status()));
  faults_->reads_fail = false;
  EXPECT_TRUE(absl::IsNotFound(AcquireOne(chain[1].key).status()));
  EXPECT_TRUE(HasRightBytes(*AcquireOne(chain[0].key), chain[0].key));
}

TEST_F(FaultTest, ADiskThatReadsNothingGoesDownAndComesBackWithItsBlocks) {
  OpenFaulty(4, 64, 16);
  const auto chain = ChainOf(ns_, 1, 20);
  for (const ChainLink& link : chain) {
    ASSERT_TRUE(PublishOne(link).ok());
    ASSERT_TRUE(Flush());
  }
  PutOnDiskOnly({});
  faults_->reads_fail = true;
  for (size_t i = 19; i > 10; --i) (void)AcquireOne(chain[i].key);
  EXPECT_EQ(Disk().state, "down: injected: read error");
  EXPECT_EQ(Matched(chain), 0u) << "what cannot be read is not promised";
  const int reads = faults_->reads_count;
  EXPECT_TRUE(absl::IsUnavailable(AcquireOne(chain[0].key).status()));
  EXPECT_EQ(faults_->reads_count, reads) << "nobody waits for a dead disk";
  // What only the dead disk has is computed and stored again.
  const BlockKey again[] = {chain[0].key};
  const auto offered = store_->Offer(session_, ns_, again);
  ASSERT_TRUE(offered.ok());
  EXPECT_EQ(offered->front(), OfferState::kWanted);
  EXPECT_TRUE(PublishOne(chain[0]).ok());
  EXPECT_TRUE(PublishOne(chain[1]).ok()) << "and without an offer";
  EXPECT_EQ(Matched(chain), 2u);
  faults_->reads_fail = false;
  Heal();
  EXPECT_GE(Matched(chain), 11u);
  EXPECT_TRUE(HasRightBytes(*AcquireOne(chain[0].key), chain[0].key));
}

TEST_F(FaultTest, WriteErrorsMakeTheTierReadOnlyAndPublishingGoesOn) {
  OpenFaulty();
  const auto stored = ChainOf(ns_, 1, 3);
  PutOnDiskOnly(stored);
  faults_->writes_fail = true;
  for (uint32_t seed = 2; seed < 6; ++seed) PublishChain(ChainOf(ns_, seed, 4));
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Disk().state, "read-only: injected: write error");
  EXPECT_TRUE(HasRightBytes(*AcquireOne(stored[0].key), stored[0].key)) << "reads still work";
  EXPECT_TRUE(absl::IsUnavailable(PublishOne(ChainOf(ns_, 50, 1)[0], /*durable=*/true)));
  EXPECT_TRUE(AcquireOne(ChainOf(ns_, 50, 1)[0].key).ok()) << "stored, though not durably";
  const uint64_t used = Disk().used_bytes;
  faults_->writes_fail = false;
  Heal();
  const absl::Status status = PublishOne(ChainOf(ns_, 51, 1)[0], /*durable=*/true);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(Disk().used_bytes, used + 4096) << "failed writes left no room behind";
}

TEST_F(FaultTest, AFullFileSystemLetsTheTierGoOnWithTheFilesItHas) {
  OpenFaulty(4, 64, 16);
  const auto old = ChainOf(ns_, 1, 16);
  for (const ChainLink& link : old) {
    ASSERT_TRUE(PublishOne(link).ok());
    ASSERT_TRUE(Flush());
  }
  faults_->has_no_space = true;
  const auto young = ChainOf(ns_, 2, 8);
  for (const ChainLink& link : young) EXPECT_TRUE(PublishOne(link, /*durable=*/true).ok());
  EXPECT_EQ(Disk().blocks, 16u) << "one extent file of 16 is all there is";
  EXPECT_EQ(Disk().state, "full: no file for another extent: injected: no space for a file");
  EXPECT_EQ(Matched(young), 8u);
  EXPECT_EQ(Matched(old), 8u);
  faults_->has_no_space = false;
  clock_.Advance(absl::Seconds(11));
  for (const ChainLink& link : ChainOf(ns_, 3, 8))
    EXPECT_TRUE(PublishOne(link, /*durable=*/true).ok());
  EXPECT_EQ(Disk().state, "ok");
  EXPECT_EQ(Disk().blocks, 24u);
}

TEST_F(FaultTest, AFileSystemWithRoomAgainIsNoticedWithoutDemand) {
  OpenFaulty(4, 64, 16);
  faults_->has_no_space = true;
  PublishChain(ChainOf(ns_, 1, 1));
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Disk().state.substr(0, 5), "full:");
  clock_.Advance(absl::Seconds(11));
  store_->RunMaintenance();
  EXPECT_EQ(Disk().state.substr(0, 5), "full:") << "it still is";
  faults_->has_no_space = false;
  clock_.Advance(absl::Seconds(11));
  store_->RunMaintenance();
  EXPECT_EQ(Disk().state, "ok");
}

// A disk that fails, and is then readable but full.
TEST_F(FaultTest, ReadsHealThoughNothingCanBeWritten) {
  OpenFaulty(4, 64, 16);
  const auto chain = ChainOf(ns_, 1, 12);
  PutOnDiskOnly(chain);
  faults_->reads_fail = true;
  for (const ChainLink& link : chain) (void)AcquireOne(link.key);
  ASSERT_EQ(Disk().state.substr(0, 5), "down:");
  faults_->reads_fail = false;
  faults_->writes_fail = true;
  faults_->has_no_space = true;
  for (int i = 0; i < 5'000 && Disk().state.substr(0, 5) == "down:"; ++i) {
    clock_.Advance(absl::Seconds(31));
    store_->RunMaintenance();
    absl::SleepFor(absl::Milliseconds(1));  // the disk writer's own trial may be under way
  }
  EXPECT_NE(Disk().state.substr(0, 5), "down:") << Disk().state;
  // Eight failed reads took their blocks with them.
  EXPECT_TRUE(HasRightBytes(*AcquireOne(chain[11].key), chain[11].key));
}

// Publishing never waits for the disk unless it is asked to be durable. And a
// block that is dropped while its bytes are on their way to disk stays away, whoever reads it.
TEST_F(FaultTest, ASlowDiskHoldsUpNoPublishAndABlockDroppedMeanwhileStaysAway) {
  OpenFaulty(64, 256, 16);
  faults_->writes_stall = true;
  const auto chain = ChainOf(ns_, 1, 20);
  PublishChain(chain);
  while (faults_->writes_count == 0) std::this_thread::yield();
  const auto lease = store_->Match(session_, ns_, KeysOf(chain), {.lease = true});
  EXPECT_EQ(lease->host_blocks, 20u);
  EXPECT_EQ(store_->Drop(ns_, {}), 20u);
  EXPECT_FALSE(store_->FlushRemovals(absl::Milliseconds(20))) << "one of them is being written";
  faults_->writes_stall = false;
  EXPECT_TRUE(store_->FlushRemovals(absl::Seconds(30)));
  // What kill -9 would leave.
  const std::string left = directory_.path() + "/left";
  std::filesystem::copy(options_.disk_directory, left, std::filesystem::copy_options::recursive);
  {
    BlockStoreOptions options = options_;
    options.disk_directory = left;
    options.wrap_extent_io = nullptr;
    const auto after = *BlockStore::Open(options);
    ASSERT_TRUE(after->OpenNamespace(ns_, layout_).ok());
    while (after->stats().is_recovering) std::this_thread::yield();
    EXPECT_EQ(TierOf(after->stats(), "disk").blocks, 0u);
  }
  store_->ReleaseLeases(session_, {&lease->lease, 1});
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Disk().used_bytes, 0u);
  EXPECT_EQ(Host().used_bytes, 0u);
}

TEST_F(FaultTest, WritesBeyondTheQueueAreSkippedAndCounted) {
  MetricsRegistry registry;
  options_.metrics = &registry;
  options_.disk_write_queue_max = 12;
  OpenFaulty(64, 256, 16);
  faults_->writes_stall = true;
  PublishChain(ChainOf(ns_, 1, 1));
  while (faults_->writes_count == 0) std::this_thread::yield();
  PublishChain(ChainOf(ns_, 2, 20));  // no error: they are in memory
  faults_->writes_stall = false;
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Matched(ChainOf(ns_, 2, 20)), 20u);
  EXPECT_EQ(Disk().blocks, 1u + 12u);
  EXPECT_THAT(SerializeMetrics(registry),
              testing::HasSubstr("ibid_store_skipped_disk_writes_total 8"));
}

TEST_F(FaultTest, ReadsBeyondTheQueueAreRefusedByName) {
  options_.acquire_queue_max = 8;
  OpenFaulty();
  const auto chain = ChainOf(ns_, 1, 16);
  PutOnDiskOnly(chain);
  faults_->reads_stall = true;
  std::atomic<int> answers_count{0}, refused_count{0};
  for (const ChainLink& link : chain) {
    store_->Acquire(ns_, link.key, [&](absl::StatusOr<BlockRef> ref) {
      if (ref.ok()) {
        EXPECT_TRUE(ref->payload().size() > 0);
      } else {
        EXPECT_EQ(LimitOf(ref.status()), (Limit{"acquire_queue_max", 8}));
        ++refused_count;
      }
      ++answers_count;
    });
  }
  EXPECT_GE(refused_count, 16 - 8 - static_cast<int>(options_.io_threads_count));
  EXPECT_LT(refused_count, 16);
  faults_->reads_stall = false;
  while (answers_count < 16) std::this_thread::yield();
  EXPECT_EQ(store_->stats().missed_blocks, static_cast<uint64_t>(refused_count));
}

// Reads before write-backs. But a disk that answers no read does not hold up
// the writes for ever.
TEST_F(FaultTest, WritesYieldToReadsAndGoOnAllTheSame) {
  OpenFaulty(4, 64, 16);
  const auto chain = ChainOf(ns_, 1, 3);
  PutOnDiskOnly(chain);
  faults_->reads_stall = true;
  std::atomic<int> answers_count{0};
  for (const ChainLink& link : chain)
    store_->Acquire(ns_, link.key, [&](absl::StatusOr<BlockRef>) { ++answers_count; });
  while (faults_->reads_count == 0) std::this_thread::yield();
  const int writes_before = faults_->writes_count;
  ASSERT_TRUE(PublishOne(ChainOf(ns_, 2, 1)[0]).ok());
  EXPECT_EQ(faults_->writes_count, writes_before) << "a read is waiting";
  while (faults_->writes_count == writes_before) std::this_thread::yield();
  EXPECT_EQ(answers_count, 0) << "the reads are still waiting";
  faults_->reads_stall = false;
  while (answers_count < 3) std::this_thread::yield();
}

TEST_F(FaultTest, NoSpaceInAWriteIsAnsweredWithoutFailingThePublish) {
  OpenFaulty();
  faults_->writes_have_no_space = true;
  PublishChain(ChainOf(ns_, 1, 4));
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Matched(ChainOf(ns_, 1, 4)), 4u);
  EXPECT_EQ(Disk().blocks, 0u);
  EXPECT_EQ(Disk().used_bytes, 0u);
  faults_->writes_have_no_space = false;
  Heal();
  EXPECT_TRUE(PublishOne(ChainOf(ns_, 2, 1)[0], /*durable=*/true).ok());
}

// The records are not needed to be dropped.
TEST_F(FaultTest, ADirectoryThatIsSpoiltAfterTheStartLetsItsBlocksGo) {
  OpenStore(WithDisk(4096, 16384, 1024));
  const auto chain = ChainOf(ns_, 1, 3000);
  PublishChain(chain);
  Reopen();  // moves the records from the log to a table
  WaitForRecovery();
  ASSERT_EQ(Disk().blocks, chain.size());
  SpoilDirectory();
  for (size_t begin = 0; begin < chain.size(); begin += 500) {
    std::vector<BlockKey> keys;
    for (size_t i = begin; i < begin + 500; ++i) keys.push_back(chain[i].key);
    (void)store_->Drop(ns_, keys);
  }
  EXPECT_TRUE(Flush());
  EXPECT_EQ(Disk().used_bytes, 0u);
}

// A directory that cannot be read: nothing is written to disk until it can, and nobody waits for
// that longer than a scan takes.
TEST_F(FaultTest, ADirectoryThatCannotBeScannedAnswersDurablePublishesAtOnce) {
  OpenStore(WithDisk(4096, 16384, 1024));
  PublishChain(ChainOf(ns_, 1, 3000));
  store_.reset();
  OpenStore(options_);  // moves the records from the log to a table
  WaitForRecovery();
  store_.reset();
  SpoilDirectory();
  OpenStore(options_);
  const auto chain = ChainOf(ns_, 2, 8);
  EXPECT_TRUE(absl::IsUnavailable(PublishOne(chain[0], /*durable=*/true)));
  EXPECT_TRUE(PublishOne(chain[1]).ok());
  EXPECT_EQ(Matched(chain), 2u) << "it is in memory all the same";
  EXPECT_TRUE(store_->stats().is_recovering);
  EXPECT_EQ(Disk().state.substr(0, 10), "read-only:") << Disk().state;
  EXPECT_TRUE(HasRightBytes(*AcquireOne(chain[1].key), chain[1].key));
  EXPECT_TRUE(absl::IsUnavailable(PublishOne(chain[2], /*durable=*/true)));
}

// While records are not read nobody knows which files are empty and which blocks are the coldest:
// the budget waits, however far it is exceeded.
TEST_F(FaultTest, NothingLeavesForTheBudgetWhileTheDirectoryCannotBeScanned) {
  OpenStore(WithDisk(4096, 3072, 64));
  const auto chain = ChainOf(ns_, 1, 3000);
  PublishChain(chain);
  ASSERT_TRUE(Flush());
  Reopen();  // moves the records from the log to a table
  ASSERT_EQ(Disk().blocks, chain.size());
  store_.reset();
  SpoilDirectory();
  const auto files_count = [this] {
    const std::filesystem::directory_iterator files(options_.disk_directory + "/extents");
    return std::distance(begin(files), end(files));
  };
  const auto files_before = files_count();
  // Room for the extents and none for the directory.
  options_.disk_bytes_max -= options_.disk_directory_bytes_reserve;
  options_.disk_directory_bytes_reserve = 0;
  options_.wrap_extent_io = [this](std::unique_ptr<ExtentIo> real) {
    return std::make_unique<FaultyExtentIo>(std::move(real), faults_);
  };
  OpenStore(options_);
  // A disk that cannot be read is looked after many times a second, and each trial is seen here.
  faults_->reads_fail = true;
  for (size_t i = 0; i < chain.size() && Disk().state.substr(0, 5) != "down:"; ++i) {
    (void)AcquireOne(chain[i].key);
  }
  ASSERT_EQ(Disk().state.substr(0, 5), "down:");
  for (int round = 0; round < 20; ++round) {
    const int reads_before = faults_->reads_count;
    while (faults_->reads_count == reads_before) {
      clock_.Advance(absl::Seconds(31));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  EXPECT_TRUE(store_->stats().is_recovering);
  EXPECT_EQ(Disk().evictions, 0u);
  EXPECT_EQ(files_count(), files_before);
}

// failures 33, 34: a full disk, then a restart: what was written is there, the rest is absent, and
// the budget holds.
TEST_F(FaultTest, AFullDiskSurvivesARestart) {
  OpenFaulty();
  const auto chain = ChainOf(ns_, 1, 3);
  PutOnDiskOnly(chain);
  faults_->writes_have_no_space = true;
  const auto later = ChainOf(ns_, 2, 4);
  PublishChain(later);
  (void)Flush();
  EXPECT_NE(Disk().state, "ok");
  Reopen();
  faults_->writes_have_no_space = false;
  EXPECT_EQ(Matched(chain), 3u);
  EXPECT_EQ(Matched(later), 0u);
  for (const ChainLink& link : chain) EXPECT_TRUE(HasRightBytes(*AcquireOne(link.key), link.key));
  PublishChain(later);
  ASSERT_TRUE(Flush());
  Reopen();
  EXPECT_EQ(Matched(later), 4u) << "the disk has room again";
}

}  // namespace
}  // namespace ibid
