// Matches of several shards, matches that wait, claims, and the end of sessions that hold much.
#include <atomic>

#include "tests/cache_server/store/store_harness.h"

namespace ibid {
namespace {

// The answer of one StartMatch, whenever it comes.
struct Answer {
  std::promise<absl::StatusOr<MatchResult>> promise;
  std::future<absl::StatusOr<MatchResult>> future = promise.get_future();
  MatchWaitId wait;

  MatchDone done() {
    return [this](absl::StatusOr<MatchResult> result) { promise.set_value(std::move(result)); };
  }
  bool is_there() { return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  MatchResult Get() {
    const absl::StatusOr<MatchResult> result = future.get();
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : MatchResult{};
  }
};

class MatchTest : public StoreFixture {
 protected:
  void SetUp() override {
    BlockStoreOptions options = HostOnly(64, 8);
    options.waiting_matches_max = 64;
    options.waiting_keys_max = 1'000;
    OpenStore(options);
    other_ = *store_->OpenSession("other");
  }

  // Starts a match that waits for as long as the test takes.
  std::unique_ptr<Answer> Await(const std::vector<ChainLink>& chain, bool lease = false,
                                absl::Duration wait = absl::Minutes(10)) {
    auto answer = std::make_unique<Answer>();
    answer->wait = store_->StartMatch(session_, {{ns_, KeysOf(chain)}},
                                      {.lease = lease, .wait_pending = wait}, answer->done());
    return answer;
  }
  ClaimResult Claim(SessionId session, const std::vector<ChainLink>& chain) {
    const auto result = store_->Claim(session, ns_, KeysOf(chain));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : ClaimResult{};
  }
  uint64_t Pinned() { return store_->stats().pinned_bytes; }

