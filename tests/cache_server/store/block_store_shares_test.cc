// Quotas in bytes at the store: who loses what, in which tier, and whose blocks are counted for
// whom.
#include "cache_server/disk_directory.h"
#include "cache_server/gpu_tier.h"
#include "cache_server/tenant_table.h"
#include "core/device_memory.h"
#include "tests/cache_server/store/faulty_extent_io.h"
#include "tests/cache_server/store/store_harness.h"

namespace ibid {
namespace {

class SharesTest : public StoreFixture {
 protected:
  void Open(const BlockStoreOptions& options) {
    OpenStore(options);
    OpenTheirs();
  }
  void OpenTheirs() { ASSERT_TRUE(store_->OpenNamespace(theirs_, layout_, "batch").ok()); }
  void SetQuota(uint64_t host_pages, uint64_t disk_pages = 1'000, uint64_t gpu_pages = 1'000) {
    TenantQuota quota;
    quota.host_bytes_max = host_pages * 4096;
    quota.disk_bytes_max = disk_pages * 4096;
    quota.gpu_bytes_max = gpu_pages * 4096;
    ASSERT_TRUE(store_->tenants().SetQuota("batch", quota).ok());
  }
  ChainLink TheirBlock(uint32_t seed) { return ChainOf(theirs_, seed, 1)[0]; }
  absl::Status PublishTheirs(uint32_t seed) {
    return Publish(*store_, session_, theirs_, TheirBlock(seed));
  }
  bool HasTheirs(uint32_t seed) {
    return MatchedCount(*store_, theirs_, {TheirBlock(seed).key}) == 1;
  }
  void PublishOurs(uint32_t first, uint32_t count) {
    for (uint32_t seed = first; seed < first + count; ++seed) PublishChain(ChainOf(ns_, seed, 1));
  }
  TenantInfo Of(const std::string& tenant) {
    for (const TenantInfo& each : store_->Tenants()) {
      if (each.name == tenant) return each;
    }
    return {};
  }
  // failures 43: what the tenants have in use is what the tiers have in use.
  void CheckSums() {
    uint64_t host = 0, disk = 0, gpu = 0;
    for (const TenantInfo& tenant : store_->Tenants()) {
      host += tenant.host_used_bytes;
      disk += tenant.disk_used_bytes;
      gpu += tenant.gpu_used_bytes;
    }
    const BlockStoreStats stats = store_->stats();
    EXPECT_EQ(host, TierOf(stats, "host").used_bytes);
    EXPECT_EQ(disk, TierOf(stats, "disk").used_bytes);
    EXPECT_EQ(gpu, TierOf(stats, "gpu").used_bytes);
  }

