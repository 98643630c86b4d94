// The main invariant where the store, or a limit, refuses: tokens are the same, what can be stored
// is, and the counters say what was not. Numbers in comments are those of the list of failures that
// other systems had.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/integration/equivalence_fixture.h"

namespace ibid {
namespace {

// More salts than namespaces: the least recently used makes room, so that each request finds the
// store, and nothing else changes.
TEST_P(EquivalenceTest, MoreSaltsThanTheLimitTakeTurns) {
  StoreRig store;
  WorkerSetup setup = Setup({store.address()});
  setup.engine.store.salts_max = 2;
  Worker first(setup), second(setup);
  GenerateRequest request = RequestFor(40, 5);
  const std::vector<uint32_t> expected = Expected(request);
  for (int round = 0; round < 2; ++round) {
    for (const std::string salt : {"a", "b", "c", "d"}) {
      request.salt = salt;
      request.ignores_worker_cache = true;
      EXPECT_EQ(first.Run(request).tokens, expected) << salt;
      first.AwaitRest();
      const Outcome outcome = second.Run(request);
      EXPECT_EQ(outcome.tokens, expected) << salt;
      EXPECT_EQ(outcome.finish.usage.fetched_tokens, 39u) << salt;
      second.AwaitRest();
    }
  }
  EXPECT_EQ(first.engine().stats().storeless_requests, 0u);
}

// Namespaces that running requests use stay: one more does without the store, and is counted.
TEST_P(EquivalenceTest, MoreSaltsAtATimeThanTheLimit) {
  StoreRig store;
  WorkerSetup setup = Setup({store.address()});
  setup.engine.store.salts_max = 2;
  setup.engine.store.match_timeout = absl::Seconds(5);
  Worker worker(setup);
  GenerateRequest request = RequestFor(40, 5);
  const std::vector<uint32_t> expected = Expected(request);
  store.proxy().Stall(true);  // two requests wait for it
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (const char* salt : {"a", "b"}) {
    request.salt = salt;
    streams.push_back(*worker.engine().Submit(request));
  }
  AwaitStats(worker.engine(), [](const EngineStats& stats) { return stats.running_requests == 2; });
  request.salt = "c";
  const Outcome without = worker.Run(request);
  EXPECT_EQ(without.tokens, expected);
  EXPECT_EQ(without.finish.store_wait, absl::ZeroDuration());
  EXPECT_EQ(worker.engine().stats().storeless_requests, 1u);
  store.proxy().Stall(false);
  for (const auto& stream : streams) EXPECT_EQ(ReadToEnd(*stream).tokens, expected);
  worker.AwaitRest();
  worker.AwaitReachable();
  EXPECT_EQ(worker.Run(request).tokens, expected);
  EXPECT_EQ(worker.engine().stats().storeless_requests, 1u);
}

// A server whose extents are smaller than a block refuses. That concerns what is placed on it:
// blocks of the other are fetched; and it serves once it comes back with larger ones.
TEST_P(EquivalenceTest, AServerThatRefusesConcernsNoOtherServer) {
  StoreRig good, refusing(/*has_disk=*/false, /*extent_bytes=*/4'096);
  WorkerSetup setup = Setup({good.address(), refusing.address()});
  setup.block_tokens = 64;
  Worker first(setup), second(setup);
  ASSERT_GT(first.engine().layout().PayloadBytes(), 4'096u);
  const auto count_fetched = [&] {
    size_t count = 0;
    for (uint32_t seed = 0; seed < 10; ++seed) {
      GenerateRequest request = RequestFor(150, seed);
      request.ignores_worker_cache = true;
      const std::vector<uint32_t> expected = Expected(request);
      EXPECT_EQ(first.Run(request).tokens, expected) << seed;
      first.AwaitRest();
      const Outcome other = second.Run(request);
      EXPECT_EQ(other.tokens, expected) << seed;
      count += other.finish.usage.fetched_tokens == 149;
      second.AwaitRest();
    }
    return count;
  };
  const size_t fetched = count_fetched();
  EXPECT_GT(fetched, 0u);
  EXPECT_LT(fetched, 10u);
  EXPECT_EQ(refusing.server().store().stats().published_blocks, 0u);
  refusing.SetExtentBytes(uint64_t{4} << 20);
  refusing.RestartServer();
  const absl::Time until = absl::Now() + absl::Seconds(20);
  while (count_fetched() < 10) ASSERT_LT(absl::Now(), until) << "it is not used";
}

// The only server refuses: everything is computed, until it comes back with another configuration.
TEST_P(EquivalenceTest, AStoreThatRefusedIsAskedAgain) {
  StoreRig store(/*has_disk=*/false, /*extent_bytes=*/4'096);
  WorkerSetup setup = Setup({store.address()});
  setup.block_tokens = 64;
  setup.engine.store.refused_retry = absl::Milliseconds(50);
  Worker worker(setup);
  GenerateRequest request = RequestFor(150, 1);
  request.ignores_worker_cache = true;
  const std::vector<uint32_t> expected = Expected(request);
  EXPECT_EQ(worker.Run(request).tokens, expected);
  EXPECT_EQ(worker.Run(request).finish.usage.fetched_tokens, 0u);
  store.SetExtentBytes(uint64_t{4} << 20);
  store.RestartServer();
  const absl::Time until = absl::Now() + absl::Seconds(20);
  Outcome outcome;
  do {
    ASSERT_LT(absl::Now(), until) << "the store is not asked again";
    outcome = worker.Run(request);
    EXPECT_EQ(outcome.tokens, expected);
    worker.AwaitRest();
  } while (outcome.finish.usage.fetched_tokens != 149);
}

// Failure 43: what the counter says is what happened, and what did not succeed is not tried without
// end.
TEST_P(EquivalenceTest, AStoreThatIsDownCountsEachBlockOnce) {
  StoreRig store;
  MetricsRegistry metrics;
  WorkerSetup setup = Setup({store.address()});
  setup.block_tokens = 2;
  setup.client_metrics = &metrics;
  setup.engine.store.publish_retry = absl::Hours(1);
  Worker worker(setup);
  store.StopServer();
  store.proxy().Refuse(true);
  store.proxy().CutAll();

  // 91 + 69 tokens have KV: 80 blocks, and the prompt's tail block.
  GenerateRequest request = RequestFor(91, 1, 70);
  EXPECT_EQ(worker.Run(request).tokens, Expected(request));
  worker.AwaitRest();
  EXPECT_EQ(worker.engine().stats().unpublished_blocks, 81u);
  EXPECT_EQ(worker.engine().stats().published_blocks, 0u);
  // Each is offered when it is sealed, unless an offer has failed before, and at the end.
  const std::string text = SerializeMetrics(metrics);
  const std::string name = "\nibid_client_unpublished_blocks_total ";
  ASSERT_NE(text.find(name), std::string::npos) << text;
  EXPECT_LE(std::stoul(text.substr(text.find(name) + name.size())), 2 * 81u);

  // The same blocks again are the same blocks.
  EXPECT_EQ(worker.Run(request).tokens, Expected(request));
  worker.AwaitRest();
  EXPECT_EQ(worker.engine().stats().unpublished_blocks, 81u);

  // A prefill: 20 blocks, and the tail block.
  GenerateRequest prefill = RequestFor(41, 2);
  prefill.kind = RequestKind::kPrefill;
  EXPECT_FALSE(worker.Run(prefill).finish.is_published);
  worker.AwaitRest();
  EXPECT_EQ(worker.engine().stats().unpublished_blocks, 81u + 21u);

  // A store that is there again gets all of it, which is no news for the counter.
  store.StartServer();
  store.proxy().Refuse(false);
  worker.AwaitReachable();
  const absl::Time until = absl::Now() + absl::Seconds(20);
  while (worker.engine().stats().published_blocks < 81) {
    ASSERT_LT(absl::Now(), until) << "the blocks are not published";
    EXPECT_EQ(worker.Run(request).tokens, Expected(request));
    worker.AwaitRest();
  }
  EXPECT_EQ(worker.engine().stats().unpublished_blocks, 81u + 21u);
}

// Failures 22, 24: a store that takes nothing holds up nobody, and pins no more than the limit;
// what was not published is published by the next request that uses it.
TEST_P(EquivalenceTest, AStoreThatTakesNothingPinsNoMoreThanTheLimit) {
  StoreRig store;
  WorkerSetup setup = Setup({store.address()});
  setup.engine.publish_blocks_max = 3;
  setup.engine.store.publish_timeout = absl::Milliseconds(300);
  setup.fetch_timeout = absl::Milliseconds(300);
  Worker first(setup), second(Setup({store.address()}));
  store.proxy().Stall(true);
  for (uint32_t seed = 0; seed < 3; ++seed) {
    const GenerateRequest request = RequestFor(90, seed);
    EXPECT_EQ(first.Run(request).tokens, Expected(request));
    EXPECT_LE(first.engine().stats().publishing_blocks, 3u);
  }
  first.AwaitRest();
  EXPECT_GT(first.engine().stats().unpublished_blocks, 0u);
  store.proxy().Stall(false);
  const GenerateRequest request = RequestFor(90, 1);
  GenerateRequest fetching = request;
  fetching.ignores_worker_cache = true;
  const absl::Time until = absl::Now() + absl::Seconds(20);
  while (second.Run(fetching).finish.usage.fetched_tokens < 80) {
    ASSERT_LT(absl::Now(), until) << "the blocks are not published";
    EXPECT_EQ(first.Run(request).tokens, Expected(request));
    first.AwaitRest();
  }
}

}  // namespace
}  // namespace ibid
