// Sessions, leases and what ends with them.
#include <atomic>
#include <thread>

#include "core/limit.h"
#include "tests/cache_server/store/store_harness.h"

namespace ibid {
namespace {

class LeaseTest : public StoreFixture {
 protected:
  void SetUp() override { OpenStore(HostOnly(8, 8)); }

  LeaseId Lease(const std::vector<ChainLink>& chain) {
    const auto match = store_->Match(session_, ns_, KeysOf(chain), {.lease = true});
    EXPECT_TRUE(match.ok()) << match.status();
    return match.ok() ? match->lease : LeaseId{};
  }
  // Lets `by` pass with the session kept alive.
  void PassAlive(absl::Duration by, bool renew) {
    for (; by > absl::ZeroDuration(); by -= absl::Seconds(10)) {
      clock_.Advance(std::min(by, absl::Seconds(10)));
      ASSERT_TRUE(store_->KeepAlive(session_, renew).ok());
      store_->RunMaintenance();
    }
  }
  uint64_t Pinned() { return store_->stats().pinned_bytes; }
};

TEST_F(LeaseTest, ALeasedPrefixSurvivesAnyPressure) {
  const auto kept = ChainOf(ns_, 1, 4);
  PublishChain(kept);
  ASSERT_NE(Lease(kept).value, 0u);
  for (uint32_t seed = 2; seed < 20; ++seed) PublishChain(ChainOf(ns_, seed, 4));
  EXPECT_EQ(Matched(kept), 4u);
  for (const ChainLink& link : kept) EXPECT_TRUE(HasRightBytes(*AcquireOne(link.key), link.key));
}

// A reader that never lets go, and renews for ever.
TEST_F(LeaseTest, OneSessionLeasesNoMoreThanItsShareAndOthersPublishAndRead) {
  BlockStoreOptions options = HostOnly(64, 8);
  options.leased_percent_per_session_max = 50;
  OpenStore(options);
  const SessionId greedy = *store_->OpenSession("greedy");
  absl::Status refusal;
  for (uint32_t seed = 0; seed < 30 && refusal.ok(); ++seed) {
    const auto chain = ChainOf(ns_, seed, 4);
    PublishChain(chain);
    refusal = store_->Match(greedy, ns_, KeysOf(chain), {.lease = true}).status();
  }
  EXPECT_EQ(refusal, LimitReached("too much of the host tier is leased by one session",
                                  "leased_percent_per_session_max", 50));
  EXPECT_EQ(Pinned(), 32 * 4096u) << "what was refused is not held";
  EXPECT_TRUE(store_->Match(greedy, ns_, KeysOf(ChainOf(ns_, 0, 4)), {.lease = true}).ok())
      << "what is held already costs nothing";
  for (uint32_t seed = 100; seed < 130; ++seed) {
    ASSERT_TRUE(store_->KeepAlive(greedy, /*renew_leases=*/true).ok());
    const auto chain = ChainOf(ns_, seed, 4);
    PublishChain(chain);
    const LeaseId lease = Lease(chain);
    ASSERT_NE(lease.value, 0u);
    EXPECT_EQ(Matched(chain), 4u);
    store_->ReleaseLeases(session_, std::vector<LeaseId>{lease});
    clock_.Advance(absl::Seconds(5));
  }
  EXPECT_EQ(Pinned(), 32 * 4096u);
}

TEST_F(LeaseTest, AMatchIsCutWhereTheShareOfItsSessionEnds) {
  BlockStoreOptions options = HostOnly(64, 8);
  options.leased_percent_per_session_max = 50;
  OpenStore(options);
  const auto first = ChainOf(ns_, 1, 20, /*shared=*/4), second = ChainOf(ns_, 2, 20, /*shared=*/4);
  PublishChain(first);
  PublishChain({second.begin() + 4, second.end()});
  const auto match = [&](const std::vector<ChainLink>& chain) {
    return store_->Match(session_, ns_, KeysOf(chain), {.lease = true});
  };
  const auto whole = match(first), cut = match(second);
  ASSERT_TRUE(whole.ok() && cut.ok()) << whole.status() << cut.status();
  EXPECT_EQ(whole->matched_count, 20u);
  EXPECT_EQ(cut->matched_count, 16u) << "4 that are held already, and 12 that fit";
  EXPECT_EQ(cut->host_blocks, 16u) << "of the matched";
  EXPECT_EQ(cut->pending_count, 0u);
  EXPECT_EQ(Pinned(), 32 * 4096u) << "the lease holds what was matched";
  EXPECT_EQ(store_->stats().matched_keys, 36u);
  EXPECT_EQ(Matched(second), 20u) << "a probe holds nothing, and is not cut";

  const SessionId other = *store_->OpenSession("other");
  EXPECT_EQ(store_->Match(other, ns_, KeysOf(second), {.lease = true})->matched_count, 20u);
  store_->ReleaseLeases(session_, std::vector<LeaseId>{whole->lease, cut->lease});
  EXPECT_EQ(match(first)->matched_count, 20u) << "what was given back is free";
}

// Matches of one session at the same time see the same room, and together take what there is.
TEST_F(LeaseTest, MatchesAtOnceShareTheRoomOfTheirSession) {
  constexpr int kThreadsCount = 4, kRoundsCount = 50;
  BlockStoreOptions options = HostOnly(256, 8);
  options.leased_percent_per_session_max = 50;
  OpenStore(options);
  std::vector<std::vector<ChainLink>> chains;
  for (uint32_t seed = 0; seed < kThreadsCount; ++seed) {
    chains.push_back(ChainOf(ns_, seed, 48));
    PublishChain(chains.back());
  }
  for (int round = 0; round < kRoundsCount; ++round) {
    std::atomic<int> ready_count{0};
    std::vector<std::thread> threads;
    for (const auto& chain : chains) {
      threads.emplace_back([&] {
        for (++ready_count; ready_count < kThreadsCount;) std::this_thread::yield();
        (void)store_->Match(session_, ns_, KeysOf(chain), {.lease = true});
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(Pinned(), 128 * 4096u) << "round " << round;
    store_->EndSession(session_);
    ASSERT_EQ(Pinned(), 0u);
    session_ = *store_->OpenSession("next");
  }
}

TEST_F(LeaseTest, ALeaseOfBlocksThatOnlyTheDiskHasCountsNothing) {
  BlockStoreOptions options = WithDisk(8, 64, 8);
  options.leased_percent_per_session_max = 50;
  OpenStore(options);
  for (uint32_t seed = 0; seed < 6; ++seed) {
    PublishChain(ChainOf(ns_, seed, 4), /*durable=*/true);
  }
  Reopen();  // nothing is in memory
  for (uint32_t seed = 0; seed < 6; ++seed) EXPECT_NE(Lease(ChainOf(ns_, seed, 4)).value, 0u);
  EXPECT_EQ(store_->stats().leases, 6u);
}

// failures 28
TEST_F(LeaseTest, PinnedBytesReturnToZeroWhateverEndsTheLease) {
  const auto chain = ChainOf(ns_, 1, 3);
  PublishChain(chain);
  const LeaseId lease = Lease(chain);
  EXPECT_EQ(Pinned(), 3 * 4096u);
  const LeaseId second = Lease(chain);
  EXPECT_EQ(Pinned(), 3 * 4096u) << "bytes are pinned once, however many hold them";
  store_->ReleaseLeases(session_, std::vector<LeaseId>{lease, lease, LeaseId{99}});
  store_->ReleaseLeases(session_, std::vector<LeaseId>{lease});
  EXPECT_EQ(Pinned(), 3 * 4096u);
  store_->ReleaseLeases(session_, std::vector<LeaseId>{second});
  EXPECT_EQ(Pinned(), 0u);
  EXPECT_EQ(store_->stats().leases, 0u);
}

TEST_F(LeaseTest, ALeaseExpiresUnlessItIsRenewed) {
  const auto chain = ChainOf(ns_, 1, 3);
  PublishChain(chain);
  const LeaseId lease = Lease(chain);
  PassAlive(absl::Seconds(100), /*renew=*/true);
  EXPECT_TRUE(store_->CheckLease(session_, lease).ok());
  PassAlive(absl::Seconds(40), /*renew=*/false);
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->CheckLease(session_, lease)));
  EXPECT_EQ(Pinned(), 0u);
  EXPECT_TRUE(store_->KeepAlive(session_, true).ok()) << "a renewal that comes late is harmless";
  store_->ReleaseLeases(session_, std::vector<LeaseId>{lease});
  EXPECT_EQ(Pinned(), 0u);
}

TEST_F(LeaseTest, ALeaseIsOverForItsHolderEvenBeforeItIsCollected) {
  const auto chain = ChainOf(ns_, 1, 1);
  PublishChain(chain);
  const LeaseId lease = Lease(chain);
  clock_.Advance(absl::Seconds(31));
  EXPECT_FALSE(store_->CheckLease(session_, lease).ok());
}

TEST_F(LeaseTest, ALeaseBelongsToItsSession) {
  const auto chain = ChainOf(ns_, 1, 2);
  PublishChain(chain);
  const LeaseId lease = Lease(chain);
  const SessionId other = *store_->OpenSession("other");
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->CheckLease(other, lease)));
  store_->ReleaseLeases(other, std::vector<LeaseId>{lease});
  EXPECT_EQ(Pinned(), 2 * 4096u);
}

// failures 27
TEST_F(LeaseTest, TheEndOfASessionFreesItsLeasesAndReservations) {
  const auto chain = ChainOf(ns_, 1, 3);
  PublishChain({chain[0]});
  ASSERT_NE(Lease(chain).value, 0u);
  ASSERT_TRUE(store_->Offer(session_, ns_, KeysOf(chain)).ok());
  const SessionId other = *store_->OpenSession("other");
  EXPECT_TRUE(absl::IsAlreadyExists(Publish(*store_, other, ns_, chain[1])));
  store_->EndSession(session_);
  store_->EndSession(session_);
  EXPECT_EQ(Pinned(), 0u);
  EXPECT_EQ(store_->stats().reservations, 0u);
  EXPECT_TRUE(Publish(*store_, other, ns_, chain[1]).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->KeepAlive(session_, false)));
}