  const NamespaceId theirs_ = NamespaceOf("theirs");
};

TEST_F(SharesTest, ATenantAtItsQuotaLosesItsOwnColdestBlock) {
  MetricsRegistry metrics;
  BlockStoreOptions options = HostOnly(16, 1);
  options.metrics = &metrics;
  Open(options);
  SetQuota(3);
  PublishOurs(100, 5);
  for (uint32_t seed = 1; seed <= 5; ++seed) ASSERT_TRUE(PublishTheirs(seed).ok());
  EXPECT_FALSE(HasTheirs(1));
  EXPECT_FALSE(HasTheirs(2));
  for (uint32_t seed = 3; seed <= 5; ++seed) EXPECT_TRUE(HasTheirs(seed));
  for (uint32_t seed = 100; seed < 105; ++seed) EXPECT_EQ(Matched(ChainOf(ns_, seed, 1)), 1u);
  EXPECT_EQ(Of("batch").host_used_bytes, 3u * 4096);
  EXPECT_EQ(Of("").host_used_bytes, 5u * 4096);
  CheckSums();
  store_->RunMaintenance();
  EXPECT_NE(SerializeMetrics(metrics).find(
                "ibid_store_tenant_used_bytes{tenant=\"batch\",tier=\"host\"} 12288"),
            std::string::npos);
  store_.reset();
}

// failures 22: an answer at once, and one that says whose limit it is.
TEST_F(SharesTest, ATenantWhoseBlocksAreAllHeldIsRefusedByName) {
  Open(HostOnly(16, 1));
  SetQuota(2);
  ASSERT_TRUE(PublishTheirs(1).ok());
  ASSERT_TRUE(PublishTheirs(2).ok());
  const auto first = AcquireNow(*store_, theirs_, TheirBlock(1).key);
  auto second = AcquireNow(*store_, theirs_, TheirBlock(2).key);
  ASSERT_TRUE(first.ok() && second.ok());
  const absl::Status refused = PublishTheirs(3);
  ASSERT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(LimitOf(refused), (Limit{"host_bytes_max", 2 * 4096}));
  EXPECT_NE(refused.message().find("\"batch\""), std::string::npos) << refused;
  EXPECT_EQ(Of("batch").refused_blocks, 1u);
  EXPECT_EQ(store_->stats().reservations, 0u) << "a refused block leaves nothing behind";
  PublishOurs(100, 1);
  CheckSums();
  second = absl::NotFoundError("");
  EXPECT_TRUE(PublishTheirs(3).ok());
  EXPECT_FALSE(HasTheirs(2));
}

TEST_F(SharesTest, ABlockLargerThanTheQuotaIsRefusedAndCostsTheTenantNothing) {
  Open(HostOnly(64, 8));
  const NamespaceId large = NamespaceOf("large");
  ASSERT_TRUE(store_->OpenNamespace(large, LayoutOfPages(4), "batch").ok());
  SetQuota(3);
  for (uint32_t seed = 1; seed <= 3; ++seed) ASSERT_TRUE(PublishTheirs(seed).ok());
  EXPECT_TRUE(
      absl::IsResourceExhausted(Publish(*store_, session_, large, ChainOf(large, 1, 1)[0])));
  for (uint32_t seed = 1; seed <= 3; ++seed) EXPECT_TRUE(HasTheirs(seed));
}

TEST_F(SharesTest, NobodyIsPushedBelowItsShareOfAFullTier) {
  Open(HostOnly(30, 1));
  SetQuota(15);
  for (uint32_t seed = 1; seed <= 15; ++seed) ASSERT_TRUE(PublishTheirs(seed).ok());
  PublishOurs(1'000, 200);
  // 15 : 30 of 30 pages.
  EXPECT_EQ(Of("batch").host_used_bytes, 10u * 4096);
  EXPECT_EQ(Of("").host_used_bytes, 20u * 4096);
  for (uint32_t seed = 100; seed < 300; ++seed) ASSERT_TRUE(PublishTheirs(seed).ok());
  EXPECT_EQ(Of("").host_used_bytes, 20u * 4096) << "nor by the other";
  CheckSums();
}

TEST_F(SharesTest, AQuotaHoldsForBlocksThatWereThereBeforeAndEndsWithoutATrace) {
  Open(HostOnly(16, 1));
  for (uint32_t seed = 1; seed <= 8; ++seed) ASSERT_TRUE(PublishTheirs(seed).ok());
  SetQuota(4);
  store_->RunMaintenance();
  EXPECT_EQ(Of("batch").host_used_bytes, 8u * 4096) << "nothing leaves before something comes";
  for (uint32_t seed = 11; seed <= 14; ++seed) {
    ASSERT_TRUE(PublishTheirs(seed).ok());
    CheckSums();
  }
  EXPECT_EQ(Of("batch").host_used_bytes, 4u * 4096) << "two for each that came";
  for (uint32_t seed = 11; seed <= 14; ++seed) EXPECT_TRUE(HasTheirs(seed)) << seed;

  ASSERT_TRUE(store_->tenants().SetQuota("batch", std::nullopt).ok());
  store_->RunMaintenance();
  for (uint32_t seed = 21; seed <= 28; ++seed) ASSERT_TRUE(PublishTheirs(seed).ok());
  EXPECT_EQ(Of("batch").host_used_bytes, 12u * 4096);
  PublishOurs(100, 20);
  EXPECT_EQ(Of("batch").host_used_bytes, 0u) << "all are in one order again";
  CheckSums();
}

TEST_F(SharesTest, APrefixLosesItsEndWhenItsTenantIsOverTheQuota) {
  Open(HostOnly(64, 1));
  SetQuota(4);
  const auto chain = ChainOf(theirs_, 1, 4);
  PublishAll(*store_, session_, theirs_, chain);
  ASSERT_TRUE(PublishTheirs(50).ok());
  EXPECT_EQ(MatchedCount(*store_, theirs_, KeysOf(chain)), 3u);
}

TEST_F(SharesTest, PinnedBlocksCountAndMayTakeTheirPartOfTheQuotaOnly) {
  Open(HostOnly(64, 1));
  SetQuota(4);
  const auto chain = ChainOf(theirs_, 1, 3);
  const auto too_much = store_->Pin({1}, theirs_, KeysOf(chain), {});
  EXPECT_EQ(LimitOf(too_much.status()), (Limit{"host_bytes_max", 4 * 4096})) << too_much.status();
  EXPECT_NE(too_much.status().message().find("\"batch\""), std::string::npos);
  ASSERT_TRUE(store_->Pin({1}, theirs_, KeysOf({chain[0], chain[1]}), {}).ok());
  PublishAll(*store_, session_, theirs_, {chain[0], chain[1]});
  for (uint32_t seed = 10; seed < 20; ++seed) ASSERT_TRUE(PublishTheirs(seed).ok());
  EXPECT_EQ(MatchedCount(*store_, theirs_, KeysOf(chain)), 2u);
  EXPECT_EQ(Of("batch").host_used_bytes, 4u * 4096);
  // Pins of our own are not theirs.
  ASSERT_TRUE(store_->Pin({2}, ns_, KeysOf(ChainOf(ns_, 1, 20)), {}).ok());
}

TEST_F(SharesTest, OnDiskATenantLosesItsOwnAndAPublishNeverFailsForIt) {
  Open(WithDisk(32, 32, 1));
  SetQuota(32, 3);
  PublishOurs(100, 5);
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    ASSERT_TRUE(PublishTheirs(seed).ok());
    ASSERT_TRUE(Flush());
  }
  EXPECT_EQ(Of("batch").disk_used_bytes, 3u * 4096);
  EXPECT_EQ(Of("batch").host_used_bytes, 6u * 4096);
  EXPECT_EQ(Of("").disk_used_bytes, 5u * 4096);
  EXPECT_EQ(store_->tenants().List().size(), 2u);
  CheckSums();

  SetQuota(32, 0);
  store_->RunMaintenance();
  ASSERT_TRUE(PublishTheirs(7).ok());
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Of("batch").disk_used_bytes, 3u * 4096) << "not written";
  const absl::Status durable = Publish(*store_, session_, theirs_, TheirBlock(8), /*durable=*/true);
  EXPECT_TRUE(absl::IsUnavailable(durable)) << durable;
  EXPECT_NE(durable.message().find("disk_bytes_max of the tenant"), std::string::npos) << durable;
  EXPECT_TRUE(HasTheirs(8));
  CheckSums();
}

TEST_F(SharesTest, OnDemotionATenantNearItsQuotaIsWrittenBeforeItLosesBlocks) {
  BlockStoreOptions options = WithDisk(64, 64, 1);
  options.disk_write = DiskWriteMode::kOnDemotion;
  Open(options);
  SetQuota(8);
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    ASSERT_TRUE(PublishTheirs(seed).ok());
    ASSERT_TRUE(Flush());
  }
  for (uint32_t seed = 1; seed <= 30; ++seed) EXPECT_TRUE(HasTheirs(seed)) << seed;
  EXPECT_LE(Of("batch").host_used_bytes, 8u * 4096);
  CheckSums();
}

