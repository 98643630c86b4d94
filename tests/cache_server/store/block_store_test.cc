// The promises of block_store.h that need neither a disk nor a full arena.
#include <thread>

#include "tests/cache_server/store/store_harness.h"

namespace ibid {
namespace {

class BlockStoreTest : public StoreFixture {
 protected:
  void SetUp() override { OpenStore(HostOnly(64, 16)); }
};

TEST_F(BlockStoreTest, ACommittedBlockIsReadBackWithItsBytes) {
  const auto chain = ChainOf(ns_, 1, 3);
  PublishChain(chain);
  for (const ChainLink& link : chain) {
    const auto ref = AcquireOne(link.key);
    ASSERT_TRUE(ref.ok()) << ref.status();
    EXPECT_TRUE(HasRightBytes(*ref, link.key));
    EXPECT_EQ(ref->tier(), "host");
    EXPECT_EQ(ref->token_count(), 16u);
  }
}

// failures 3
TEST_F(BlockStoreTest, ABlockIsInvisibleBeforeItsCommit) {
  const ChainLink link = ChainOf(ns_, 1, 1)[0];
  auto reservation = store_->Reserve(session_, ns_, link);
  ASSERT_TRUE(reservation.ok());
  Fill(*reservation, link.key);
  EXPECT_TRUE(absl::IsNotFound(AcquireOne(link.key).status()));
  const auto match = store_->Match({}, ns_, {&link.key, 1}, {});
  EXPECT_EQ(match->matched_count, 0u);
  EXPECT_EQ(match->pending_count, 1u);
  EXPECT_TRUE(CommitFilled(*std::move(reservation), link.key).ok());
  EXPECT_EQ(MatchedCount(*store_, ns_, {link.key}), 1u);
}

TEST_F(BlockStoreTest, TheSecondWriterIsToldPendingThenPresent) {
  const ChainLink link = ChainOf(ns_, 1, 1)[0];
  const SessionId other = *store_->OpenSession("other");
  auto reservation = store_->Reserve(session_, ns_, link);
  ASSERT_TRUE(reservation.ok());
  EXPECT_EQ(store_->Reserve(other, ns_, link).status(), absl::AlreadyExistsError("pending"));
  EXPECT_EQ(store_->Offer(other, ns_, {&link.key, 1})->at(0), OfferState::kPending);
  ASSERT_TRUE(CommitFilled(*std::move(reservation), link.key).ok());
  EXPECT_EQ(store_->Reserve(other, ns_, link).status(), absl::AlreadyExistsError("present"));
  EXPECT_EQ(store_->Offer(other, ns_, {&link.key, 1})->at(0), OfferState::kPresent);
}

TEST_F(BlockStoreTest, AnOfferedBlockIsWantedByOneSessionAndPendingForTheOthers) {
  const auto chain = ChainOf(ns_, 1, 4);
  const auto keys = KeysOf(chain);
  const SessionId other = *store_->OpenSession("other");
  PublishChain({chain[0]});
  EXPECT_EQ(*store_->Offer(session_, ns_, keys),
            (std::vector<OfferState>{OfferState::kPresent, OfferState::kWanted, OfferState::kWanted,
                                     OfferState::kWanted}));
  EXPECT_EQ(*store_->Offer(other, ns_, keys),
            (std::vector<OfferState>{OfferState::kPresent, OfferState::kPending,
                                     OfferState::kPending, OfferState::kPending}));
  EXPECT_EQ(store_->Offer(session_, ns_, keys)->at(1), OfferState::kWanted)
      << "an offer may be repeated";
  EXPECT_TRUE(absl::IsAlreadyExists(Publish(*store_, other, ns_, chain[1])));
  EXPECT_TRUE(PublishOne(chain[1]).ok());
}

TEST_F(BlockStoreTest, AWrongChecksumIsDataLossAndLeavesNoBlock) {
  const ChainLink link = ChainOf(ns_, 1, 1)[0];
  auto reservation = store_->Reserve(session_, ns_, link);
  Fill(*reservation, link.key);
  absl::Status result;
  std::move(*reservation).Commit(1, 2, false, [&](absl::Status status) { result = status; });
  EXPECT_TRUE(absl::IsDataLoss(result));
  EXPECT_TRUE(absl::IsNotFound(AcquireOne(link.key).status()));
  EXPECT_EQ(store_->stats().corrupt_blocks, 1u);
  EXPECT_EQ(Host().used_bytes, 0u);
  EXPECT_TRUE(PublishOne(link).ok()) << "the next writer is welcome";
}

TEST_F(BlockStoreTest, DroppingAReservationGivesTheRoomBack) {
  const ChainLink link = ChainOf(ns_, 1, 1)[0];
  {
    auto reservation = store_->Reserve(session_, ns_, link);
    ASSERT_TRUE(reservation.ok());
    EXPECT_EQ(Host().used_bytes, 4096u);
    EXPECT_EQ(store_->stats().reservations, 1u);
  }
  EXPECT_EQ(Host().used_bytes, 0u);
  EXPECT_EQ(store_->stats().reservations, 0u);
  EXPECT_TRUE(PublishOne(link).ok());
}

TEST_F(BlockStoreTest, MatchCountsTheLeadingBlocksOnly) {
  const auto chain = ChainOf(ns_, 1, 5);
  PublishChain({chain[0], chain[1], chain[3]});
  const auto match = store_->Match({}, ns_, KeysOf(chain), {});
  EXPECT_EQ(match->matched_count, 2u);
  EXPECT_EQ(match->host_blocks, 2u);
  EXPECT_EQ(match->disk_blocks, 0u);
  EXPECT_EQ(match->pending_count, 0u);
}

TEST_F(BlockStoreTest, PendingCountIsHowFarTheMatchWouldGrow) {
  const auto chain = ChainOf(ns_, 1, 5);
  const auto keys = KeysOf(chain);
  PublishChain({chain[0], chain[2]});
  ASSERT_TRUE(store_->Offer(session_, ns_, std::vector<BlockKey>{keys[1], keys[3]}).ok());
  const auto match = store_->Match({}, ns_, keys, {});
  EXPECT_EQ(match->matched_count, 1u);
  EXPECT_EQ(match->pending_count, 3u);
}

TEST_F(BlockStoreTest, AMatchWaitsForPendingBlocks) {
  const auto chain = ChainOf(ns_, 1, 3);
  const auto keys = KeysOf(chain);
  ASSERT_TRUE(store_->Offer(session_, ns_, keys).ok());
  std::thread publisher([&] { PublishAll(*store_, session_, ns_, chain); });
  const auto match =
      store_->Match({}, ns_, keys, {.lease = false, .wait_pending = absl::Seconds(60)});
  EXPECT_EQ(match->matched_count, 3u);
  publisher.join();
}

TEST_F(BlockStoreTest, AWaitEndsWhenTheWriterGivesUp) {
  const auto chain = ChainOf(ns_, 1, 2);
  const auto keys = KeysOf(chain);
  ASSERT_TRUE(store_->Offer(session_, ns_, keys).ok());
  std::thread leaver([&] { store_->EndSession(session_); });
  const auto match =
      store_->Match({}, ns_, keys, {.lease = false, .wait_pending = absl::Seconds(60)});
  EXPECT_EQ(match->matched_count, 0u);
  EXPECT_EQ(match->pending_count, 0u);
  leaver.join();
}

TEST_F(BlockStoreTest, AWaitEndsAtItsDeadline) {
  const auto keys = KeysOf(ChainOf(ns_, 1, 2));
  ASSERT_TRUE(store_->Offer(session_, ns_, keys).ok());
  const auto match =
      store_->Match({}, ns_, keys, {.lease = false, .wait_pending = absl::Milliseconds(5)});
  EXPECT_EQ(match->pending_count, 2u);
}

TEST_F(BlockStoreTest, ATailBlockIsABlockOfItsOwn) {
  std::vector<uint32_t> tokens(20);
  for (uint32_t i = 0; i < 20; ++i) tokens[i] = i;
  const auto chain = MakeChain(ns_, tokens, 16, /*with_tail=*/true);
  ASSERT_EQ(chain.size(), 2u);
  PublishChain(chain);
  EXPECT_EQ(AcquireOne(chain[1].key)->token_count(), 4u);
}

TEST_F(BlockStoreTest, RefusesTokenCountsThatTheLayoutDoesNotHave) {
  ChainLink link = ChainOf(ns_, 1, 1)[0];
  link.token_count = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Reserve(session_, ns_, link).status()));
  link.token_count = 17;
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Reserve(session_, ns_, link).status()));
}