  SessionId other_;
};

// ---- Waiting

TEST_F(MatchTest, AWaitGoesOnFromBlockToBlockUntilNothingIsPending) {
  const auto chain = ChainOf(ns_, 1, 3);
  ASSERT_EQ(Claim(other_, chain).wanted_count, 3u);
  const auto answer = Await(chain, /*lease=*/true);
  EXPECT_EQ(store_->stats().waiting_matches, 1u);
  for (const ChainLink& link : chain) {
    EXPECT_FALSE(answer->is_there());
    ASSERT_TRUE(Publish(*store_, other_, ns_, link).ok());
  }
  const MatchResult result = answer->Get();
  EXPECT_EQ(result.matched_count, 3u);
  EXPECT_EQ(result.pending_count, 0u);
  EXPECT_NE(result.lease.value, 0u);
  EXPECT_EQ(Pinned(), 3 * 4096u);
  EXPECT_EQ(store_->stats().waiting_matches, 0u);
}

TEST_F(MatchTest, NothingPendingIsAnsweredAtOnce) {
  const auto chain = ChainOf(ns_, 1, 3);
  PublishChain({chain[0], chain[1]});
  const auto answer = Await(chain);
  ASSERT_TRUE(answer->is_there());
  EXPECT_EQ(answer->Get().matched_count, 2u);
}

// failures 27: whatever ends the claim ends the wait.
TEST_F(MatchTest, TheEndOfAClaimEndsTheWait) {
  const auto chain = ChainOf(ns_, 1, 4);
  PublishChain({chain[0]});
  const std::pair<const char*, std::function<void()>> ends[] = {
      {"session", [&] { store_->EndSession(other_); }},
      {"withdrawal", [&] { store_->Withdraw(other_, ns_, KeysOf(chain)); }},
      {"term",
       [&] {
         clock_.Advance(absl::Seconds(14));
         ASSERT_TRUE(store_->KeepAlive(session_, false).ok());
         ASSERT_TRUE(store_->KeepAlive(other_, false).ok());
         clock_.Advance(absl::Seconds(14));
         ASSERT_TRUE(store_->KeepAlive(session_, false).ok());
         ASSERT_TRUE(store_->KeepAlive(other_, false).ok());
         clock_.Advance(absl::Seconds(2));
         store_->RunMaintenance();
       }},
  };
  for (const auto& [name, end] : ends) {
    SCOPED_TRACE(name);
    other_ = *store_->OpenSession("other");
    ASSERT_EQ(Claim(other_, {chain.begin() + 1, chain.end()}).wanted_count, 3u);
    const auto answer = Await(chain);
    EXPECT_FALSE(answer->is_there());
    end();
    EXPECT_EQ(answer->Get().matched_count, 1u);
    EXPECT_EQ(store_->stats().reservations, 0u);
  }
}

TEST_F(MatchTest, AnAbandonedWriterEndsTheWaitAndTheNextMayClaim) {
  const auto chain = ChainOf(ns_, 1, 1);
  std::optional<Reservation> writer = *store_->Reserve(other_, ns_, chain[0]);
  const auto answer = Await(chain);
  EXPECT_EQ(Claim(session_, chain).refusal, OfferState::kPending);
  writer.reset();
  EXPECT_EQ(answer->Get().matched_count, 0u);
  EXPECT_EQ(Claim(session_, chain).wanted_count, 1u);
}

TEST_F(MatchTest, AWaitEndsWithItsTimeWithWhatThereIs) {
  const auto chain = ChainOf(ns_, 1, 3);
  PublishChain({chain[0]});
  ASSERT_EQ(Claim(other_, {chain[1]}).wanted_count, 1u);
  const MatchResult result = Await(chain, /*lease=*/true, absl::Milliseconds(20))->Get();
  EXPECT_EQ(result.matched_count, 1u);
  EXPECT_EQ(result.pending_count, 1u);
  EXPECT_EQ(Pinned(), 4096u);
}

TEST_F(MatchTest, ACancelledWaitLeavesNothing) {
  const auto chain = ChainOf(ns_, 1, 2);
  PublishChain({chain[0]});
  ASSERT_EQ(Claim(other_, {chain[1]}).wanted_count, 1u);
  const auto answer = Await(chain, /*lease=*/true);
  store_->CancelMatch(answer->wait);
  store_->CancelMatch(answer->wait);
  store_->CancelMatch({});
  EXPECT_TRUE(absl::IsCancelled(answer->future.get().status()));
  EXPECT_EQ(Pinned(), 0u);
  EXPECT_EQ(store_->stats().waiting_matches, 0u);
}

// failures 24: more waits than there may be are answered with what there is; nobody is stuck.
TEST_F(MatchTest, WaitsBeyondTheLimitsAreAnsweredAtOnce) {
  const auto chain = ChainOf(ns_, 1, 2);
  ASSERT_EQ(Claim(other_, chain).wanted_count, 2u);
  const auto answer_is_at_once = [&](const std::vector<ChainLink>& links) {
    const auto answer = Await(links);
    const bool is_there = answer->is_there();
    store_->CancelMatch(answer->wait);
    (void)answer->future.get();
    return is_there;
  };
  std::vector<std::unique_ptr<Answer>> waits;
  while (waits.size() < 63) waits.push_back(Await({chain[0]}));
  EXPECT_TRUE(answer_is_at_once([&] {
    std::vector<ChainLink> longest = ChainOf(ns_, 1, 938);  // with the 63 above over 1,000 keys
    return longest;
  }()));
  EXPECT_FALSE(answer_is_at_once({chain[0]}));
  waits.push_back(Await({chain[0]}));
  EXPECT_TRUE(answer_is_at_once({chain[0]})) << "64 wait";
  EXPECT_EQ(store_->stats().waiting_matches, 64u);
  store_->EndWaits();
  for (const auto& wait : waits) EXPECT_EQ(wait->Get().pending_count, 1u);
  EXPECT_TRUE(answer_is_at_once({chain[0]})) << "after EndWaits nobody waits";
}

TEST_F(MatchTest, AStoreThatEndsCancelsItsWaits) {
  const auto chain = ChainOf(ns_, 1, 1);
  ASSERT_EQ(Claim(other_, chain).wanted_count, 1u);
  const auto answer = Await(chain);
  store_.reset();
  EXPECT_TRUE(absl::IsCancelled(answer->future.get().status()));
}

// A thousand waits, commits, aborts and cancels at the same time: every wait is answered once.
TEST_F(MatchTest, WaitsCommitsAndCancelsMayCross) {
  const auto chain = ChainOf(ns_, 1, 32);
  ASSERT_EQ(Claim(other_, chain).wanted_count, 32u);
  std::vector<std::unique_ptr<Answer>> waits;
  std::thread writer([&] {
    for (size_t i = 0; i < chain.size(); ++i) {
      if (i % 5 == 4) {
        store_->Withdraw(other_, ns_, {&chain[i].key, 1});
      } else {
        EXPECT_TRUE(Publish(*store_, other_, ns_, chain[i]).ok());
      }
    }
  });
  for (int i = 0; i < 1'000; ++i) {
    waits.push_back(Await(chain, /*lease=*/i % 2 == 0));
    if (i % 3 == 0) store_->CancelMatch(waits.back()->wait);
  }
  writer.join();
  store_->EndWaits();
  for (const auto& wait : waits) {
    const auto result = wait->future.get();
    if (result.ok()) {
      store_->ReleaseLeases(session_, {&result->lease, 1});
    } else {
      EXPECT_TRUE(absl::IsCancelled(result.status())) << result.status();
    }
  }
  EXPECT_EQ(Pinned(), 0u);
  EXPECT_EQ(store_->stats().leases, 0u);
}

// ---- Claims

TEST_F(MatchTest, ClaimsAreTakenFromTheFrontToTheFirstRefusal) {
  const auto chain = ChainOf(ns_, 1, 6);
  PublishChain({chain[0]});
  ASSERT_EQ(Claim(other_, {chain[3]}).wanted_count, 1u);
  EXPECT_EQ(Claim(session_, chain).refusal, OfferState::kPresent);
  const ClaimResult result = Claim(session_, {chain.begin() + 1, chain.end()});
  EXPECT_EQ(result.wanted_count, 2u);
  EXPECT_EQ(result.refusal, OfferState::kPending);
  // So the other may go on behind its block, and the two cannot wait for each other.
  EXPECT_EQ(Claim(other_, {chain.begin() + 3, chain.end()}).wanted_count, 3u);
  EXPECT_EQ(store_->stats().reservations, 2u + 3u);
}

TEST_F(MatchTest, OfTwoWhoClaimAtOnceOneGetsAll) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    const auto chain = ChainOf(ns_, seed, 40);
    ClaimResult results[2];
    std::thread second([&] { results[1] = Claim(other_, chain); });
    results[0] = Claim(session_, chain);
    second.join();
    EXPECT_EQ(results[0].wanted_count + results[1].wanted_count, 40u);
    EXPECT_EQ(results[0].wanted_count * results[1].wanted_count, 0u);
    store_->Withdraw(session_, ns_, KeysOf(chain));
    store_->Withdraw(other_, ns_, KeysOf(chain));
    EXPECT_EQ(store_->stats().reservations, 0u);
  }
}

// Whoever takes a claim over has the block; who had it first publishes in vain, and does no harm.
TEST_F(MatchTest, AClaimThatIsNotRepeatedIsTakenOverByOne) {
  const auto chain = ChainOf(ns_, 1, 3);
  const auto keys = KeysOf(chain);
  const absl::Duration after = absl::Seconds(2);
  ASSERT_EQ(Claim(other_, chain).wanted_count, 3u);
  Reservation slow = *store_->Reserve(other_, ns_, chain[0]);
  clock_.Advance(absl::Seconds(1));
  ASSERT_EQ(Claim(other_, {chain[2]}).wanted_count, 1u);
  EXPECT_EQ(store_->Claim(session_, ns_, keys, after)->wanted_count, 0u) << "it is not so old";
  clock_.Advance(absl::Seconds(1));
  const ClaimResult taken = *store_->Claim(session_, ns_, keys, after);
  EXPECT_EQ(taken.wanted_count, 2u) << "also the one that is being written";
  EXPECT_EQ(taken.refusal, OfferState::kPending) << "the third was claimed again";
  EXPECT_EQ(store_->Claim(*store_->OpenSession("third"), ns_, keys, after)->refusal,
            OfferState::kPending);
  EXPECT_EQ(Claim(other_, chain).refusal, OfferState::kPending);
  EXPECT_EQ(store_->stats().reservations, 3u);

  EXPECT_FALSE(CommitFilled(std::move(slow), keys[0]).ok());
  EXPECT_TRUE(CommitFilled(*store_->Reserve(session_, ns_, chain[0]), keys[0]).ok());
  EXPECT_EQ(store_->Match(session_, ns_, keys, {})->matched_count, 1u);
}

TEST_F(MatchTest, AClaimThatIsRepeatedGetsANewTerm) {
  const auto chain = ChainOf(ns_, 1, 2);
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(Claim(other_, chain).wanted_count, 2u);
    clock_.Advance(absl::Seconds(10));
    store_->RunMaintenance();
  }
  EXPECT_EQ(store_->stats().reservations, 2u);
}