// failures 33: a disk that stands still refuses nobody, and does not keep all of a quota for what
// waits for it: each new block would push out the one before.
TEST_F(SharesTest, OnDemotionATenantKeepsItsNewestBlocksThoughTheDiskStandsStill) {
  const auto faults = std::make_shared<DiskFaults>();
  BlockStoreOptions options = WithDisk(64, 64, 1);
  options.disk_write = DiskWriteMode::kOnDemotion;
  options.wrap_extent_io = [faults](std::unique_ptr<ExtentIo> real) {
    return std::make_unique<FaultyExtentIo>(std::move(real), faults);
  };
  Open(options);
  WaitForRecovery();
  SetQuota(8);
  faults->writes_stall = true;
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    const absl::Status published = PublishTheirs(seed);
    EXPECT_TRUE(published.ok()) << seed << " " << published;
  }
  for (uint32_t seed = 28; seed <= 30; ++seed) EXPECT_TRUE(HasTheirs(seed)) << seed;
  EXPECT_LE(Of("batch").host_used_bytes, 8u * 4096);
  faults->writes_stall = false;
  ASSERT_TRUE(Flush());
  CheckSums();
}

TEST_F(SharesTest, ATenantAtItsQuotaPromotesAtItsOwnCost) {
  Open(WithDisk(32, 32, 1));
  SetQuota(2);
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    ASSERT_TRUE(PublishTheirs(seed).ok());
    ASSERT_TRUE(Flush());
  }
  PublishOurs(100, 3);
  ASSERT_TRUE(Flush());
  for (int i = 0; i < 3; ++i) {
    const auto ref = AcquireNow(*store_, theirs_, TheirBlock(1).key);
    ASSERT_TRUE(ref.ok()) << ref.status();
    EXPECT_TRUE(HasRightBytes(*ref, TheirBlock(1).key));
    // The first read of a block takes no other's room, the second does.
    EXPECT_EQ(ref->tier(), i < 2 ? "disk" : "host");
  }
  EXPECT_EQ(Of("batch").host_used_bytes, 2u * 4096);
  EXPECT_EQ(Of("").host_used_bytes, 3u * 4096);
  CheckSums();
}