TEST_F(LeaseTest, ACommitAfterTheEndOfItsSessionIsRefusedAndFreesItsRoom) {
  const ChainLink link = ChainOf(ns_, 1, 1)[0];
  auto reservation = store_->Reserve(session_, ns_, link);
  ASSERT_TRUE(reservation.ok());
  store_->EndSession(session_);
  EXPECT_EQ(Host().used_bytes, 4096u) << "the writer may still be filling it";
  const SessionId other = *store_->OpenSession("other");
  EXPECT_TRUE(Publish(*store_, other, ns_, link).ok()) << "but others need not wait";
  EXPECT_TRUE(absl::IsFailedPrecondition(CommitFilled(*std::move(reservation), link.key)));
  EXPECT_EQ(Host().used_bytes, 4096u);
  EXPECT_TRUE(HasRightBytes(*AcquireOne(link.key), link.key));
}

TEST_F(LeaseTest, AnAbandonedReservationExpires) {
  const auto chain = ChainOf(ns_, 1, 2);
  ASSERT_TRUE(store_->Offer(session_, ns_, KeysOf(chain)).ok());
  auto reservation = store_->Reserve(session_, ns_, chain[0]);
  ASSERT_TRUE(reservation.ok());
  PassAlive(absl::Seconds(40), false);
  EXPECT_EQ(store_->stats().reservations, 0u);
  EXPECT_TRUE(absl::IsAborted(CommitFilled(*std::move(reservation), chain[0].key)));
  EXPECT_EQ(Host().used_bytes, 0u);
}

