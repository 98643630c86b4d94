// Single flight: a new prefix that several workers need at the same moment is computed once,
// however the worker fares that computes it; and no worker waits for ever, or fails a request over
// it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/integration/worker_rig.h"

namespace ibid {
namespace {

using ::testing::Each;

constexpr size_t kPromptTokens = 2'000;  // 125 blocks of 16
constexpr uint32_t kPromptBlocks = 125;
constexpr size_t kWorkersCount = 8;
// Prompts that begin alike and then differ; the blocks that are whole before they do.
constexpr size_t kSharedTokens = 1'000;
constexpr uint32_t kSharedBlocks = 62;
constexpr uint32_t kOwnTokens = kPromptTokens - kSharedBlocks * 16;

class SingleFlightTest : public testing::Test {
 protected:
  WorkerSetup Setup() const {
    WorkerSetup setup;
    setup.model = IBID_SOURCE_DIR "/models/demo";
    setup.servers = {store_.address()};
    setup.engine.pages_count = 300;
    setup.engine.max_running_requests = 4;
    setup.engine.max_batch_tokens = 16;  // so that a prompt takes many steps
    setup.engine.store.single_flight_wait = absl::Minutes(1);
    // Only the store's answers end a wait here, not a busy machine.
    setup.fetch_timeout = absl::Minutes(1);
    setup.match_timeout = absl::Seconds(20);
    return setup;
  }