TEST_F(MatchTest, AWithdrawalTakesNothingFromOthersOrFromAWriter) {
  const auto chain = ChainOf(ns_, 1, 3);
  ASSERT_EQ(Claim(other_, {chain[0]}).wanted_count, 1u);
  ASSERT_EQ(Claim(session_, {chain[1], chain[2]}).wanted_count, 2u);
  Reservation writer = *store_->Reserve(session_, ns_, chain[1]);
  store_->Withdraw(session_, ns_, KeysOf(chain));
  EXPECT_EQ(store_->stats().reservations, 2u);
  EXPECT_TRUE(CommitFilled(std::move(writer), chain[1].key).ok());
  EXPECT_EQ(Claim(session_, {chain[0]}).refusal, OfferState::kPending);
}

// ---- Several shards

class ShardMatchTest : public MatchTest {
 protected:
  static constexpr size_t kShardsCount = 4;

  void SetUp() override {
    MatchTest::SetUp();
    OpenShards();
  }
  void OpenShards() {
    for (uint32_t i = 0; i < kShardsCount; ++i) {
      NamespaceSpec spec;
      spec.model = "sharded";
      spec.shard = absl::StrCat("tp=", i, "/4;pp=0/1");
      namespaces_.push_back(MakeNamespaceId(spec));
      // Ranks may have blocks of different sizes.
      ASSERT_TRUE(store_->OpenNamespace(namespaces_[i], LayoutOfPages(1 + i % 2)).ok());
      chains_.push_back(ChainOf(namespaces_[i], 1, 6));
    }
  }
  void PublishOf(size_t shard, size_t count) {
    PublishAll(*store_, session_, namespaces_[shard],
               {chains_[shard].begin(), chains_[shard].begin() + count});
  }
  std::unique_ptr<Answer> MatchAll(MatchOptions options) {
    std::vector<ShardChain> shards;
    for (size_t i = 0; i < kShardsCount; ++i)
      shards.push_back({namespaces_[i], KeysOf(chains_[i])});
    auto answer = std::make_unique<Answer>();
    answer->wait = store_->StartMatch(session_, std::move(shards), options, answer->done());
    return answer;
  }
  static uint64_t BytesOf(size_t blocks) { return blocks * (1 + 2 + 1 + 2) * 4096; }

