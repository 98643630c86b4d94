// The gpu tier over a host implementation of device memory: promotion, eviction and demotion
// between three tiers, and a device that errs or stands still.
#include <atomic>
#include <random>
#include <thread>

#include "tests/cache_server/store/faulty_device_memory.h"
#include "tests/cache_server/store/faulty_extent_io.h"

namespace ibid {
namespace {

// An error would help nobody: the match has its answer.
TEST_F(GpuTest, WhatThePromotionQueueHasNoRoomForIsLeftOutAndCounted) {
  MetricsRegistry registry;
  BlockStoreOptions options = WithGpu(HostOnly(16, 8), 8);
  options.gpu_promote_queue_max = 3;
  options.metrics = &registry;
  OpenStore(options);
  const auto chain = ChainOf(ns_, 1, 8);
  PublishChain(chain);
  Ask(chain);
  EXPECT_EQ(Probe(chain).matched_count, 8u);
  EXPECT_NE(SerializeMetrics(registry).find("ibid_store_skipped_gpu_promotions_total 5"),
            std::string::npos);
  store_.reset();  // before the registry
}

TEST_F(GpuTest, AGaugeSaysHowManyBlocksWaitForTheGpuTier) {
  MetricsRegistry registry;
  BlockStoreOptions options = WithGpu(HostOnly(32, 8), 32);
  options.metrics = &registry;
  OpenStore(options);
  const auto says = [&](const char* line) {
    store_->RunMaintenance();
    return SerializeMetrics(registry).find(line) != std::string::npos;
  };
  const auto chain = ChainOf(ns_, 1, 20);
  PublishChain(chain);
  EXPECT_TRUE(says("\nibid_store_gpu_queue_depth 0\n"));
  faults_.writes.Hold();
  ASSERT_TRUE(store_->Match(session_, ns_, KeysOf(chain), {.lease = true}).ok());
  EXPECT_TRUE(says("\nibid_store_gpu_queue_depth 20\n"));
  ASSERT_TRUE(Becomes([&] { return faults_.writes.held_count > 0; }));
  EXPECT_TRUE(says("\nibid_store_gpu_queue_depth 20\n")) << "they are on their way";
  faults_.writes.Release();
  ASSERT_TRUE(Flush());
  EXPECT_TRUE(says("\nibid_store_gpu_queue_depth 0\n"));
  store_.reset();  // before the registry
}

TEST_F(GpuTest, BlocksThatAreAskedForAgainGetACopyInTheGpuTier) {
  OpenStore(WithGpu(HostOnly(16, 8), 8));
  const auto chain = ChainOf(ns_, 1, 4);
  PublishChain(chain);
  EXPECT_EQ(Gpu().blocks, 0u) << "nobody has asked yet";
  Ask(chain);
  EXPECT_EQ(Gpu().blocks, 4u);
  EXPECT_EQ(Gpu().used_bytes, 4u * 4096);
  EXPECT_EQ(Probe(chain).gpu_blocks, 4u);
  EXPECT_EQ(Host().blocks, 4u) << "the host copies stay while there is room";
  ExpectServed(chain, "host");
}

TEST_F(GpuTest, AProbeWithoutALeaseMovesNothing) {
  OpenStore(WithGpu(HostOnly(16, 8), 8));
  const auto chain = ChainOf(ns_, 1, 4);
  PublishChain(chain);
  EXPECT_EQ(Matched(chain), 4u);
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Gpu().blocks, 0u);
}

TEST_F(GpuTest, WhatTheHostTierEvictsIsServedFromTheGpuTier) {
  OpenStore(WithGpu(HostOnly(8, 8), 8));
  const auto chain = ChainOf(ns_, 1, 4);
  PublishChain(chain);
  Ask(chain);
  PublishChain(ChainOf(ns_, 2, 8));
  EXPECT_EQ(Matched(chain), 4u) << "the gpu tier has it";
  const uint64_t hits_before = Gpu().hits;
  size_t from_gpu = 0;
  for (const ChainLink& link : chain) {
    const auto ref = AcquireOne(link.key);
    ASSERT_TRUE(ref.ok()) << ref.status();
    EXPECT_TRUE(HasRightBytes(*ref, link.key));
    from_gpu += ref->tier() == "gpu" ? 1 : 0;
  }
  EXPECT_GT(from_gpu, 0u);
  EXPECT_EQ(Gpu().hits - hits_before, from_gpu);
}

TEST_F(GpuTest, TheLastCopyIsCopiedDownBeforeItLeavesTheGpuTier) {
  BlockStoreOptions options = WithGpu(HostOnly(8, 8), 4);
  options.eviction_policy = "lru";
  OpenStore(options);
  const auto first = ChainOf(ns_, 1, 4);
  const auto second = ChainOf(ns_, 2, 4);
  const auto third = ChainOf(ns_, 3, 4);
  PublishChain(first);
  Ask(first);
  PublishChain(second);
  PublishChain(third);  // the host copies of `first` leave
  ASSERT_EQ(Probe(first).gpu_blocks, 4u);
  ASSERT_EQ(Probe(second).host_blocks, 4u);
  Ask(second);  // and now its gpu copies
  EXPECT_EQ(Probe(second).gpu_blocks, 4u);
  EXPECT_EQ(Gpu().evictions, 4u);
  EXPECT_EQ(Probe(first).host_blocks, 4u) << "of the host tier the coldest of all left for it";
  EXPECT_EQ(Matched(third), 0u);
  ExpectServed(first, "host");
  EXPECT_EQ(Host().used_bytes, Host().blocks * 4096);
}

TEST_F(GpuTest, AChainLongerThanTheGpuTierPassesThroughIt) {
  OpenStore(WithGpu(HostOnly(32, 8), 4));
  const auto chain = ChainOf(ns_, 1, 16);
  PublishChain(chain);
  Ask(chain);
  Ask(chain);
  EXPECT_EQ(Gpu().blocks, 4u);
  EXPECT_EQ(Matched(chain), 16u);
  ExpectServed(chain, "host");
}

TEST_F(GpuTest, ADropLeavesNoCopyBehindInAnyTier) {
  OpenStore(WithGpu(WithDisk(16, 64, 8), 8));
  const auto chain = ChainOf(ns_, 1, 6);
  PublishChain(chain);
  Ask(chain);
  ASSERT_TRUE(Flush());
  ASSERT_EQ(Gpu().blocks, 6u);
  ASSERT_EQ(Disk().blocks, 6u);
  EXPECT_EQ(store_->Drop(ns_, KeysOf(chain)), 6u);
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Matched(chain), 0u);
  for (const BlockTierStats& tier : store_->stats().tiers) {
    EXPECT_EQ(tier.blocks, 0u) << tier.tier;
    EXPECT_EQ(tier.used_bytes, 0u) << tier.tier;
  }
}