TEST_F(BlockStoreTest, ABlockCannotDescendFromItself) {
  auto chain = ChainOf(ns_, 1, 3);
  ChainLink own = chain[1];
  own.parent = own.key;
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Reserve(session_, ns_, own).status()));
  // A cycle over two blocks: the second is stored without its parent, so that both can leave.
  ChainLink first = chain[1], second = chain[2];
  first.parent = second.key;
  ASSERT_TRUE(PublishOne(first).ok());
  second.parent = first.key;
  EXPECT_TRUE(PublishOne(second).ok());
  EXPECT_EQ(store_->DropEverything(), 2u);
  EXPECT_EQ(Host().used_bytes, 0u);
}

// Somebody publishes a child of block 0 that says it is the seventh.
TEST_F(BlockStoreTest, AChildWithAWrongPositionDoesNotKeepItsParentOut) {
  const auto chain = ChainOf(ns_, 1, 3);
  ChainLink bogus = ChainOf(ns_, 2, 1)[0];
  bogus.parent = chain[0].key;
  bogus.position = 7;
  ASSERT_TRUE(PublishOne(bogus).ok());
  PublishChain(chain);
  EXPECT_EQ(Matched(chain), 3u);
  for (uint32_t seed = 10; seed < 40; ++seed) PublishChain(ChainOf(ns_, seed, 8));
  EXPECT_LE(Host().used_bytes, Host().bytes_max) << "all of them can be evicted";
}