  static GenerateRequest Prompt(uint32_t seed) {
    GenerateRequest request = Request(RandomTokens(kPromptTokens, seed, 2'000), 6);
    request.sampling = {0.8f, 0, 0.9f, seed};
    return request;
  }

  // Begins as all of the same `seed`, and goes on as only those of the same `end`.
  static GenerateRequest SharedPrompt(uint32_t seed, uint32_t end) {
    GenerateRequest request = Prompt(seed);
    const std::vector<uint32_t> own = RandomTokens(kPromptTokens, 1'000 + end, 2'000);
    std::copy(own.begin() + kSharedTokens, own.end(), request.prompt.begin() + kSharedTokens);
    return request;
  }

  // What a worker without a store says.
  static std::vector<uint32_t> Expected(const GenerateRequest& request) {
    WorkerSetup setup;
    setup.model = IBID_SOURCE_DIR "/models/demo";
    setup.engine.pages_count = 300;
    return Worker(setup).Run(request).tokens;
  }

  void StartWorkers(size_t count, const WorkerSetup& setup) {
    while (workers_.size() < count) workers_.push_back(std::make_unique<Worker>(setup));
  }
  std::shared_ptr<TokenStream> Submit(Worker& worker, const GenerateRequest& request) {
    auto stream = worker.engine().Submit(request);
    EXPECT_TRUE(stream.ok()) << stream.status();
    return *std::move(stream);
  }

  // Submits to all workers from `first` on, and waits until each of them waits for another.
  std::vector<std::shared_ptr<TokenStream>> SubmitToWaiters(size_t first,
                                                            const GenerateRequest& request) {
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (size_t i = first; i < workers_.size(); ++i) {
      streams.push_back(Submit(*workers_[i], request));
      AwaitStats(workers_[i]->engine(),
                 [](const EngineStats& stats) { return stats.awaited_requests > 0; });
    }
    return streams;
  }

  BlockStoreStats StoreStats() { return store_.server().store().stats(); }

  StoreRig store_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

TEST_F(SingleFlightTest, EightWorkersComputeOneNewPrefixOnce) {
  StartWorkers(kWorkersCount, Setup());
  const GenerateRequest request = Prompt(1);
  const std::vector<uint32_t> expected = Expected(request);
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (const auto& worker : workers_) streams.push_back(Submit(*worker, request));
  std::vector<uint32_t> computed;
  for (const auto& stream : streams) {
    const Outcome outcome = ReadToEnd(*stream);
    EXPECT_EQ(outcome.tokens, expected);
    computed.push_back(outcome.finish.usage.computed_tokens);
  }
  // All full blocks once; and each of the others its last token, whose logits it needs.
  std::sort(computed.begin(), computed.end());
  EXPECT_EQ(computed.back(), kPromptTokens);
  computed.pop_back();
  EXPECT_THAT(computed, Each(1u));
  uint64_t claimed = 0, total = 0;
  for (const auto& worker : workers_) {
    worker->AwaitRest();
    const EngineStats stats = worker->engine().stats();
    claimed += stats.claimed_blocks;
    total += stats.computed_tokens;
    EXPECT_EQ(stats.given_up_awaits, 0u);
  }
  EXPECT_EQ(claimed, kPromptBlocks);
  EXPECT_EQ(total, kPromptTokens + kWorkersCount - 1);
  EXPECT_EQ(StoreStats().reservations, 0u);
  EXPECT_EQ(StoreStats().asked_keys, kWorkersCount * kPromptBlocks) << "a request counts once";
}

// The worker that computes goes away in the middle of it: its request is cancelled, or it dies.
class LostClaimTest : public SingleFlightTest, public testing::WithParamInterface<bool> {};

INSTANTIATE_TEST_SUITE_P(Ways, LostClaimTest, testing::Bool(), [](const auto& way) {
  return std::string(way.param ? "TheWorkerDies" : "ItsRequestIsCancelled");
});

TEST_P(LostClaimTest, OneOfThoseWhoWaitedComputesTheRest) {
  StartWorkers(kWorkersCount, Setup());
  const GenerateRequest request = Prompt(2);
  const std::vector<uint32_t> expected = Expected(request);
  const auto lost = Submit(*workers_[0], request);
  AwaitStats(workers_[0]->engine(),
             [](const EngineStats& stats) { return stats.claimed_blocks == kPromptBlocks; });
  const auto streams = SubmitToWaiters(1, request);
  const absl::Time until = absl::Now() + absl::Seconds(60);
  while (StoreStats().published_blocks < 5 && absl::Now() < until) std::this_thread::yield();
  ASSERT_LT(StoreStats().published_blocks, kPromptBlocks) << "too late to be in the middle";
  if (GetParam()) {
    workers_[0].reset();
  } else {
    workers_[0]->engine().Cancel(lost->id());
  }
  std::vector<uint32_t> computed;
  for (const auto& stream : streams) {
    const Outcome outcome = ReadToEnd(*stream);
    EXPECT_EQ(outcome.tokens, expected);
    computed.push_back(outcome.finish.usage.computed_tokens);
  }
  std::sort(computed.begin(), computed.end());
  EXPECT_GT(computed.back(), 1u);
  EXPECT_LE(computed.back(), kPromptTokens - 5 * 16) << "what the lost one published is fetched";
  computed.pop_back();
  EXPECT_THAT(computed, Each(1u)) << "exactly one more computes";
  for (const auto& worker : workers_) {
    if (worker != nullptr) worker->AwaitRest();
  }
  EXPECT_EQ(StoreStats().reservations, 0u);
}

// The worker that computes lives and does not come on: its machine is cut off, or it hangs.
class StuckClaimTest : public SingleFlightTest, public testing::WithParamInterface<bool> {
 protected:
  // Of a session that never publishes.
  void ClaimAll(const GenerateRequest& request) {
    BlockStore& blocks = store_.server().store();
    const NamespaceId ns = MakeNamespaceId(workers_[0]->engine().SpecFor(""));
    ASSERT_TRUE(blocks.OpenNamespace(ns, workers_[0]->engine().layout()).ok());
    std::vector<BlockKey> keys;
    for (const ChainLink& link : MakeChain(ns, request.prompt, 16, /*with_tail=*/false))
      keys.push_back(link.key);
    ASSERT_EQ(blocks.Claim(*blocks.OpenSession("hangs"), ns, keys)->wanted_count, kPromptBlocks);
  }
  // What EngineLoop needs to know how long computing would take.
  static void WarmUp(Worker& worker, uint32_t seed) {
    GenerateRequest request = Request(RandomTokens(128, seed, 2'000), 1);
    request.store = StoreMode::kOff;
    ASSERT_EQ(worker.Run(request).finish.reason, FinishReason::kLength);
  }
};

INSTANTIATE_TEST_SUITE_P(Ways, StuckClaimTest, testing::Bool(), [](const auto& way) {
  return std::string(way.param ? "ItIsCutOff" : "ItHangs");
});

TEST_P(StuckClaimTest, OneOfEightWhoWaitedTakesOverAndTheOthersWaitForThatOne) {
  const bool is_cut_off = GetParam();
  WorkerSetup setup = Setup();
  setup.engine.max_batch_tokens = 64;
  setup.engine.store.await_min = absl::Seconds(3);
  StartWorkers(kWorkersCount, setup);
  for (uint32_t i = 0; i < kWorkersCount; ++i) WarmUp(*workers_[i], 100 + i);
  const GenerateRequest request = Prompt(10);
  const std::vector<uint32_t> expected = Expected(request);

  FaultProxy proxy(store_.server().port());
  setup.servers = {proxy.address()};
  setup.engine.max_batch_tokens = 16;
  setup.fetch_timeout = absl::Seconds(2);
  std::unique_ptr<Worker> stuck;
  std::shared_ptr<TokenStream> stuck_stream;
  if (is_cut_off) {
    stuck = std::make_unique<Worker>(setup);
    stuck_stream = Submit(*stuck, request);
    AwaitStats(stuck->engine(),
               [](const EngineStats& stats) { return stats.claimed_blocks == kPromptBlocks; });
    proxy.Stall(true);
    ASSERT_LT(StoreStats().published_blocks, kPromptBlocks) << "too late to be in the middle";
  } else {
    ClaimAll(request);
  }
  const uint64_t published = StoreStats().published_blocks;
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (const auto& worker : workers_) streams.push_back(Submit(*worker, request));
  std::vector<uint32_t> computed;
  for (const auto& stream : streams) {
    const Outcome outcome = ReadToEnd(*stream);
    EXPECT_EQ(outcome.finish.status, absl::OkStatus());
    EXPECT_EQ(outcome.tokens, expected);
    computed.push_back(outcome.finish.usage.computed_tokens);
  }
  std::sort(computed.begin(), computed.end());
  EXPECT_GE(computed.back(), kPromptTokens - (published + 4) * 16);
  computed.pop_back();
  EXPECT_THAT(computed, Each(1u)) << "exactly one more computes";
  for (const auto& worker : workers_) EXPECT_EQ(worker->engine().stats().given_up_awaits, 0u);
  if (is_cut_off) {
    EXPECT_EQ(ReadToEnd(*stuck_stream).tokens, expected);
  }
}

TEST_F(SingleFlightTest, OfTwoPromptsThatBeginAlikeTheBeginningIsComputedOnce) {
  StartWorkers(2, Setup());
  const GenerateRequest first = SharedPrompt(6, 1), second = SharedPrompt(6, 2);
  const std::vector<uint32_t> expected[] = {Expected(first), Expected(second)};
  const auto ahead = Submit(*workers_[0], first);
  AwaitStats(workers_[0]->engine(),
             [](const EngineStats& stats) { return stats.claimed_blocks == kPromptBlocks; });
  const auto behind = Submit(*workers_[1], second);
  const Outcome outcomes[] = {ReadToEnd(*ahead), ReadToEnd(*behind)};
  for (int i = 0; i < 2; ++i) EXPECT_EQ(outcomes[i].tokens, expected[i]);
  EXPECT_EQ(outcomes[0].finish.usage.computed_tokens, kPromptTokens);
  EXPECT_EQ(outcomes[1].finish.usage.computed_tokens, kOwnTokens);
  EXPECT_EQ(workers_[1]->engine().stats().awaited_requests, 1u);
  EXPECT_EQ(workers_[1]->engine().stats().claimed_blocks, kPromptBlocks - kSharedBlocks);
}

TEST_F(SingleFlightTest, EightPromptsThatBeginAlikeAndEndInTwosComputeEachPartOnce) {
  StartWorkers(kWorkersCount, Setup());
  std::vector<std::vector<uint32_t>> expected;
  for (uint32_t end = 0; end < 4; ++end) expected.push_back(Expected(SharedPrompt(7, end)));
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (uint32_t i = 0; i < kWorkersCount; ++i) {
    streams.push_back(Submit(*workers_[i], SharedPrompt(7, i % 4)));
  }
  std::vector<uint32_t> computed;
  for (size_t i = 0; i < kWorkersCount; ++i) {
    const Outcome outcome = ReadToEnd(*streams[i]);
    EXPECT_EQ(outcome.tokens, expected[i % 4]) << i;
    computed.push_back(outcome.finish.usage.computed_tokens);
  }
  std::sort(computed.begin(), computed.end());
  EXPECT_THAT(computed,
              testing::ElementsAre(1, 1, 1, 1, kOwnTokens, kOwnTokens, kOwnTokens, kPromptTokens));
  for (const auto& worker : workers_) worker->AwaitRest();
  EXPECT_EQ(StoreStats().reservations, 0u);
}

TEST_F(SingleFlightTest, WhenTheOneAheadDiesAnotherComputesTheBeginningForTheRest) {
  StartWorkers(4, Setup());
  std::vector<std::vector<uint32_t>> expected;
  for (uint32_t i = 1; i < 4; ++i) expected.push_back(Expected(SharedPrompt(8, i)));
  const auto lost = Submit(*workers_[0], SharedPrompt(8, 0));
  AwaitStats(workers_[0]->engine(),
             [](const EngineStats& stats) { return stats.claimed_blocks == kPromptBlocks; });
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (uint32_t i = 1; i < 4; ++i) {
    streams.push_back(Submit(*workers_[i], SharedPrompt(8, i)));
    AwaitStats(workers_[i]->engine(),
               [](const EngineStats& stats) { return stats.awaited_requests > 0; });
  }
  const absl::Time until = absl::Now() + absl::Seconds(60);
  while (StoreStats().published_blocks < 5 && absl::Now() < until) std::this_thread::yield();
  ASSERT_LT(StoreStats().published_blocks, kSharedBlocks) << "too late to be in the middle";
  workers_[0].reset();
  std::vector<uint32_t> computed;
  for (size_t i = 0; i < streams.size(); ++i) {
    const Outcome outcome = ReadToEnd(*streams[i]);
    EXPECT_EQ(outcome.tokens, expected[i]) << i;
    computed.push_back(outcome.finish.usage.computed_tokens);
  }
  std::sort(computed.begin(), computed.end());
  EXPECT_EQ(computed[0], kOwnTokens);
  EXPECT_EQ(computed[1], kOwnTokens);
  EXPECT_GT(computed[2], kOwnTokens);
  EXPECT_LE(computed[2], kPromptTokens - 5 * 16) << "what the lost one published is fetched";
}

// One that computed a part and then got stuck: what it published is used, and the rest is waited
// for no longer than named.
TEST_F(SingleFlightTest, WhatASlowOneHasNotComputedInTimeIsComputedByTheNext) {
  WorkerSetup setup = Setup();
  StartWorkers(1, setup);
  const GenerateRequest request = Prompt(9);
  const std::vector<uint32_t> expected = Expected(request);
  constexpr uint32_t kPublished = 40;
  GenerateRequest part = request;
  part.prompt.resize(kPublished * 16);
  part.stop.max_tokens = 1;
  ASSERT_EQ(workers_[0]->Run(part).finish.usage.computed_tokens, kPublished * 16);
  workers_[0]->AwaitRest();
  BlockStore& blocks = store_.server().store();
  const NamespaceId ns = MakeNamespaceId(workers_[0]->engine().SpecFor(""));
  const auto chain = MakeChain(ns, request.prompt, 16, /*with_tail=*/false);
  std::vector<BlockKey> rest;
  for (size_t i = kPublished; i < chain.size(); ++i) rest.push_back(chain[i].key);
  const SessionId slow = *blocks.OpenSession("slow");
  ASSERT_EQ(blocks.Claim(slow, ns, rest)->wanted_count, rest.size());

  setup.engine.store.single_flight_wait = absl::Seconds(2);
  Worker next(setup);
  const Outcome outcome = next.Run(request);
  EXPECT_EQ(outcome.tokens, expected);
  EXPECT_EQ(outcome.finish.usage.computed_tokens, kPromptTokens - kPublished * 16);
  EXPECT_EQ(outcome.finish.usage.fetched_tokens, kPublished * 16);
  EXPECT_EQ(next.engine().stats().claimed_blocks, rest.size()) << "it took the claim over";
  EXPECT_EQ(next.engine().stats().given_up_awaits, 0u);
}

// failures 24: a claim whose owner repeats it and never computes holds a request up for the named
// time.
TEST_F(SingleFlightTest, AClaimThatComesToNothingIsWaitedForNoLongerThanNamed) {
  WorkerSetup setup = Setup();
  setup.engine.store.single_flight_wait = absl::Seconds(4);
  StartWorkers(1, setup);
  const GenerateRequest request = Prompt(3);
  const std::vector<uint32_t> expected = Expected(request);
  BlockStore& blocks = store_.server().store();
  const NamespaceSpec spec = workers_[0]->engine().SpecFor("");
  const NamespaceId ns = MakeNamespaceId(spec);
  ASSERT_TRUE(blocks.OpenNamespace(ns, workers_[0]->engine().layout()).ok());
  const auto chain = MakeChain(ns, request.prompt, 16, /*with_tail=*/false);
  std::vector<BlockKey> keys;
  for (const ChainLink& link : chain) keys.push_back(link.key);
  const SessionId idle = *blocks.OpenSession("idle");
  ASSERT_EQ(blocks.Claim(idle, ns, keys)->wanted_count, kPromptBlocks);
  std::atomic<bool> is_over = false;
  std::thread repeats([&] {
    while (!is_over) {
      (void)blocks.Claim(idle, ns, keys);
      absl::SleepFor(absl::Milliseconds(20));
    }
  });

  const Outcome outcome = workers_[0]->Run(request);
  is_over = true;
  repeats.join();
  EXPECT_EQ(outcome.tokens, expected);
  EXPECT_EQ(outcome.finish.usage.computed_tokens, kPromptTokens);
  EXPECT_GE(outcome.finish.store_wait, absl::Seconds(4));
  EXPECT_EQ(workers_[0]->engine().stats().given_up_awaits, 1u);
}

// Two that hold parts of one chain do not wait for each other: who has claimed the front computes,
// and goes on where the other's part begins.
TEST_F(SingleFlightTest, WhoHasTheFrontOfAChainComputes) {
  StartWorkers(1, Setup());
  const GenerateRequest request = Prompt(4);
  const std::vector<uint32_t> expected = Expected(request);
  BlockStore& blocks = store_.server().store();
  const NamespaceId ns = MakeNamespaceId(workers_[0]->engine().SpecFor(""));
  ASSERT_TRUE(blocks.OpenNamespace(ns, workers_[0]->engine().layout()).ok());
  const auto chain = MakeChain(ns, request.prompt, 16, /*with_tail=*/false);
  const SessionId other = *blocks.OpenSession("other");
  ASSERT_EQ(blocks.Claim(other, ns, {&chain[60].key, 1})->wanted_count, 1u);
  EXPECT_EQ(workers_[0]->Run(request).tokens, expected);
  EXPECT_EQ(workers_[0]->engine().stats().claimed_blocks, 60u);
  EXPECT_EQ(workers_[0]->engine().stats().awaited_requests, 0u);
}

TEST_F(SingleFlightTest, WithoutItEachWorkerComputesAndNothingIsClaimed) {
  WorkerSetup setup = Setup();
  setup.engine.store.single_flight_wait = absl::ZeroDuration();
  StartWorkers(2, setup);
  const GenerateRequest request = Prompt(5);
  const std::vector<uint32_t> expected = Expected(request);
  const auto first = Submit(*workers_[0], request), second = Submit(*workers_[1], request);
  EXPECT_EQ(ReadToEnd(*first).tokens, expected);
  EXPECT_EQ(ReadToEnd(*second).tokens, expected);
  for (const auto& worker : workers_) EXPECT_EQ(worker->engine().stats().claimed_blocks, 0u);
}

}  // namespace
}  // namespace ibid
