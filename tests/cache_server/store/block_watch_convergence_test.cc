// Watchers of a store that many threads change, and of a store with a gpu tier.
#include <atomic>
#include <random>
#include <thread>

#include "tests/cache_server/store/faulty_device_memory.h"
#include "tests/cache_server/store/watch_picture.h"

namespace ibid {
namespace {

using enum BlockChange;

// Many threads change a small store while watchers come, read, stall and resume. In the end, what
// each was told is what the store has: by its own counts, by a fresh snapshot, and block by block.
class Convergence {
 public:
  explicit Convergence(BlockStoreOptions options) : store_(*BlockStore::Open(std::move(options))) {
    for (const uint32_t pages : {1u, 3u}) {
      const NamespaceId ns = NamespaceOf("pages " + std::to_string(pages));
      EXPECT_TRUE(store_->OpenNamespace(ns, LayoutOfPages(pages)).ok());
      for (uint32_t seed = 1; seed <= 8; ++seed)
        chains_.push_back({ns, ChainOf(ns, seed, 8, seed % 2 * 3)});
    }
  }

  void Run() {
    // One watches from an empty store; the others begin while everything changes.
    Picture first, late, broken;
    auto first_watch = WatchOf(*store_);
    EXPECT_TRUE(first.Follow(*first_watch));
    EXPECT_EQ(first.notices.back(), WatchNotice::kSnapshotEnd);
    std::vector<std::thread> writers, watchers;
    for (uint32_t i = 0; i < 4; ++i) writers.emplace_back([this, i] { Work(i); });
    watchers.emplace_back([&] { FollowUntilDone(&first, &first_watch, 1); });
    watchers.emplace_back([&] {
      auto watch = WatchOf(*store_);
      FollowUntilDone(&late, &watch, 1);
    });
    watchers.emplace_back([&] {
      auto watch = WatchOf(*store_);
      FollowUntilDone(&broken, &watch, 40);
    });
    for (std::thread& thread : writers) thread.join();
    EXPECT_TRUE(store_->FlushToDisk(absl::Seconds(60)));
    is_done_ = true;
    for (std::thread& thread : watchers) thread.join();

    Picture now;
    const auto watch = WatchOf(*store_);
    EXPECT_TRUE(now.Follow(*watch));
    EXPECT_EQ(first.blocks, now.blocks);
    EXPECT_EQ(late.blocks, now.blocks);
    EXPECT_EQ(broken.blocks, now.blocks);
    ExpectDense(first);
    ExpectEachFollowsFromTheLast(first);
    const BlockStoreStats stats = store_->stats();
    EXPECT_EQ(now.CountIn(TierName::kHost), TierOf(stats, "host").blocks);
    EXPECT_EQ(now.CountIn(TierName::kDisk), TierOf(stats, "disk").blocks);
    EXPECT_EQ(now.CountIn(TierName::kGpu), TierOf(stats, "gpu").blocks);
    EXPECT_GT(now.blocks.size(), 0u);
    for (const Chain& chain : chains_) {
      for (const ChainLink& link : chain.links) {
        const auto match = store_->Match({}, chain.ns, {&link.key, 1}, {});
        const auto known = now.blocks.find({chain.ns, link.key});
        ASSERT_TRUE(match.ok());
        EXPECT_EQ(match->matched_count, known == now.blocks.end() ? 0u : 1u);
        const TierSet tiers = known == now.blocks.end() ? TierSet{} : known->second;
        EXPECT_EQ(match->gpu_blocks == 1, tiers.Has(TierName::kGpu));
        EXPECT_EQ(match->host_blocks == 1,
                  tiers.Has(TierName::kHost) && !tiers.Has(TierName::kGpu));
      }
    }
  }

 private:
  struct Chain {
    NamespaceId ns;
    std::vector<ChainLink> links;
  };

  // Each `pieces` pieces the watch is given up and resumed; 1: never.
  void FollowUntilDone(Picture* picture, std::unique_ptr<BlockWatch>* watch, int pieces) {
    bool is_exact = !picture->notices.empty();  // it was followed up to its snapshot's end
    for (int i = 1;; ++i) {
      const bool was_done = is_done_;
      const WatchPiece piece = (*watch)->Next();
      picture->Take(piece);
      is_exact |= piece.notice == WatchNotice::kSnapshotEnd;
      ASSERT_NE(piece.notice, WatchNotice::kCutOff);
      if (was_done && piece.is_waiting && is_exact) return;
      if (pieces > 1 && i % pieces == 0 && is_exact) {
        watch->reset();
        *watch = WatchOf(
            *store_, {.resume_epoch = store_->incarnation(), .resume_sequence = picture->sequence});
      } else if (piece.is_waiting) {
        store_->WaitForEvents(piece.sequence, absl::Milliseconds(5));
      }
    }
  }

  void Work(uint32_t number) {
    std::mt19937 random(number + 1);
    SessionId session = *store_->OpenSession("watched");
    for (int step = 0; step < 300; ++step) {
      const Chain& chain = chains_[random() % chains_.size()];
      const std::vector<BlockKey> keys = KeysOf(chain.links);
      switch (random() % 8) {
        case 0:
        case 1:
        case 2:
        case 3:
          for (const ChainLink& link : chain.links)
            (void)Publish(*store_, session, chain.ns, link, random() % 32 == 0);
          break;
        case 4: {
          // What is asked for is copied up, where there is a gpu tier.
          const auto match = store_->Match(session, chain.ns, keys, {.lease = true});
          if (match.ok()) store_->ReleaseLeases(session, {&match->lease, 1});
          break;
        }
        case 5:
          (void)AcquireNow(*store_, chain.ns, keys[random() % keys.size()]);
          break;
        case 6:
          store_->Drop(chain.ns, {&keys[random() % keys.size()], 1});
          break;
        default:
          if (random() % 16 == 0) store_->Drop(chain.ns, {});
          store_->RunMaintenance();
      }
    }
    store_->EndSession(session);
  }