// failures 1, 2
TEST_F(BlockStoreTest, ABlockIsFoundInItsOwnNamespaceOnly) {
  const ChainLink link = ChainOf(ns_, 1, 1)[0];
  PublishChain({link});
  const NamespaceId other = NamespaceOf("other");
  EXPECT_TRUE(absl::IsFailedPrecondition(AcquireNow(*store_, other, link.key).status()))
      << "unknown namespace";
  ASSERT_TRUE(store_->OpenNamespace(other, layout_).ok());
  EXPECT_TRUE(absl::IsNotFound(AcquireNow(*store_, other, link.key).status()));
  EXPECT_TRUE(Publish(*store_, session_, other, link).ok())
      << "the same key is another block there";
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->OpenNamespace(ns_, LayoutOfPages(2)).status()));
}

TEST_F(BlockStoreTest, UnknownNamespacesAndSessionsAreRefused) {
  const ChainLink link = ChainOf(ns_, 1, 1)[0];
  const NamespaceId unknown = NamespaceOf("unknown");
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->Match({}, unknown, {&link.key, 1}, {}).status()));
  EXPECT_TRUE(
      absl::IsFailedPrecondition(store_->Offer(session_, unknown, {&link.key, 1}).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->Reserve(session_, unknown, link).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->Reserve(SessionId{1}, ns_, link).status()));
  EXPECT_TRUE(
      absl::IsFailedPrecondition(store_->Offer(SessionId{1}, ns_, {&link.key, 1}).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      store_->Match(SessionId{1}, ns_, {&link.key, 1}, {.lease = true}).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->KeepAlive(SessionId{1}, false)));
}

TEST_F(BlockStoreTest, ALayoutThatCanNeverFitIsRefusedAtOnce) {
  EXPECT_TRUE(absl::IsInvalidArgument(
      store_->OpenNamespace(NamespaceOf("big"), LayoutOfPages(17)).status()))
      << "an extent has 16 pages";
  EXPECT_EQ(*store_->OpenNamespace(NamespaceOf("fits"), LayoutOfPages(16)), 16 * 4096u);
}