// failures 16
TEST_F(LeaseTest, ASilentSessionExpires) {
  const auto chain = ChainOf(ns_, 1, 2);
  PublishChain(chain);
  ASSERT_NE(Lease(chain).value, 0u);
  clock_.Advance(absl::Seconds(15));
  store_->RunMaintenance();
  EXPECT_EQ(Pinned(), 0u);
  EXPECT_EQ(store_->stats().sessions, 0u);
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->KeepAlive(session_, true)));
}

// failures 9
TEST_F(LeaseTest, AReaderKeepsItsBytesBeyondEverything) {
  const auto chain = ChainOf(ns_, 1, 1);
  PublishChain(chain);
  auto ref = AcquireOne(chain[0].key);
  ASSERT_TRUE(ref.ok());
  store_->EndSession(session_);
  session_ = *store_->OpenSession("next");
  for (uint32_t seed = 2; seed < 20; ++seed) PublishChain(ChainOf(ns_, seed, 3));
  EXPECT_TRUE(HasRightBytes(*ref, chain[0].key));
  EXPECT_EQ(Pinned(), 4096u);
  { const BlockRef last = *std::move(ref); }
  EXPECT_EQ(Pinned(), 0u);
}

TEST_F(LeaseTest, ADroppedBlockThatIsLeasedIsInvisibleAndFreedWithTheLease) {
  const auto chain = ChainOf(ns_, 1, 2);
  PublishChain(chain);
  const LeaseId lease = Lease(chain);
  EXPECT_EQ(store_->Drop(ns_, {}), 2u);
  EXPECT_EQ(Matched(chain), 0u);
  EXPECT_EQ(Host().used_bytes, 2 * 4096u);
  store_->ReleaseLeases(session_, std::vector<LeaseId>{lease});
  EXPECT_EQ(Host().used_bytes, 0u);
  EXPECT_EQ(Pinned(), 0u);
}