TEST_F(GpuTest, ADeviceThatTakesNothingCostsNothingElse) {
  OpenStore(WithGpu(HostOnly(16, 8), 8));
  faults_.writes_fail = true;
  const auto chain = ChainOf(ns_, 1, 4);
  PublishChain(chain);
  Ask(chain);
  EXPECT_EQ(Gpu().blocks, 0u);
  EXPECT_EQ(Gpu().used_bytes, 0u);
  ExpectServed(chain, "host");
  faults_.writes_fail = false;
  Ask(chain);
  EXPECT_EQ(Gpu().blocks, 4u) << "it is tried again";
}

TEST_F(GpuTest, ABlockThatTheDeviceDoesNotGiveBackIsReadFromDisk) {
  OpenStore(WithGpu(WithDisk(8, 64, 8), 8));
  const auto chain = ChainOf(ns_, 1, 4);
  PublishChain(chain);
  Ask(chain);
  ASSERT_TRUE(Flush());
  PublishChain(ChainOf(ns_, 2, 8));
  ASSERT_TRUE(Flush());
  faults_.reads_fail = true;
  for (const ChainLink& link : chain) {
    const auto ref = AcquireOne(link.key);
    ASSERT_TRUE(ref.ok()) << ref.status();
    EXPECT_TRUE(HasRightBytes(*ref, link.key));
    EXPECT_NE(ref->tier(), "gpu");
  }
}

TEST_F(GpuTest, ABlockWhoseOnlyCopyTheDeviceLostIsAMissAndLeaves) {
  OpenStore(WithGpu(HostOnly(4, 4), 4));
  const auto chain = ChainOf(ns_, 1, 1);
  PublishChain(chain);
  Ask(chain);
  PublishChain(ChainOf(ns_, 2, 4));
  ASSERT_EQ(Probe(chain).gpu_blocks, 1u);
  faults_.reads_fail = true;
  EXPECT_FALSE(AcquireOne(chain[0].key).ok());
  EXPECT_EQ(Matched(chain), 0u);
  EXPECT_EQ(Gpu().used_bytes, 0u);
}

