// Pins: what they keep, what they are refused, and that all of it ends.
#include "absl/strings/str_cat.h"
#include "tests/cache_server/store/store_harness.h"

namespace ibid {
namespace {

constexpr PinId kPin{0xA1};
constexpr PinId kOtherPin{0xA2};

class PinTest : public StoreFixture {
 protected:
  absl::StatusOr<PinResult> Pin(PinId id, const std::vector<ChainLink>& chain,
                                KeepPriority priority = KeepPriority::kMustStay,
                                absl::Duration duration = absl::InfiniteDuration()) {
    return store_->Pin(id, ns_, KeysOf(chain), {priority, duration});
  }
  // One block a chain, so that each is a leaf.
  void PublishOthers(uint32_t first_seed, uint32_t count) {
    for (uint32_t seed = first_seed; seed < first_seed + count; ++seed) {
      PublishChain(ChainOf(ns_, seed, 1));
    }
  }
};

TEST_F(PinTest, ABlockThatMustStayOutlivesAnyNumberOfOthersUntilItIsUnpinned) {
  OpenStore(HostOnly(8, 1));
  const auto chain = ChainOf(ns_, 1, 3);
  PublishChain({chain[0]});
  const auto pinned = Pin(kPin, chain);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_EQ(pinned->stored_blocks, 1u) << "the others are pinned when they come";
  EXPECT_FALSE(pinned->survives_restart) << "there is no disk tier";
  PublishChain({chain[1], chain[2]});
  PublishOthers(100, 20);
  EXPECT_EQ(Matched(chain), 3u);
  EXPECT_EQ(Host().kept_bytes, 3u * 4096);
  EXPECT_EQ(store_->stats().pins, 1u);

  ASSERT_TRUE(store_->Unpin(kPin).ok());
  EXPECT_EQ(Host().kept_bytes, 0u);
  EXPECT_EQ(store_->stats().pins, 0u);
  PublishOthers(200, 8);
  EXPECT_EQ(Matched(chain), 0u);
  EXPECT_TRUE(absl::IsNotFound(store_->Unpin(kPin)));
}

TEST_F(PinTest, APriorityLeavesOnlyWhenNothingLowerCan) {
  OpenStore(HostOnly(8, 1));
  const auto low = ChainOf(ns_, 1, 3);
  const auto high = ChainOf(ns_, 2, 3);
  const auto plain = ChainOf(ns_, 3, 2);
  const auto stays = ChainOf(ns_, 4, 4);
  ASSERT_TRUE(Pin(kPin, low, KeepPriority::kLow).ok());
  ASSERT_TRUE(Pin(kOtherPin, high, KeepPriority::kHigh).ok());
  ASSERT_TRUE(Pin({0xA3}, stays).ok());
  // The coldest first: by age alone they would leave in the order of their priority.
  PublishChain(high);
  PublishChain(low);
  PublishChain(plain);
  PublishChain({stays[0], stays[1]});
  EXPECT_EQ(Matched(plain), 0u);
  EXPECT_EQ(Matched(low), 3u);
  PublishChain({stays[2], stays[3]});
  EXPECT_EQ(Matched(low), 1u) << "its end first";
  EXPECT_EQ(Matched(high), 3u);
  PublishOthers(100, 5);
  EXPECT_EQ(Matched(low), 0u);
  EXPECT_EQ(Matched(high), 3u) << "those without a pin replace each other";

  // The one that could still leave is leased now.
  const auto held = store_->Match(session_, ns_, KeysOf(ChainOf(ns_, 104, 1)), {.lease = true});
  ASSERT_EQ(held->matched_count, 1u);
  PublishOthers(200, 1);
  EXPECT_EQ(Matched(high), 2u);
  EXPECT_EQ(Matched(stays), 4u);
}

TEST_F(PinTest, ATierFullOfWhatMustStayRefusesBlocksAndNamesItsLimit) {
  BlockStoreOptions options = HostOnly(4, 1);
  options.must_stay_percent_max = 100;
  OpenStore(options);
  const auto chain = ChainOf(ns_, 1, 4);
  ASSERT_TRUE(Pin(kPin, chain).ok());
  PublishChain(chain);
  const absl::Status refused = PublishOne(ChainOf(ns_, 2, 1)[0]);
  ASSERT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(LimitOf(refused)->name, "host_bytes_max");
  ASSERT_TRUE(store_->Unpin(kPin).ok());
  EXPECT_TRUE(PublishOne(ChainOf(ns_, 2, 1)[0]).ok());
}

TEST_F(PinTest, MoreThanTheirShareOfATierIsRefusedAndChangesNothing) {
  OpenStore(HostOnly(8, 1));
  ASSERT_TRUE(Pin(kPin, ChainOf(ns_, 1, 3)).ok());
  const auto refused = Pin(kOtherPin, ChainOf(ns_, 2, 2));
  ASSERT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_EQ(LimitOf(refused.status()), (Limit{"must_stay_percent_max", 50}));
  EXPECT_EQ(store_->stats().pins, 1u);
  EXPECT_TRUE(Pin(kOtherPin, ChainOf(ns_, 2, 1)).ok()) << "4 of 8 pages are half";
  EXPECT_TRUE(Pin({0xA3}, ChainOf(ns_, 1, 3)).ok()) << "the same blocks take no more room";
  EXPECT_TRUE(Pin({0xA4}, ChainOf(ns_, 3, 8), KeepPriority::kHigh).ok());
}

TEST_F(PinTest, TheNumbersOfPinsAndOfPinnedBlocksAreLimited) {
  BlockStoreOptions options = HostOnly(64, 1);
  options.pins_max = 2;
  options.pinned_blocks_max = 5;
  OpenStore(options);
  ASSERT_TRUE(Pin(kPin, ChainOf(ns_, 1, 3)).ok());
  EXPECT_EQ(LimitOf(Pin(kOtherPin, ChainOf(ns_, 2, 3)).status()), (Limit{"pinned_blocks_max", 5}));
  ASSERT_TRUE(Pin(kOtherPin, ChainOf(ns_, 2, 2)).ok());
  EXPECT_EQ(LimitOf(Pin({0xA3}, ChainOf(ns_, 2, 2)).status()), (Limit{"pins_max", 2}));
  EXPECT_TRUE(absl::IsInvalidArgument(Pin({0}, ChainOf(ns_, 2, 2)).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Pin(kPin, {}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Pin(kPin, ChainOf(ns_, 1, 1), KeepPriority::kNone).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      store_->Pin(kPin, NamespaceOf("closed"), KeysOf(ChainOf(ns_, 1, 1)), {}).status()));
}

TEST_F(PinTest, APinEndsWithItsTime) {
  OpenStore(HostOnly(8, 1));
  const auto chain = ChainOf(ns_, 1, 2);
  ASSERT_TRUE(Pin(kPin, chain, KeepPriority::kMustStay, absl::Minutes(10)).ok());
  PublishChain(chain);
  clock_.Advance(absl::Minutes(9));
  store_->RunMaintenance();
  session_ = *store_->OpenSession("later");
  PublishOthers(100, 20);
  EXPECT_EQ(Matched(chain), 2u);
  ASSERT_EQ(store_->Pins().size(), 1u);
  EXPECT_EQ(store_->Pins()[0].left, absl::Minutes(1));
  clock_.Advance(absl::Minutes(1));
  store_->RunMaintenance();
  EXPECT_EQ(Host().kept_bytes, 0u);
  EXPECT_TRUE(store_->Pins().empty());
  session_ = *store_->OpenSession("later");
  PublishOthers(200, 8);
  EXPECT_EQ(Matched(chain), 0u);
}

TEST_F(PinTest, OfTwoPinsTheHigherPriorityHoldsAndEachEndsByItself) {
  OpenStore(HostOnly(8, 1));
  const auto chain = ChainOf(ns_, 1, 2);
  PublishChain(chain);
  ASSERT_TRUE(Pin(kPin, chain).ok());
  ASSERT_TRUE(Pin(kOtherPin, {chain[0]}, KeepPriority::kLow).ok());
  ASSERT_TRUE(store_->Unpin(kPin).ok());
  EXPECT_EQ(Host().kept_bytes, 4096u);
  PublishOthers(100, 20);
  EXPECT_EQ(Matched(chain), 1u) << "the low pin holds against blocks without one";
  const std::vector<PinInfo> pins = store_->Pins();
  ASSERT_EQ(pins.size(), 1u);
  EXPECT_EQ(pins[0].id, kOtherPin);
  EXPECT_EQ(pins[0].ns, ns_);
  EXPECT_EQ(pins[0].priority, KeepPriority::kLow);
  EXPECT_EQ(pins[0].stored_blocks, 1u);
  ASSERT_TRUE(store_->Unpin(kOtherPin).ok());
  EXPECT_EQ(Host().kept_bytes, 0u);
}

TEST_F(PinTest, APinOfTheSameIdIsReplaced) {
  OpenStore(HostOnly(8, 1));
  const auto chain = ChainOf(ns_, 1, 4);
  PublishChain(chain);
  ASSERT_TRUE(Pin(kPin, chain).ok());
  ASSERT_TRUE(Pin(kPin, {chain[0], chain[1]}, KeepPriority::kHigh, absl::Hours(1)).ok());
  EXPECT_EQ(Host().kept_bytes, 2u * 4096);
  ASSERT_EQ(store_->Pins().size(), 1u);
  EXPECT_EQ(store_->Pins()[0].blocks, 2u);
  EXPECT_EQ(store_->Pins()[0].left, absl::Hours(1));
}

TEST_F(PinTest, ADropDropsAndThePinHoldsWhatComesAgain) {
  OpenStore(HostOnly(8, 1));
  const auto chain = ChainOf(ns_, 1, 2);
  PublishChain(chain);
  ASSERT_TRUE(Pin(kPin, chain).ok());
  EXPECT_EQ(store_->Drop(ns_, {}), 2u);
  EXPECT_EQ(Matched(chain), 0u);
  EXPECT_EQ(Host().kept_bytes, 0u);
  PublishChain(chain);
  PublishOthers(100, 20);
  EXPECT_EQ(Matched(chain), 2u);
}

// While a lease holds the old copy, the dropped block and the one that comes after it are two
// entries of one key.
TEST_F(PinTest, ADropOfALeasedBlockLeavesThePinToTheNextOfItsKey) {
  OpenStore(HostOnly(8, 1));
  const auto chain = ChainOf(ns_, 1, 2);
  PublishChain(chain);
  ASSERT_TRUE(Pin(kPin, chain).ok());
  const auto held = store_->Match(session_, ns_, KeysOf(chain), {.lease = true});
  ASSERT_EQ(held->matched_count, 2u);
  EXPECT_EQ(store_->Drop(ns_, KeysOf(chain)), 2u);
  EXPECT_EQ(Host().kept_bytes, 0u) << "what waits for its readers is kept no more";
  PublishChain(chain);
  EXPECT_EQ(Host().kept_bytes, 2u * 4096);
  const LeaseId lease = held->lease;
  store_->ReleaseLeases(session_, {&lease, 1});
  PublishOthers(100, 20);
  EXPECT_EQ(Matched(chain), 2u);
  ASSERT_TRUE(store_->Unpin(kPin).ok());
  EXPECT_EQ(Host().kept_bytes, 0u);
  PublishOthers(200, 8);
  EXPECT_EQ(Matched(chain), 0u);
}

TEST_F(PinTest, OnDiskTooABlockThatMustStayStays) {
  OpenStore(WithDisk(8, 16, 1));
  const auto chain = ChainOf(ns_, 1, 3);
  ASSERT_TRUE(Pin(kPin, chain)->survives_restart);
  PublishChain(chain);
  PublishOthers(100, 40);
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Matched(chain), 3u);
  EXPECT_EQ(Host().kept_bytes, 3u * 4096);
  EXPECT_EQ(Disk().kept_bytes, 3u * 4096);
}

TEST_F(PinTest, APinSurvivesARestartAndKeepsWhatIsFound) {
  OpenStore(WithDisk(8, 16, 1));
  const auto chain = ChainOf(ns_, 1, 3);
  ASSERT_TRUE(Pin(kPin, chain, KeepPriority::kMustStay, absl::Hours(1)).ok());
  ASSERT_TRUE(Pin(kOtherPin, ChainOf(ns_, 2, 2), KeepPriority::kLow).ok());
  PublishChain({chain[0], chain[1]});
  ASSERT_TRUE(Flush());
  Reopen();
  const std::vector<PinInfo> pins = store_->Pins();
  ASSERT_EQ(pins.size(), 2u);
  EXPECT_EQ(pins[0].id, kPin);
  EXPECT_EQ(pins[0].priority, KeepPriority::kMustStay);
  EXPECT_EQ(pins[0].disk_blocks, 2u);
  EXPECT_GT(pins[0].left, absl::Minutes(59));
  EXPECT_LE(pins[0].left, absl::Hours(1));
  EXPECT_EQ(pins[1].left, absl::InfiniteDuration());
  PublishOthers(100, 40);
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Matched(chain), 2u);
  clock_.Advance(absl::Hours(1));
  store_->RunMaintenance();
  EXPECT_EQ(Disk().kept_bytes, 0u);
  Reopen();
  ASSERT_EQ(store_->Pins().size(), 1u) << "the one that ended has no record any more";
  ASSERT_TRUE(store_->Unpin(kOtherPin).ok());
  Reopen();
  EXPECT_TRUE(store_->Pins().empty());
}

TEST_F(PinTest, APinThatEndedWhileTheServerWasDownIsGone) {
  OpenStore(WithDisk(8, 16, 1));
  ASSERT_TRUE(Pin(kPin, ChainOf(ns_, 1, 1), KeepPriority::kLow, absl::Microseconds(1)).ok());
  Reopen();
  EXPECT_TRUE(store_->Pins().empty());
}

}  // namespace
}  // namespace ibid
