// What watchers are told, against what the store holds. 42: removals were not told, and pictures
// never recovered.
#include "cache_server/block_watch.h"

#include <set>
#include <thread>

#include "cache_server/event_log.h"
#include "tests/cache_server/store/watch_picture.h"

namespace ibid {
namespace {

using BlockWatchTest = StoreFixture;
using enum BlockChange;

TEST_F(BlockWatchTest, TellsOfEachPublishedBlockWithItsPlaceInTheChain) {
  OpenStore(HostOnly(64, 16));
  const auto chain = ChainOf(ns_, 1, 3);
  const auto watch = WatchOf(*store_);
  PublishChain(chain);
  Picture picture;
  ASSERT_TRUE(picture.Follow(*watch));
  EXPECT_EQ(picture.notices,
            (std::vector<WatchNotice>{WatchNotice::kSnapshotBegin, WatchNotice::kSnapshotEnd}));
  std::set<BlockKey> stored;
  for (const BlockEvent& event : picture.events) {
    if (event.change != kStored) continue;
    const ChainLink& link = chain.at(event.position);
    EXPECT_EQ(event.key, link.key);
    EXPECT_EQ(event.parent, link.parent);
    EXPECT_EQ(event.token_count, link.token_count);
    EXPECT_EQ(event.ns, ns_);
    EXPECT_EQ(event.tier, TierName::kHost);
    stored.insert(event.key);
  }
  EXPECT_EQ(stored.size(), 3u);
  ExpectDense(picture);
}

TEST_F(BlockWatchTest, SnapshotTellsWhatWasStoredBeforeWithParents) {
  OpenStore(HostOnly(64, 16));
  const auto chain = ChainOf(ns_, 1, 5);
  PublishChain(chain);
  Picture picture;
  const auto watch = WatchOf(*store_);
  ASSERT_TRUE(picture.Follow(*watch));
  ASSERT_EQ(picture.events.size(), 5u);
  for (const BlockEvent& event : picture.events) {
    EXPECT_EQ(event.change, kHeld);
    EXPECT_EQ(event.sequence, 0u);
    EXPECT_EQ(event.key, chain.at(event.position).key);
    EXPECT_EQ(event.parent, chain.at(event.position).parent);
    EXPECT_EQ(event.token_count, 16u);
  }
  EXPECT_EQ(picture.blocks.size(), 5u);
}

TEST_F(BlockWatchTest, WithoutSnapshotTellsOnlyWhatFollows) {
  OpenStore(HostOnly(64, 16));
  PublishChain(ChainOf(ns_, 1, 2));
  const auto watch = WatchOf(*store_, {.has_snapshot = false});
  const auto chain = ChainOf(ns_, 2, 1);
  PublishChain(chain);
  Picture picture;
  ASSERT_TRUE(picture.Follow(*watch));
  EXPECT_EQ(picture.notices, std::vector<WatchNotice>{WatchNotice::kStarted});
  ASSERT_EQ(picture.events.size(), 1u);
  EXPECT_EQ(picture.events[0].key, chain[0].key);
}

// Each copy counts: a block is demoted while another copy is left, and removed with the last one.
TEST_F(BlockWatchTest, RemovedMeansThatNoCopyIsLeft) {
  OpenStore(WithDisk(4, 64, 4));
  const auto chain = ChainOf(ns_, 1, 1);
  const auto watch = WatchOf(*store_);
  Picture picture;
  ASSERT_TRUE(picture.Follow(*watch));
  PublishChain(chain, /*durable=*/true);
  PublishChain(ChainOf(ns_, 2, 4), /*durable=*/true);  // the host tier has room for four
  ASSERT_TRUE(Flush());
  ASSERT_TRUE(picture.Follow(*watch));
  EXPECT_EQ(ChangesOf(picture, chain[0].key),
            (std::vector<BlockChange>{kStored, kStored, kDemoted}));
  TierSet only_disk;
  only_disk.Add(TierName::kDisk);
  EXPECT_EQ((picture.blocks[{ns_, chain[0].key}]), only_disk);

  store_->Drop(ns_, KeysOf(chain));
  ASSERT_TRUE(picture.Follow(*watch));
  EXPECT_EQ(ChangesOf(picture, chain[0].key).back(), kRemoved);
  EXPECT_EQ(picture.blocks.count({ns_, chain[0].key}), 0u);
  ExpectDense(picture);
}

TEST_F(BlockWatchTest, TellsOfAPromotionFromDisk) {
  OpenStore(WithDisk(4, 64, 4));
  const auto chain = ChainOf(ns_, 1, 4);
  PublishChain(chain, /*durable=*/true);
  PublishChain(ChainOf(ns_, 2, 4), /*durable=*/true);
  ASSERT_TRUE(Flush());
  const auto watch = WatchOf(*store_, {.has_snapshot = false});
  ASSERT_TRUE(AcquireOne(chain[0].key).ok());
  ASSERT_TRUE(AcquireOne(chain[0].key).ok());  // the second read makes room for it
  Picture picture;
  ASSERT_TRUE(picture.Follow(*watch));
  EXPECT_EQ(ChangesOf(picture, chain[0].key), std::vector<BlockChange>{kPromoted});
}

TEST_F(BlockWatchTest, ABlockThatIsHeldIsToldAsRemovedWhenItIsDropped) {
  OpenStore(HostOnly(64, 16));
  const auto chain = ChainOf(ns_, 1, 1);
  PublishChain(chain);
  auto ref = AcquireOne(chain[0].key);
  ASSERT_TRUE(ref.ok());
  const auto watch = WatchOf(*store_, {.has_snapshot = false});
  store_->Drop(ns_, KeysOf(chain));
  ref = absl::NotFoundError("");  // the last user goes: nothing more is told
  Picture picture;
  ASSERT_TRUE(picture.Follow(*watch));
  EXPECT_EQ(ChangesOf(picture, chain[0].key), std::vector<BlockChange>{kRemoved});
}

TEST_F(BlockWatchTest, AFilterPassesItsNamespacesOnlyAndStillGoesOn) {
  OpenStore(HostOnly(64, 16));
  const NamespaceId other = NamespaceOf("other");
  ASSERT_TRUE(store_->OpenNamespace(other, layout_).ok());
  PublishAll(*store_, session_, other, ChainOf(other, 1, 2));
  const auto watch = WatchOf(*store_, {.namespaces = {ns_}});
  PublishAll(*store_, session_, other, ChainOf(other, 2, 2));
  const auto chain = ChainOf(ns_, 1, 1);
  PublishChain(chain);
  PublishAll(*store_, session_, other, ChainOf(other, 3, 2));
  Picture picture;
  ASSERT_TRUE(picture.Follow(*watch));
  EXPECT_EQ(picture.blocks.size(), 1u);
  EXPECT_EQ(picture.events.back().key, chain[0].key);
  EXPECT_EQ(picture.sequence, store_->WaitForEvents(0, absl::ZeroDuration()));
}

TEST_F(BlockWatchTest, ABlockOfANamespaceOpenedLaterIsTold) {
  OpenStore(HostOnly(64, 16));
  const auto watch = WatchOf(*store_);
  Picture picture;
  ASSERT_TRUE(picture.Follow(*watch));
  const NamespaceId other = NamespaceOf("later");
  ASSERT_TRUE(store_->OpenNamespace(other, layout_).ok());
  PublishAll(*store_, session_, other, ChainOf(other, 1, 1));
  ASSERT_TRUE(picture.Follow(*watch));
  ASSERT_EQ(picture.events.size(), 1u);
  EXPECT_EQ(picture.events[0].ns, other);
}

// A namespace that lost all its blocks may be closed before its watchers have read so.
TEST_F(BlockWatchTest, RemovalsOfAClosedNamespaceAreTold) {
  BlockStoreOptions options = HostOnly(64, 16);
  options.namespaces_max = 1;
  OpenStore(options);
  const auto chain = ChainOf(ns_, 1, 2);
  PublishChain(chain);
  const auto watch = WatchOf(*store_);
  Picture picture;
  ASSERT_TRUE(picture.Follow(*watch));
  EXPECT_EQ(picture.blocks.size(), 2u);
  store_->Drop(ns_, {});
  ASSERT_TRUE(store_->OpenNamespace(NamespaceOf("next"), layout_).ok());
  ASSERT_TRUE(picture.Follow(*watch));
  EXPECT_TRUE(picture.blocks.empty());
}

TEST_F(BlockWatchTest, ResumesWithoutASnapshotWhileTheLogHasWhatWasMissed) {
  OpenStore(HostOnly(64, 16));
  Picture picture;
  auto watch = WatchOf(*store_);
  PublishChain(ChainOf(ns_, 1, 2));
  ASSERT_TRUE(picture.Follow(*watch));
  watch.reset();
  PublishChain(ChainOf(ns_, 2, 2));
  store_->RunMaintenance();
  const WatchOptions resume{.resume_epoch = store_->incarnation(),
                            .resume_sequence = picture.sequence};
  watch = WatchOf(*store_, resume);
  ASSERT_TRUE(picture.Follow(*watch));
  EXPECT_EQ(picture.notices.back(), WatchNotice::kResumed);
  EXPECT_FALSE(picture.is_gap);
  EXPECT_EQ(picture.blocks.size(), 4u);
  ExpectDense(picture);
}

TEST_F(BlockWatchTest, TellsOfAGapWhenTheLogHasGoneOn) {
  BlockStoreOptions options = HostOnly(64, 16);
  options.event_log_max = 8;
  OpenStore(options);
  Picture picture;
  auto watch = WatchOf(*store_);
  ASSERT_TRUE(picture.Follow(*watch));
  watch.reset();
  PublishChain(ChainOf(ns_, 1, 9));
  watch = WatchOf(*store_,
                  {.resume_epoch = store_->incarnation(), .resume_sequence = picture.sequence});
  ASSERT_TRUE(picture.Follow(*watch));
  EXPECT_TRUE(picture.is_gap);
  EXPECT_EQ(picture.notices.back(), WatchNotice::kSnapshotEnd);
  EXPECT_EQ(picture.blocks.size(), 9u);
}

// After a pause in which nothing was recorded nobody goes on as if nothing had happened.
TEST_F(BlockWatchTest, TellsOfAGapWhenNothingWasRecordedMeanwhile) {
  BlockStoreOptions options = HostOnly(64, 16);
  options.event_log_max = 4;
  OpenStore(options);
  Picture picture;
  auto watch = WatchOf(*store_);
  PublishChain(ChainOf(ns_, 1, 2));
  ASSERT_TRUE(picture.Follow(*watch));
  watch.reset();
  PublishChain(ChainOf(ns_, 2, 4));
  store_->RunMaintenance();  // ends recording
  PublishChain(ChainOf(ns_, 3, 1));
  const uint64_t last = store_->WaitForEvents(0, absl::ZeroDuration());
  const WatchOptions resume{.resume_epoch = store_->incarnation(), .resume_sequence = last};
  watch = WatchOf(*store_, resume);
  ASSERT_TRUE(picture.Follow(*watch));
  EXPECT_TRUE(picture.is_gap);
  EXPECT_EQ(picture.blocks.size(), 7u);
}

TEST_F(BlockWatchTest, AnotherEpochIsAGap) {
  OpenStore(HostOnly(64, 16));
  Picture picture;
  const auto watch =
      WatchOf(*store_, {.resume_epoch = store_->incarnation() ^ 1, .resume_sequence = 0});
  ASSERT_TRUE(picture.Follow(*watch));
  EXPECT_TRUE(picture.is_gap);
  EXPECT_EQ(picture.notices.front(), WatchNotice::kSnapshotBegin);
}

TEST_F(BlockWatchTest, ANumberThatWasNeverGivenIsAGap) {
  OpenStore(HostOnly(64, 16));
  Picture picture;
  const auto first = WatchOf(*store_);
  const auto watch =
      WatchOf(*store_, {.resume_epoch = store_->incarnation(), .resume_sequence = 1'000});
  ASSERT_TRUE(picture.Follow(*watch));
  EXPECT_TRUE(picture.is_gap);
  EXPECT_EQ(picture.notices.back(), WatchNotice::kSnapshotEnd);
}

TEST_F(BlockWatchTest, AWatcherThatDoesNotReadIsCutOff) {
  BlockStoreOptions options = HostOnly(64, 16);
  options.event_log_max = 8;
  OpenStore(options);
  Picture picture;
  const auto slow = WatchOf(*store_, {.has_snapshot = false});
  const auto quick = WatchOf(*store_, {.has_snapshot = false});
  for (uint32_t seed = 1; seed <= 9; ++seed) {
    EXPECT_FALSE(slow->is_too_late());
    PublishChain(ChainOf(ns_, seed, 1));
    ASSERT_TRUE(picture.Follow(*quick));
  }
  EXPECT_TRUE(slow->is_too_late());
  WatchPiece piece = slow->Next();
  EXPECT_EQ(piece.notice, WatchNotice::kStarted);
  piece = slow->Next();
  EXPECT_EQ(piece.notice, WatchNotice::kCutOff);
  EXPECT_TRUE(piece.events.empty());
  EXPECT_TRUE(slow->Next().is_empty());
  EXPECT_EQ(picture.blocks.size(), 9u);
}

TEST_F(BlockWatchTest, WatchersHaveALimit) {
  BlockStoreOptions options = HostOnly(64, 16);
  options.watchers_max = 2;
  OpenStore(options);
  const auto first = WatchOf(*store_);
  auto second = WatchOf(*store_);
  const auto third = store_->Watch({});
  EXPECT_TRUE(absl::IsResourceExhausted(third.status()));
  EXPECT_EQ(LimitOf(third.status())->name, "watchers_max");
  second.reset();
  EXPECT_TRUE(store_->Watch({}).ok());
}

TEST_F(BlockWatchTest, BlocksFoundOnDiskAfterAStartAreStoredOrHeldThere) {
  OpenStore(WithDisk(64, 64, 16));
  const auto chain = ChainOf(ns_, 1, 5);
  PublishChain(chain, /*durable=*/true);
  ASSERT_TRUE(Flush());
  const uint64_t before = store_->incarnation();
  store_.reset();
  OpenStore(options_);
  const auto watch = WatchOf(*store_, {.resume_epoch = before, .resume_sequence = 1});
  WaitForRecovery();
  Picture picture;
  ASSERT_TRUE(picture.Follow(*watch));
  EXPECT_TRUE(picture.is_gap);
  EXPECT_EQ(picture.CountIn(TierName::kDisk), 5u);
  EXPECT_EQ(picture.CountIn(TierName::kHost), 0u);
  for (const BlockEvent& event : picture.events) {
    EXPECT_EQ(event.key, chain.at(event.position).key);
    EXPECT_EQ(event.parent, chain.at(event.position).parent);
  }
}

TEST_F(BlockWatchTest, WaitsForTheNextEvent) {
  OpenStore(HostOnly(64, 16));
  const auto watch = WatchOf(*store_);
  const uint64_t last = store_->WaitForEvents(0, absl::ZeroDuration());
  std::thread publisher([this] { PublishChain(ChainOf(ns_, 1, 1)); });
  EXPECT_GT(store_->WaitForEvents(last, absl::Seconds(60)), last);
  publisher.join();
}

TEST_F(BlockWatchTest, CountsEventsWatchersAndCutOffs) {
  MetricsRegistry metrics;
  BlockStoreOptions options = HostOnly(64, 16);
  options.event_log_max = 2;
  options.metrics = &metrics;
  OpenStore(options);
  PublishChain(ChainOf(ns_, 1, 2));  // nobody watches
  auto watch = WatchOf(*store_, {.has_snapshot = false});
  PublishChain(ChainOf(ns_, 2, 3));
  while (watch->Next().notice != WatchNotice::kCutOff) {
  }
  const std::string text = SerializeMetrics(metrics);
  EXPECT_NE(text.find("ibid_store_events_total{change=\"stored\"} 3"), std::string::npos) << text;
  EXPECT_NE(text.find("ibid_store_watchers_cut_off_total 1"), std::string::npos) << text;
  EXPECT_NE(text.find("ibid_store_watchers 1"), std::string::npos) << text;
  watch.reset();
  store_.reset();  // before its metrics
}

// A snapshot of many blocks goes in pieces, and a log that is short beside it is no hindrance.
TEST_F(BlockWatchTest, ALargeSnapshotGoesInPieces) {
  BlockStoreOptions options = HostOnly(4096, 64);
  options.event_log_max = 16;
  OpenStore(options);
  PublishChain(ChainOf(ns_, 1, 3'000));
  const auto watch = WatchOf(*store_);
  Picture picture;
  size_t largest = 0;
  uint32_t seed = 100;
  while (picture.notices.empty() || picture.notices.back() != WatchNotice::kSnapshotEnd) {
    const WatchPiece piece = watch->Next();
    ASSERT_NE(piece.notice, WatchNotice::kCutOff);
    largest = std::max(largest, piece.events.size());
    picture.Take(piece);
    if (seed < 110) PublishChain(ChainOf(ns_, seed++, 1));
  }
  EXPECT_LT(largest, 1'000u);
  ASSERT_TRUE(picture.Follow(*watch));
  EXPECT_EQ(picture.blocks.size(), 3'010u);
}

}  // namespace
}  // namespace ibid