// failures 9: the slot of a slow read is given to nobody else.
TEST_F(GpuTest, ASlotThatIsBeingReadIsNotGivenToAnotherBlock) {
  OpenStore(WithGpu(HostOnly(8, 8), 4));
  const auto slow = ChainOf(ns_, 1, 1);
  PublishChain(slow);
  Ask(slow);
  PublishChain(ChainOf(ns_, 2, 8));  // its host copy leaves
  ASSERT_EQ(Probe(slow).host_blocks, 0u);
  faults_.reads.Hold();
  std::promise<absl::StatusOr<BlockRef>> promise;
  auto result = promise.get_future();
  store_->Acquire(ns_, slow[0].key,
                  [&](absl::StatusOr<BlockRef> ref) { promise.set_value(std::move(ref)); });
  while (faults_.reads.held_count == 0) std::this_thread::yield();
  // Others want all of the gpu tier meanwhile.
  const auto others = ChainOf(ns_, 2, 8);
  MatchOptions options;
  options.lease = true;
  ASSERT_TRUE(store_->Match(session_, ns_, KeysOf(others), options).ok());
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Gpu().blocks, 4u) << "three others beside the one that is read";
  faults_.reads.Release();
  const absl::StatusOr<BlockRef> ref = result.get();
  ASSERT_TRUE(ref.ok()) << ref.status();
  EXPECT_TRUE(HasRightBytes(*ref, slow[0].key));
}

TEST_F(GpuTest, BlocksOfAnotherSizeFindRoomWhereTheFirstSizeHasTakenAll) {
  OpenStore(WithGpu(HostOnly(64, 8), 16));
  const auto small = ChainOf(ns_, 1, 16);
  PublishChain(small);
  Ask(small);
  ASSERT_EQ(Gpu().blocks, 16u);
  const NamespaceId large_ns = NamespaceOf("large");
  ASSERT_TRUE(store_->OpenNamespace(large_ns, LayoutOfPages(4)).ok());
  const auto large = ChainOf(large_ns, 2, 3);
  PublishAll(*store_, session_, large_ns, large);
  MatchOptions options;
  options.lease = true;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(store_->Match(session_, large_ns, KeysOf(large), options).ok());
    ASSERT_TRUE(Flush());
  }
  EXPECT_GT(store_->Match({}, large_ns, KeysOf(large), {})->gpu_blocks, 0u);
}

TEST_F(GpuTest, AVerifyReadsTheCopiesOfTheGpuTierToo) {
  OpenStore(WithGpu(WithDisk(16, 64, 8), 8));
  const auto chain = ChainOf(ns_, 1, 4);
  PublishChain(chain);
  Ask(chain);
  const auto report = Verify();
  EXPECT_EQ(report.copies, 12u);
  EXPECT_EQ(report.checked_copies, 12u);
  EXPECT_EQ(report.bad_copies(), 0u);

  faults_.reads_to_flip = 1;
  const auto damaged = Verify();
  EXPECT_EQ(damaged.damaged_gpu_copies, 1u);
  EXPECT_EQ(damaged.bad_copies(), 1u);
  EXPECT_EQ(damaged.kept_blocks, 1u);
  EXPECT_EQ(Gpu().blocks, 3u);
  EXPECT_EQ(Gpu().used_bytes, 3u * 4096);
  ExpectServed(chain, "host");
  Ask(chain);  // and it may come back
  EXPECT_EQ(Gpu().blocks, 4u);
}

TEST_F(GpuTest, AVerifyDropsABlockWhoseOnlyCopyIsDamagedInTheGpuTier) {
  BlockStoreOptions options = WithGpu(HostOnly(8, 8), 8);
  options.eviction_policy = "lru";
  OpenStore(options);
  const auto chain = ChainOf(ns_, 1, 4);
  PublishChain(chain);
  Ask(chain);
  PublishChain(ChainOf(ns_, 2, 8));
  ASSERT_EQ(Host().blocks, 8u);
  ASSERT_EQ(Probe(chain).host_blocks, 0u);
  faults_.reads_fail = true;
  const auto report = Verify();
  EXPECT_EQ(report.unreadable_gpu_copies, 4u);
  EXPECT_EQ(report.kept_blocks, 0u);
  EXPECT_EQ(Matched(chain), 0u);
  EXPECT_EQ(Gpu().blocks, 0u);
  EXPECT_EQ(Host().blocks, 8u);
}