  std::unique_ptr<BlockStore> store_;
  std::vector<Chain> chains_;
  std::atomic<bool> is_done_{false};
};

TEST(BlockWatchConvergence, OnASmallHostTier) {
  BlockStoreOptions options;
  options.host_bytes_max = 96 * 4096;
  options.extent_bytes = 16 * 4096;
  Convergence(options).Run();
}

TEST(BlockWatchConvergence, OnTwoSmallTiers) {
  for (const DiskWriteMode mode : {DiskWriteMode::kThrough, DiskWriteMode::kOnDemotion}) {
    TempDir temp;
    BlockStoreOptions options;
    options.host_bytes_max = 64 * 4096;
    options.extent_bytes = 16 * 4096;
    options.disk_directory = temp.path() + "/tier";
    options.disk_bytes_max = 192 * 4096 + options.disk_directory_bytes_reserve;
    options.disk_write = mode;
    Convergence(options).Run();
  }
}

TEST(BlockWatchConvergence, OnThreeSmallTiers) {
  TempDir temp;
  BlockStoreOptions options;
  options.host_bytes_max = 64 * 4096;
  options.extent_bytes = 16 * 4096;
  options.disk_directory = temp.path() + "/tier";
  options.disk_bytes_max = 192 * 4096 + options.disk_directory_bytes_reserve;
  options.disk_write = DiskWriteMode::kOnSecondUse;
  options.create_gpu_memory = [] {
    return CreateHostDeviceMemory(32 * 4096, GpuTier::kStreamsCount);
  };
  Convergence(options).Run();
}

class GpuWatchTest : public GpuTest {
 protected:
  static TierSet Tiers(std::initializer_list<TierName> tiers) {
    TierSet set;
    for (const TierName tier : tiers) set.Add(tier);
    return set;
  }
};

// 42: "removed" means that no copy is left in any tier.
TEST_F(GpuWatchTest, EachCopyInEachTierCounts) {
  BlockStoreOptions options = WithGpu(HostOnly(8, 8), 4);
  options.eviction_policy = "lru";
  OpenStore(options);
  const auto watch = WatchOf(*store_, {.has_snapshot = false});
  Picture picture;
  const auto chain = ChainOf(ns_, 1, 4);
  const BlockKey& key = chain[0].key;
  const auto now = [&]() -> TierSet {
    EXPECT_TRUE(picture.Follow(*watch));
    const auto known = picture.blocks.find({ns_, key});
    return known == picture.blocks.end() ? TierSet{} : known->second;
  };
  PublishChain(chain);
  EXPECT_EQ(now(), Tiers({TierName::kHost}));
  Ask(chain);
  EXPECT_EQ(now(), Tiers({TierName::kGpu, TierName::kHost}));
  PublishChain(ChainOf(ns_, 2, 8));  // the host copies leave
  EXPECT_EQ(now(), Tiers({TierName::kGpu}));
  Ask(ChainOf(ns_, 2, 4));  // and now the gpu copies, but for their last one
  EXPECT_EQ(now(), Tiers({TierName::kHost}));
  EXPECT_EQ(ChangesOf(picture, key),
            (std::vector<BlockChange>{kStored, kPromoted, kDemoted, kStored, kDemoted}));
  PublishChain(ChainOf(ns_, 3, 8));
  EXPECT_EQ(now(), TierSet{});
  EXPECT_EQ(ChangesOf(picture, key).back(), kRemoved);
  ExpectDense(picture);
  ExpectEachFollowsFromTheLast(picture);
}

TEST_F(GpuWatchTest, ADropTellsOnceOfABlockWithThreeCopies) {
  OpenStore(WithGpu(WithDisk(16, 64, 8), 8));
  const auto watch = WatchOf(*store_, {.has_snapshot = false});
  const auto chain = ChainOf(ns_, 1, 1);
  PublishChain(chain, /*durable=*/true);
  Ask(chain);
  Picture picture;
  ASSERT_TRUE(picture.Follow(*watch));
  EXPECT_EQ((picture.blocks[{ns_, chain[0].key}]),
            Tiers({TierName::kGpu, TierName::kHost, TierName::kDisk}));
  store_->Drop(ns_, KeysOf(chain));
  ASSERT_TRUE(Flush());
  ASSERT_TRUE(picture.Follow(*watch));
  EXPECT_EQ(ChangesOf(picture, chain[0].key),
            (std::vector<BlockChange>{kStored, kStored, kPromoted, kRemoved}));
}

// The device loses the last copy: that is a removal like any other.
TEST_F(GpuWatchTest, ALastCopyThatTheDeviceLosesIsToldAsRemoved) {
  OpenStore(WithGpu(HostOnly(4, 4), 4));
  const auto watch = WatchOf(*store_, {.has_snapshot = false});
  const auto chain = ChainOf(ns_, 1, 1);
  PublishChain(chain);
  Ask(chain);
  PublishChain(ChainOf(ns_, 2, 4));
  Picture picture;
  ASSERT_TRUE(picture.Follow(*watch));
  ASSERT_EQ((picture.blocks[{ns_, chain[0].key}]), Tiers({TierName::kGpu}));
  faults_.reads_fail = true;
  EXPECT_FALSE(AcquireOne(chain[0].key).ok());
  ASSERT_TRUE(picture.Follow(*watch));
  EXPECT_EQ(ChangesOf(picture, chain[0].key).back(), kRemoved);
  EXPECT_EQ(picture.CountIn(TierName::kGpu), 0u);
}

}  // namespace
}  // namespace ibid