TEST_F(BlockStoreTest, ADroppedBlockIsGoneAndItsReaderKeepsTheBytes) {
  const auto chain = ChainOf(ns_, 1, 3);
  const auto keys = KeysOf(chain);
  PublishChain(chain);
  auto ref = AcquireOne(keys[2]);
  ASSERT_TRUE(ref.ok());
  EXPECT_EQ(store_->Drop(ns_, {&keys[2], 1}), 1u);
  EXPECT_EQ(store_->Drop(ns_, {&keys[2], 1}), 0u);
  EXPECT_EQ(Matched(chain), 2u);
  EXPECT_TRUE(HasRightBytes(*ref, keys[2]));
  EXPECT_EQ(Host().used_bytes, 3 * 4096u);
  ASSERT_TRUE(PublishOne(chain[2]).ok()) << "a new block of the same key, beside the old one";
  EXPECT_EQ(Matched(chain), 3u);
  EXPECT_EQ(Host().used_bytes, 4 * 4096u);
  { const BlockRef last = *std::move(ref); }
  EXPECT_EQ(Host().used_bytes, 3 * 4096u);
  EXPECT_EQ(Matched(chain), 3u);
}

// A block that another took over while it was being filled says nothing of its writer's session.
TEST_F(BlockStoreTest, ABlockThatIsTakenOverWhileItIsFilledIsAborted) {
  OpenStore(HostOnly(16, 16));
  const auto chain = ChainOf(ns_, 1, 1);
  const SessionId other = *store_->OpenSession("other");
  for (const bool is_session_gone : {false, true}) {
    absl::StatusOr<Reservation> reservation = store_->Reserve(session_, ns_, chain[0]);
    ASSERT_TRUE(reservation.ok()) << reservation.status();
    clock_.Advance(absl::Seconds(2));
    const auto claim = store_->Claim(other, ns_, KeysOf(chain), absl::Seconds(1));
    ASSERT_TRUE(claim.ok()) << claim.status();
    EXPECT_EQ(claim->wanted_count, 1u);
    if (is_session_gone) store_->EndSession(session_);
    const absl::Status status = CommitFilled(*std::move(reservation), chain[0].key);
    EXPECT_EQ(status.code(),
              is_session_gone ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kAborted)
        << status;
    EXPECT_EQ(Matched(chain), 0u);
    store_->Withdraw(other, ns_, KeysOf(chain));
    EXPECT_EQ(Host().used_bytes, 0u);
  }
}

TEST_F(BlockStoreTest, DroppingANamespaceLeavesTheOthers) {
  const NamespaceId other = NamespaceOf("other");
  ASSERT_TRUE(store_->OpenNamespace(other, layout_).ok());
  PublishChain(ChainOf(ns_, 1, 5));
  PublishAll(*store_, session_, other, ChainOf(other, 1, 4));
  EXPECT_EQ(store_->Drop(ns_, {}), 5u);
  EXPECT_EQ(MatchedCount(*store_, other, KeysOf(ChainOf(other, 1, 4))), 4u);
  EXPECT_EQ(store_->DropEverything(), 4u);
  EXPECT_EQ(Host().used_bytes, 0u);
  EXPECT_EQ(Host().blocks, 0u);
}

TEST_F(BlockStoreTest, NamespacesWithoutBlocksGiveWayAtTheLimit) {
  BlockStoreOptions options = HostOnly(64, 16);
  options.namespaces_max = 2;
  store_.reset();
  OpenStore(options);
  PublishChain(ChainOf(ns_, 1, 1));
  ASSERT_TRUE(store_->OpenNamespace(NamespaceOf("a"), layout_).ok());
  ASSERT_TRUE(store_->OpenNamespace(NamespaceOf("b"), layout_).ok()) << "a is empty";
  EXPECT_EQ(store_->stats().namespaces, 2u);
  const NamespaceId b = NamespaceOf("b");
  PublishAll(*store_, session_, b, ChainOf(b, 1, 1));
  EXPECT_TRUE(absl::IsResourceExhausted(store_->OpenNamespace(NamespaceOf("c"), layout_).status()));
}

TEST_F(BlockStoreTest, ANamespacesLayoutIsKnownWhileItIsOpen) {
  EXPECT_EQ(*store_->LayoutOf(ns_), layout_);
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->LayoutOf(NamespaceOf("other")).status()));
}