  std::vector<NamespaceId> namespaces_;
  std::vector<std::vector<ChainLink>> chains_;
};

// failures 23
TEST_F(ShardMatchTest, RanksWithDifferentResidencyGetOneNumber) {
  const size_t counts[] = {5, 3, 6, 4};
  for (size_t i = 0; i < kShardsCount; ++i) PublishOf(i, counts[i]);
  const MatchResult result = MatchAll({.lease = true})->Get();
  EXPECT_EQ(result.matched_count, 3u);
  EXPECT_EQ(result.pending_count, 0u);
  EXPECT_EQ(result.host_blocks, 3u);
  EXPECT_EQ(Pinned(), BytesOf(3)) << "nothing is held beyond the common prefix";
  EXPECT_EQ(store_->stats().leases, 1u) << "one lease for all shards";
  store_->ReleaseLeases(session_, {&result.lease, 1});
  EXPECT_EQ(Pinned(), 0u);
}

TEST_F(ShardMatchTest, AMatchIsCutInAllShardsWhereTheShareOfItsSessionEnds) {
  BlockStoreOptions options = options_;
  options.leased_percent_per_session_max = 50;  // 32 pages
  OpenStore(options);
  namespaces_.clear();
  chains_.clear();
  OpenShards();
  for (size_t i = 0; i < kShardsCount; ++i) PublishOf(i, 6);
  const MatchResult result = MatchAll({.lease = true})->Get();
  EXPECT_EQ(result.matched_count, 5u);
  EXPECT_EQ(result.host_blocks, 5u);
  EXPECT_EQ(Pinned(), BytesOf(5)) << "of all shards the same blocks";
  store_->ReleaseLeases(session_, {&result.lease, 1});
  EXPECT_EQ(Pinned(), 0u);
}