TEST_F(SharesTest, ATenantAndWhatItUsesSurviveARestart) {
  Open(WithDisk(32, 32, 1));
  for (uint32_t seed = 1; seed <= 4; ++seed) ASSERT_TRUE(PublishTheirs(seed).ok());
  PublishOurs(100, 2);
  ASSERT_TRUE(Flush());
  Reopen();
  EXPECT_EQ(Of("batch").disk_used_bytes, 4u * 4096);
  EXPECT_EQ(Of("").disk_used_bytes, 2u * 4096);
  CheckSums();
  ASSERT_TRUE(store_->OpenNamespace(theirs_, layout_, "other").ok());
  SetQuota(1, 2);
  store_->RunMaintenance();
  for (uint32_t seed = 10; seed < 12; ++seed) {
    ASSERT_TRUE(PublishTheirs(seed).ok());
    ASSERT_TRUE(Flush()) << "a block that is being written cannot leave";
  }
  EXPECT_EQ(Of("batch").host_used_bytes, 4096u);
  EXPECT_EQ(Of("batch").disk_used_bytes, 2u * 4096) << "two left for each that was written";
  EXPECT_EQ(Of("other").host_used_bytes, 0u);
  CheckSums();
}

TEST_F(SharesTest, ANamespaceThatWasRecordedWithoutATenantIsOfTheFirstWhoOpensIt) {
  Open(WithDisk(32, 32, 1));
  for (uint32_t seed = 1; seed <= 3; ++seed) ASSERT_TRUE(PublishTheirs(seed).ok());
  ASSERT_TRUE(Flush());
  store_.reset();
  {
    auto directory = *DiskDirectory::Open(options_.disk_directory + "/directory", 4096);
    DiskDirectory::Change change;
    change.put_namespaces = *directory->Namespaces();
    for (DiskNamespace& ns : change.put_namespaces) ns.tenant.reset();
    ASSERT_TRUE(directory->Apply(change, /*is_synced=*/false).ok());
  }
  OpenStore(options_);
  WaitForRecovery();
  EXPECT_EQ(Of("").disk_used_bytes, 3u * 4096) << "nobody's counts for the unnamed tenant";
  ASSERT_TRUE(store_->OpenNamespace(theirs_, layout_, "late").ok());
  store_->RunMaintenance();
  EXPECT_EQ(Of("late").disk_used_bytes, 3u * 4096);
  CheckSums();
  Reopen();
  EXPECT_EQ(Of("late").disk_used_bytes, 3u * 4096) << "it is recorded";
}

TEST_F(SharesTest, InTheGpuTierATenantKeepsToItsQuota) {
  BlockStoreOptions options = HostOnly(32, 1);
  options.create_gpu_memory = [] {
    return CreateHostDeviceMemory(16 * 4096, GpuTier::kStreamsCount);
  };
  Open(options);
  SetQuota(32, 32, 2);
  const auto look_up = [&](const NamespaceId& ns, const BlockKey& key) {
    MatchOptions match;
    match.lease = true;
    const auto found = store_->Match(session_, ns, std::span(&key, 1), match);
    ASSERT_TRUE(found.ok()) << found.status();
    store_->ReleaseLeases(session_, std::span(&found->lease, 1));
    ASSERT_TRUE(Flush());
  };
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    ASSERT_TRUE(PublishTheirs(seed).ok());
    look_up(theirs_, TheirBlock(seed).key);
    PublishChain(ChainOf(ns_, seed, 1));
    look_up(ns_, ChainOf(ns_, seed, 1)[0].key);
  }
  EXPECT_EQ(Of("batch").gpu_used_bytes, 2u * 4096);
  EXPECT_EQ(Of("").gpu_used_bytes, 5u * 4096);
  CheckSums();
}

TEST_F(SharesTest, TheRateIsCheckedAtTheOfferAndTakenOnce) {
  Open(HostOnly(64, 1));
  TenantQuota quota;
  quota.publish_bytes_per_second_max = 2 * 4096;
  ASSERT_TRUE(store_->tenants().SetQuota("batch", quota).ok());
  const auto keys = KeysOf(ChainOf(theirs_, 5, 2));
  EXPECT_EQ(store_->Claim(session_, theirs_, keys)->wanted_count, 2u) << "an offer takes nothing";
  ASSERT_TRUE(PublishTheirs(1).ok());
  ASSERT_TRUE(PublishTheirs(2).ok());
  const auto more = KeysOf(ChainOf(theirs_, 6, 2));
  const auto claimed = store_->Claim(session_, theirs_, more);
  EXPECT_EQ(claimed->wanted_count, 0u);
  EXPECT_EQ(claimed->refusal, OfferState::kRejected);
  const std::vector<BlockKey> mixed = {TheirBlock(1).key, more[0], keys[0]};
  EXPECT_EQ(*store_->Offer(session_, theirs_, mixed),
            (std::vector{OfferState::kPresent, OfferState::kRejected, OfferState::kWanted}))
      << "what is there, and what was reserved before, is not refused";
  EXPECT_EQ(Of("batch").refused_blocks, 2u);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(store_->Claim(session_, theirs_, more)->wanted_count, 2u);
}

}  // namespace
}  // namespace ibid