TEST_F(GpuTest, AFlushWritesToDiskWhatOnlyTheGpuTierHas) {
  BlockStoreOptions options = WithGpu(WithDisk(8, 64, 8), 8);
  options.disk_write = DiskWriteMode::kOnDemotion;
  options.eviction_policy = "lru";
  OpenStore(options);
  const auto chain = ChainOf(ns_, 1, 4);
  PublishChain(chain);
  Ask(chain);
  PublishChain(ChainOf(ns_, 2, 8));
  ASSERT_TRUE(Flush());
  ASSERT_EQ(Probe(chain).gpu_blocks, 4u);
  ASSERT_EQ(Probe(chain).host_blocks, 0u);
  const uint64_t demoted = Disk().blocks;  // ahead of need
  ASSERT_LT(demoted, 4u);

  const KeepResult kept = store_->KeepOnDisk(absl::Seconds(30));
  EXPECT_EQ(kept.remaining_blocks, 0u);
  EXPECT_EQ(kept.written_blocks, 12 - demoted);
  EXPECT_EQ(Disk().blocks, 12u);
  EXPECT_EQ(Probe(chain).gpu_blocks, 4u) << "copies in memory stay";
  EXPECT_EQ(store_->stats().pinned_bytes, 0u);
  Reopen();
  EXPECT_EQ(Matched(chain), 4u);
  ExpectServed(chain, "disk");
}

TEST_F(GpuTest, AFlushSaysWhatADeviceDoesNotGiveBack) {
  BlockStoreOptions options = WithGpu(WithDisk(8, 64, 8), 8);
  options.disk_write = DiskWriteMode::kOnDemotion;
  options.eviction_policy = "lru";
  OpenStore(options);
  const auto chain = ChainOf(ns_, 1, 4);
  PublishChain(chain);
  Ask(chain);
  PublishChain(ChainOf(ns_, 2, 8));
  ASSERT_TRUE(Flush());
  const uint64_t demoted = Disk().blocks;
  ASSERT_LT(demoted, 4u);
  faults_.reads_fail = true;
  const KeepResult kept = store_->KeepOnDisk(absl::Seconds(30));
  EXPECT_EQ(kept.written_blocks, 8u);
  EXPECT_EQ(kept.remaining_blocks, 4 - demoted);
  EXPECT_EQ(Host().used_bytes, Host().blocks * 4096);
}

TEST_F(GpuTest, PinnedBlocksStayInTheGpuTierAheadOfOthers) {
  BlockStoreOptions options = WithGpu(HostOnly(64, 8), 8);
  options.eviction_policy = "lru";
  OpenStore(options);
  const auto system_prompt = ChainOf(ns_, 1, 4);
  PublishChain(system_prompt);
  Ask(system_prompt);
  ASSERT_TRUE(store_->Pin(PinId{1}, ns_, KeysOf(system_prompt), {KeepPriority::kMustStay}).ok());
  for (uint32_t seed = 2; seed < 8; ++seed) {
    const auto other = ChainOf(ns_, seed, 4);
    PublishChain(other);
    Ask(other);
    EXPECT_EQ(Probe(other).gpu_blocks, 4u) << seed;
    EXPECT_EQ(Probe(system_prompt).gpu_blocks, 4u) << seed;
  }
  EXPECT_EQ(Gpu().kept_bytes, 4u * 4096);
  // Pinned first, copied up later: the same.
  ASSERT_TRUE(store_->Unpin(PinId{1}).ok());
  EXPECT_EQ(Gpu().kept_bytes, 0u);
  const auto second_prompt = ChainOf(ns_, 9, 4);
  PublishChain(second_prompt);
  ASSERT_TRUE(store_->Pin(PinId{2}, ns_, KeysOf(second_prompt), {KeepPriority::kLow}).ok());
  Ask(second_prompt);
  for (uint32_t seed = 2; seed < 6; ++seed) Ask(ChainOf(ns_, seed, 4));
  EXPECT_EQ(Probe(second_prompt).gpu_blocks, 4u);
  EXPECT_EQ(Probe(system_prompt).gpu_blocks, 0u) << "unpinned, it is like all others";
}

TEST_F(GpuTest, AGpuTierFullOfPinnedBlocksTakesNoOthersAndLosesNothing) {
  OpenStore(WithGpu(HostOnly(64, 8), 4));
  const auto pinned = ChainOf(ns_, 1, 4);
  PublishChain(pinned);
  ASSERT_TRUE(store_->Pin(PinId{1}, ns_, KeysOf(pinned), {KeepPriority::kHigh}).ok());
  Ask(pinned);
  const auto other = ChainOf(ns_, 2, 4);
  PublishChain(other);
  Ask(other);
  EXPECT_EQ(Probe(pinned).gpu_blocks, 4u);
  EXPECT_EQ(Probe(other).gpu_blocks, 0u);
  ExpectServed(other, "host");
}