TEST_F(ShardMatchTest, AShardThatHasNothingIsAMissForAll) {
  for (size_t i = 0; i + 1 < kShardsCount; ++i) PublishOf(i, 6);
  const MatchResult result = MatchAll({.lease = true})->Get();
  EXPECT_EQ(result.matched_count, 0u);
  EXPECT_EQ(result.lease.value, 0u);
  EXPECT_EQ(Pinned(), 0u);
}

TEST_F(ShardMatchTest, ABlockThatOneShardStillFillsIsPendingForAll) {
  for (size_t i = 0; i < kShardsCount; ++i) PublishOf(i, i == 2 ? 2 : 5);
  const auto keys = KeysOf(chains_[2]);
  ASSERT_EQ(store_->Claim(other_, namespaces_[2], std::span(keys).subspan(2, 2))->wanted_count, 2u);
  const MatchResult now = MatchAll({.lease = true})->Get();
  EXPECT_EQ(now.matched_count, 2u);
  EXPECT_EQ(now.pending_count, 2u);
  EXPECT_EQ(Pinned(), BytesOf(2));
  store_->ReleaseLeases(session_, {&now.lease, 1});

  const auto later = MatchAll({.lease = true, .wait_pending = absl::Minutes(10)});
  EXPECT_FALSE(later->is_there());
  PublishAll(*store_, other_, namespaces_[2], {chains_[2][2], chains_[2][3]});
  EXPECT_EQ(later->Get().matched_count, 4u);
  EXPECT_EQ(Pinned(), BytesOf(4));
}

TEST_F(ShardMatchTest, WrongShardsAreRefused) {
  auto answer = std::make_unique<Answer>();
  store_->StartMatch({}, {}, {}, answer->done());
  EXPECT_TRUE(absl::IsInvalidArgument(answer->future.get().status()));
  answer = std::make_unique<Answer>();
  auto keys = KeysOf(chains_[0]);
  keys.pop_back();
  store_->StartMatch({}, {{namespaces_[0], keys}, {namespaces_[1], KeysOf(chains_[1])}}, {},
                     answer->done());
  EXPECT_TRUE(absl::IsInvalidArgument(answer->future.get().status()));
  answer = std::make_unique<Answer>();
  store_->StartMatch({}, {{NamespaceOf("unknown"), keys}}, {}, answer->done());
  EXPECT_TRUE(absl::IsFailedPrecondition(answer->future.get().status()));
}

// ---- Ends of large holdings

class LargeEndTest : public StoreFixture {
 protected:
  static constexpr size_t kBlocks = 1'000, kLeases = 1'000;

  // A session whose leases hold a million blocks, repetitions counted.
  SessionId HoldMuch() {
    const SessionId session = *store_->OpenSession("large");
    for (size_t i = 0; i < kLeases; ++i) {
      EXPECT_TRUE(store_->Match(session, ns_, KeysOf(chain_), {.lease = true}).ok());
    }
    return session;
  }

  std::vector<ChainLink> chain_ = ChainOf(ns_, 1, kBlocks);
};