// A flip in a host slot: whoever got wrong bytes has the server look, and the block goes.
TEST_F(BlockStoreTest, ASpoiltBlockIsDroppedWhenSomebodyAsksForItToBeRead) {
  const auto chain = ChainOf(ns_, 1, 4);
  PublishChain(chain);
  {
    const auto reader = AcquireOne(chain[2].key);
    const_cast<std::byte&>(reader->payload()[100]) ^= std::byte{1};
  }
  const auto lease = store_->Match(session_, ns_, KeysOf(chain), {.lease = true});
  std::vector<BlockKey> keys = KeysOf(chain);
  keys.push_back(ChainOf(ns_, 2, 1)[0].key);
  EXPECT_EQ(store_->DropCorrupt(ns_, keys), 1u) << "though it is leased";
  EXPECT_EQ(store_->DropCorrupt(ns_, keys), 0u);
  EXPECT_EQ(store_->DropCorrupt(NamespaceOf("other"), keys), 0u);
  EXPECT_EQ(store_->stats().corrupt_blocks, 1u);
  EXPECT_EQ(Matched(chain), 2u);
  EXPECT_TRUE(HasRightBytes(*AcquireOne(chain[3].key), chain[3].key));
  store_->ReleaseLeases(session_, {&lease->lease, 1});
  EXPECT_EQ(store_->stats().pinned_bytes, 0u);
  EXPECT_EQ(Host().used_bytes, 3 * 4096u) << "its room is free";
  EXPECT_TRUE(PublishOne(chain[2]).ok());
  EXPECT_TRUE(HasRightBytes(*AcquireOne(chain[2].key), chain[2].key));
}

// failures 43
TEST_F(BlockStoreTest, HitsAndMissesAddUpToWhatWasRequested) {
  const auto chain = ChainOf(ns_, 1, 4);
  PublishChain({chain[0], chain[1]});
  for (const ChainLink& link : chain) (void)AcquireOne(link.key);
  EXPECT_EQ(store_->stats().requested_blocks, 4u);
  EXPECT_EQ(store_->stats().missed_blocks, 2u);
  EXPECT_EQ(Host().hits, 2u);
  EXPECT_EQ(store_->stats().published_blocks, 2u);
}

TEST(BlockStoreOpen, NamesTheOptionThatIsWrong) {
  BlockStoreOptions options;
  options.extent_bytes = 5000;
  EXPECT_EQ(
      BlockStore::Open(options).status(),
      absl::InvalidArgumentError("extent_bytes 5000: must be a multiple of 4 KiB, at most 1 TiB"));
  options = {};
  options.io_threads_count = 0;
  EXPECT_EQ(BlockStore::Open(options).status(),
            absl::InvalidArgumentError("io_threads_count 0: must be at least 1"));
  options = {};
  options.host_bytes_max = uint64_t{8} << 40;
  const absl::Status too_much = BlockStore::Open(options).status();
  EXPECT_TRUE(absl::IsResourceExhausted(too_much)) << too_much;
  EXPECT_NE(too_much.message().find("--host_bytes_max"), std::string::npos) << too_much;
}

TEST(BlockStoreOpen, ExportsWhatItCounts) {
  MetricsRegistry registry;
  BlockStoreOptions options;
  options.host_bytes_max = 1 << 20;
  options.extent_bytes = 1 << 16;
  options.metrics = &registry;
  options.has_maintenance_thread = false;
  auto store = *BlockStore::Open(options);
  const NamespaceId ns = NamespaceOf("m");
  ASSERT_TRUE(store->OpenNamespace(ns, LayoutOfPages(1)).ok());
  const SessionId session = *store->OpenSession("s");
  const auto chain = ChainOf(ns, 1, 3);
  PublishAll(*store, session, ns, chain);
  (void)AcquireNow(*store, ns, chain[0].key);
  (void)AcquireNow(*store, ns, ChainOf(ns, 2, 1)[0].key);
  store->RunMaintenance();
  const std::string text = SerializeMetrics(registry);
  EXPECT_NE(text.find("ibid_store_hits_total{tier=\"host\"} 1"), std::string::npos) << text;
  EXPECT_NE(text.find("ibid_store_misses_total 1"), std::string::npos) << text;
  EXPECT_NE(text.find("ibid_store_published_blocks_total 3"), std::string::npos) << text;
  EXPECT_NE(text.find("ibid_store_used_bytes{tier=\"host\"} 12288"), std::string::npos) << text;
}

}  // namespace
}  // namespace ibid