TEST_F(GpuTest, ABlockThatIsBeingWrittenToDiskIsCopiedUp) {
  const auto disk_faults = std::make_shared<DiskFaults>();
  BlockStoreOptions options = WithGpu(WithDisk(16, 64, 8), 8);
  options.wrap_extent_io = [&](std::unique_ptr<ExtentIo> real) {
    return std::make_unique<FaultyExtentIo>(std::move(real), disk_faults);
  };
  OpenStore(options);
  const auto chain = ChainOf(ns_, 1, 4);
  disk_faults->writes_stall = true;
  PublishChain(chain);
  ASSERT_TRUE(Becomes([&] { return disk_faults->writes_count > 0; }));
  MatchOptions match;
  match.lease = true;
  ASSERT_TRUE(store_->Match(session_, ns_, KeysOf(chain), match).ok());
  EXPECT_TRUE(Becomes([this] { return Gpu().blocks == 4; }));
  EXPECT_EQ(Disk().blocks, 0u);
  disk_faults->writes_stall = false;
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Disk().blocks, 4u);
  EXPECT_EQ(Probe(chain).gpu_blocks, 4u);
}

// The host tier is held to the last slot: then the gpu tier keeps the last copy that it has, and
// the other block is content with the one in memory.
TEST_F(GpuTest, ALastCopyIsNotGivenUpForASecondOneOfAnotherBlock) {
  BlockStoreOptions options = WithGpu(HostOnly(8, 8), 4);
  options.eviction_policy = "lru";
  OpenStore(options);
  const auto first = ChainOf(ns_, 1, 4);
  PublishChain(first);
  Ask(first);
  const auto second = ChainOf(ns_, 2, 8);
  PublishChain(second);
  ASSERT_EQ(Probe(first).host_blocks, 0u);
  MatchOptions match;
  match.lease = true;
  ASSERT_EQ(store_->Match(session_, ns_, KeysOf(second), match)->matched_count, 8u);
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Matched(first), 4u);
  EXPECT_EQ(Probe(first).gpu_blocks, 4u);
  EXPECT_EQ(Probe(second).gpu_blocks, 0u);
}

// Publishes, requests, reads and drops from several threads over three small tiers: every block
// that is served has its bytes, and at the end the books of every tier agree.
TEST_F(GpuTest, ThreeTiersStayRightUnderLoadFromSeveralThreads) {
  OpenStore(WithGpu(WithDisk(24, 64, 8), 12));
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  std::atomic<int> served{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<uint32_t>(t) + 1);
      const SessionId session = *store_->OpenSession("load");
      for (int step = 0; step < 400; ++step) {
        const auto chain = ChainOf(ns_, random() % 12 + 1, 8, random() % 2 * 2);
        if (random() % 40 == 0) store_->Drop(ns_, KeysOf(chain));
        MatchOptions options;
        options.lease = true;
        const auto match = store_->Match(session, ns_, KeysOf(chain), options);
        ASSERT_TRUE(match.ok()) << match.status();
        for (uint32_t i = 0; i < match->matched_count; ++i) {
          const auto ref = AcquireOne(chain[i].key);
          if (!ref.ok()) continue;  // dropped, or no buffer: a miss
          ASSERT_TRUE(HasRightBytes(*ref, chain[i].key));
          ++served;
        }
        for (size_t i = match->matched_count; i < chain.size(); ++i) {
          if (!Publish(*store_, session, ns_, chain[i]).ok()) break;
        }
        if (match->lease.value != 0) store_->ReleaseLeases(session, {&match->lease, 1});
      }
      store_->EndSession(session);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(Flush());
  EXPECT_GT(served, 0);
  const BlockStoreStats stats = store_->stats();
  EXPECT_EQ(stats.pinned_bytes, 0u);
  EXPECT_EQ(stats.corrupt_blocks, 0u);
  for (const BlockTierStats& tier : stats.tiers) {
    EXPECT_EQ(tier.used_bytes, tier.blocks * 4096) << tier.tier;
    EXPECT_LE(tier.used_bytes, tier.bytes_max) << tier.tier;
  }
  EXPECT_GT(TierOf(stats, "gpu").evictions, 0u);
  store_->DropEverything();
  ASSERT_TRUE(Flush());
  for (const BlockTierStats& tier : store_->stats().tiers) {
    EXPECT_EQ(tier.used_bytes, 0u) << tier.tier;
  }
}

}  // namespace
}  // namespace ibid