// failures 21
TEST_F(LargeEndTest, TheEndOfASessionIsWorkedOffInPieces) {
  OpenStore(HostOnly(1'024, 64));
  PublishChain(chain_);
  const auto claimed = ChainOf(ns_, 2, 500);
  const SessionId large = HoldMuch();
  ASSERT_EQ(store_->Claim(large, ns_, KeysOf(claimed))->wanted_count, 500u);
  store_->EndSession(large);
  const uint64_t left = store_->stats().ending_blocks;
  EXPECT_GT(left, kBlocks * kLeases - 10'000) << "the caller frees one piece and no more";
  EXPECT_EQ(store_->stats().reservations, 0u);
  EXPECT_EQ(store_->stats().leases, 0u);
  EXPECT_EQ(store_->Claim(session_, ns_, KeysOf(claimed))->wanted_count, 500u)
      << "others wait for what was claimed: it comes first";
  EXPECT_EQ(Matched(chain_), kBlocks);
  store_->RunMaintenance();
  EXPECT_EQ(store_->stats().ending_blocks, 0u);
  EXPECT_EQ(store_->stats().pinned_bytes, 0u);
}

TEST_F(LargeEndTest, ReleasesAndExpiryAreWorkedOffTheSameWay) {
  OpenStore(HostOnly(1'024, 64));
  PublishChain(chain_);
  SessionId large = HoldMuch();
  clock_.Advance(absl::Seconds(16));
  store_->RunMaintenance();
  EXPECT_EQ(store_->stats().pinned_bytes, 0u);
  EXPECT_EQ(store_->stats().sessions, 0u);

  large = *store_->OpenSession("large");
  std::vector<LeaseId> leases;
  for (size_t i = 0; i < 10; ++i) {
    leases.push_back(store_->Match(large, ns_, KeysOf(chain_), {.lease = true})->lease);
  }
  store_->ReleaseLeases(large, leases);
  EXPECT_GT(store_->stats().ending_blocks, 8'000u);
  store_->EndSession(large);
  store_->RunMaintenance();
  EXPECT_EQ(store_->stats().ending_blocks, 0u);
  EXPECT_EQ(store_->stats().pinned_bytes, 0u);
}

// With the thread that a server has. How long it takes is printed, not asserted.
TEST_F(LargeEndTest, OthersGoOnWhileAMillionBlocksAreFreed) {
  BlockStoreOptions options = HostOnly(2'048, 64);
  auto opened = BlockStore::Open(options);
  ASSERT_TRUE(opened.ok()) << opened.status();
  store_ = *std::move(opened);
  ASSERT_TRUE(store_->OpenNamespace(ns_, LayoutOfPages(1)).ok());
  session_ = *store_->OpenSession("test");
  PublishChain(chain_);
  const SessionId large = HoldMuch();

  const SteadyClock clock;
  const absl::Time began = clock.Now();
  store_->EndSession(large);
  const absl::Duration call = clock.Now() - began;
  absl::Duration slowest = absl::ZeroDuration();
  uint32_t calls_count = 0;
  for (; store_->stats().pinned_bytes > 0; ++calls_count) {
    ASSERT_LT(clock.Now() - began, absl::Seconds(60));
    const absl::Time start = clock.Now();
    const auto link = ChainOf(ns_, 1'000 + calls_count, 1);
    ASSERT_TRUE(PublishOne(link[0]).ok());
    ASSERT_EQ(Matched(link), 1u);
    slowest = std::max(slowest, clock.Now() - start);
  }
  const absl::Duration all = clock.Now() - began;
  RecordProperty("end_session_us", static_cast<int>(absl::ToInt64Microseconds(call)));
  RecordProperty("all_freed_ms", static_cast<int>(absl::ToInt64Milliseconds(all)));
  RecordProperty("slowest_other_us", static_cast<int>(absl::ToInt64Microseconds(slowest)));
  std::printf(
      "1,000,000 leased blocks: EndSession %s, all freed after %s, meanwhile %u publishes, "
      "the slowest %s\n",
      absl::FormatDuration(call).c_str(), absl::FormatDuration(all).c_str(), calls_count,
      absl::FormatDuration(slowest).c_str());
}

}  // namespace
}  // namespace ibid