// failures 29
TEST_F(LeaseTest, AProbeChangesNothing) {
  const auto old = ChainOf(ns_, 1, 4);
  const auto newer = ChainOf(ns_, 2, 4);
  PublishChain(old);
  PublishChain(newer);
  for (int i = 0; i < 649; ++i) EXPECT_EQ(Matched(old), 4u);
  EXPECT_EQ(Pinned(), 0u);
  PublishChain(ChainOf(ns_, 3, 4));
  EXPECT_EQ(Matched(old), 0u) << "the probed chain was the least recently used and leaves";
  EXPECT_EQ(Matched(newer), 4u);
}

TEST_F(LeaseTest, AMatchWithALeaseIsAUse) {
  const auto old = ChainOf(ns_, 1, 4);
  const auto newer = ChainOf(ns_, 2, 4);
  PublishChain(old);
  PublishChain(newer);
  const LeaseId lease = Lease(old);
  store_->ReleaseLeases(session_, std::vector<LeaseId>{lease});
  PublishChain(ChainOf(ns_, 3, 4));
  EXPECT_EQ(Matched(old), 4u);
  EXPECT_EQ(Matched(newer), 0u);
}

TEST_F(LeaseTest, AFailedLeaseLeavesNoPin) {
  BlockStoreOptions options = HostOnly(8, 8);
  options.leases_per_session_max = 1;
  store_.reset();
  OpenStore(options);
  const auto chain = ChainOf(ns_, 1, 3);
  PublishChain(chain);
  const LeaseId lease = Lease(chain);
  EXPECT_EQ(store_->Match(session_, ns_, KeysOf(chain), {.lease = true}).status(),
            LimitReached("too many leases of one session", "leases_per_session_max", 1));
  store_->ReleaseLeases(session_, std::vector<LeaseId>{lease});
  EXPECT_EQ(Pinned(), 0u);
}

TEST_F(LeaseTest, OfferBeyondTheReservationLimitIsRejectedBlockByBlock) {
  BlockStoreOptions options = HostOnly(8, 8);
  options.reservations_per_session_max = 2;
  options.chain_keys_max = 4;
  store_.reset();
  OpenStore(options);
  EXPECT_EQ(
      *store_->Offer(session_, ns_, KeysOf(ChainOf(ns_, 1, 3))),
      (std::vector<OfferState>{OfferState::kWanted, OfferState::kWanted, OfferState::kRejected}));
  EXPECT_EQ(store_->stats().rejected_blocks, 1u);
  const std::vector<BlockKey> five = KeysOf(ChainOf(ns_, 1, 5));
  const Limit limit = {"chain_keys_max", 4};
  EXPECT_EQ(LimitOf(store_->Offer(session_, ns_, five).status()), limit);
  EXPECT_EQ(LimitOf(store_->Claim(session_, ns_, five).status()), limit);
  EXPECT_EQ(LimitOf(store_->Match({}, ns_, five, {}).status()), limit);
}

}  // namespace
}  // namespace ibid
