// The main invariant: the tokens of a request are the same bits with the store off, cold, warm,
// failing, restarted, and with prefill and decode on different workers. Numbers in comments are
// those of the list of failures that other systems had.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/equivalence_fixture.h"

namespace ibid {
namespace {

INSTANTIATE_TEST_SUITE_P(Models, EquivalenceTest,
                         testing::Values(ModelCase{"tiny_llama_gqa", KvDtype::kBf16},
                                         ModelCase{"tiny_llama_gqa", KvDtype::kF32},
                                         ModelCase{"tiny_gpt2", KvDtype::kBf16},
                                         ModelCase{"tiny_llama_tied_bf16", KvDtype::kBf16}),
                         CaseName);

// Failure 5: every offset around a block boundary, with a tail block where there is one; 4 and 7 by
// the way.
TEST_P(EquivalenceTest, ColdAndWarmOnTheSameAndOnAnotherWorkerAtEveryOffset) {
  StoreRig store;
  Worker first(Setup({store.address()})), second(Setup({store.address()}));
  for (size_t length = 14; length <= 34; ++length) {
    const GenerateRequest request = RequestFor(length, static_cast<uint32_t>(length));
    const std::vector<uint32_t> expected = Expected(request);
    const Outcome cold = first.Run(request);
    EXPECT_EQ(cold.tokens, expected) << length;
    EXPECT_EQ(cold.finish.usage.computed_tokens, length);
    first.AwaitRest();
    EXPECT_EQ(first.Run(request).tokens, expected) << length;

    // All but the last token, whose logits are needed, come from the store: the tail block, too.
    const Outcome other = second.Run(request);
    EXPECT_EQ(other.tokens, expected) << length;
    EXPECT_EQ(other.finish.usage.fetched_tokens, length - 1);
    EXPECT_EQ(other.finish.usage.computed_tokens, 1u);

    GenerateRequest again = request;
    again.ignores_worker_cache = true;
    const Outcome fetched_again = second.Run(again);
    EXPECT_EQ(fetched_again.tokens, expected) << length;
    EXPECT_EQ(fetched_again.finish.usage.fetched_tokens, length - 1);
  }
  EXPECT_EQ(second.engine().stats().fetch_failures, 0u);
  first.AwaitRest();
  second.AwaitRest();
}

// Blocks are placed in groups of 64; with two servers a chain changes servers there.
TEST_P(EquivalenceTest, AroundTheBoundaryOfAPlacementGroup) {
  StoreRig store_a, store_b;
  WorkerSetup setup = Setup({store_a.address(), store_b.address()});
  setup.block_tokens = 2;
  Worker first(setup), second(setup);
  for (size_t length = 64 * 2 - 3; length <= 64 * 2 + 3; ++length) {
    const GenerateRequest request = RequestFor(length, static_cast<uint32_t>(length));
    const std::vector<uint32_t> expected = Expected(request);
    EXPECT_EQ(first.Run(request).tokens, expected) << length;
    first.AwaitRest();
    const Outcome other = second.Run(request);
    EXPECT_EQ(other.tokens, expected) << length;
    EXPECT_EQ(other.finish.usage.fetched_tokens, length - 1) << length;
    // The rest of a long prompt whose beginning this worker has: the match begins inside of the
    // chain.
    GenerateRequest longer = RequestFor(length + 41, static_cast<uint32_t>(length));
    EXPECT_EQ(longer.prompt[length - 1], request.prompt[length - 1]);
    EXPECT_EQ(first.Run(longer).tokens, Expected(longer)) << length;
    first.AwaitRest();
    const Outcome rest = second.Run(longer);
    EXPECT_EQ(rest.tokens, Expected(longer)) << length;
    EXPECT_EQ(rest.finish.usage.worker_tokens + rest.finish.usage.fetched_tokens, length + 40)
        << length;
  }
}

TEST_P(EquivalenceTest, StoreModesReadAndWriteWhatTheySay) {
  StoreRig store;
  Worker first(Setup({store.address()})), second(Setup({store.address()}));
  const auto run = [&](Worker& worker, StoreMode mode, uint32_t seed) {
    GenerateRequest request = RequestFor(50, seed);
    request.store = mode;
    request.ignores_worker_cache = true;
    const Outcome outcome = worker.Run(request);
    EXPECT_EQ(outcome.tokens, Expected(request));
    worker.AwaitRest();
    return outcome.finish.usage.fetched_tokens;
  };
  EXPECT_EQ(run(first, StoreMode::kOff, 1), 0u);
  EXPECT_EQ(run(first, StoreMode::kReadOnly, 1), 0u);
  EXPECT_EQ(run(second, StoreMode::kReadWrite, 1), 0u);  // nobody has written yet; now somebody has
  EXPECT_EQ(run(first, StoreMode::kOff, 1), 0u);
  EXPECT_EQ(run(first, StoreMode::kWriteOnly, 1), 0u);
  EXPECT_EQ(run(first, StoreMode::kReadOnly, 1), 49u);
}

// Failure 7: what a preempted sequence publishes while it is computed again is what its keys say.
// Each prompt length ends at another place in the chunks of the second time.
TEST_P(EquivalenceTest, APreemptedRequestPublishesOnlyWhatItsKeysSay) {
  StoreRig store;
  WorkerSetup small = Setup({store.address()});
  small.engine.pages_count = 18;
  small.engine.max_batch_tokens = 10;
  small.engine.max_running_requests = 4;
  Worker writer(small), reader(Setup({store.address()}));
  for (const size_t length : {144, 150, 153, 160}) {
    std::vector<std::shared_ptr<TokenStream>> streams;
    std::vector<uint32_t> sequence = RandomTokens(length, static_cast<uint32_t>(length));
    for (GenerateRequest request :
         {Request(RandomTokens(16, 1000 + static_cast<uint32_t>(length)), 220),
          Request(sequence, 80)}) {
      request.store = StoreMode::kWriteOnly;
      request.ignores_worker_cache = true;
      streams.push_back(*writer.engine().Submit(std::move(request)));
    }
    ReadToEnd(*streams[0]);
    const Outcome answer = ReadToEnd(*streams[1]);
    writer.AwaitRest();
    sequence.insert(sequence.end(), answer.tokens.begin(), answer.tokens.end());
    for (size_t count = length - 2; count < sequence.size(); ++count) {
      GenerateRequest again =
          Request({sequence.begin(), sequence.begin() + static_cast<std::ptrdiff_t>(count)}, 3);
      again.store = StoreMode::kReadOnly;
      again.ignores_worker_cache = true;
      ASSERT_EQ(reader.Run(again).tokens, Expected(again))
          << count << " tokens of a prompt of " << length;
    }
  }
  EXPECT_GT(writer.engine().stats().preemptions, 0u);
}

// Failure 14: salts are namespaces.
TEST_P(EquivalenceTest, SaltsShareNothingAndGiveTheSameTokens) {
  StoreRig store;
  Worker first(Setup({store.address()})), second(Setup({store.address()}));
  GenerateRequest request = RequestFor(40, 1);
  request.salt = "tenant-a";
  EXPECT_EQ(first.Run(request).tokens, Expected(request));
  first.AwaitRest();
  EXPECT_EQ(second.Run(request).finish.usage.fetched_tokens, 39u);
  request.salt = "tenant-b";
  const Outcome other = second.Run(request);
  EXPECT_EQ(other.finish.usage.computed_tokens, 40u);
  EXPECT_EQ(other.tokens, Expected(request));
}

// Blocks that were sealed while decoding are found by the next turn of a conversation, on another
// worker.
TEST_P(EquivalenceTest, TheNextTurnFindsWhatWasDecoded) {
  StoreRig store;
  Worker first(Setup({store.address()})), second(Setup({store.address()}));
  GenerateRequest turn = RequestFor(23, 1, 50);
  const Outcome answer = first.Run(turn);
  first.AwaitRest();
  std::vector<uint32_t> conversation = turn.prompt;
  conversation.insert(conversation.end(), answer.tokens.begin(), answer.tokens.end());
  const size_t full = (conversation.size() - 1) / 16 * 16;
  const auto question = RandomTokens(20, 2);
  conversation.insert(conversation.end(), question.begin(), question.end());
  const Outcome next = second.Run(Request(conversation, 10));
  EXPECT_EQ(next.finish.usage.fetched_tokens, full);
  EXPECT_EQ(next.tokens, Expected(Request(conversation, 10)));
}

// Failures 3, 7: the decode worker continues from published blocks, the tail block among them.
TEST_P(EquivalenceTest, PrefillAndDecodeOnDifferentWorkersAtEveryOffset) {
  StoreRig store;
  Worker prefill(Setup({store.address()})), decode(Setup({store.address()}));
  for (size_t length = 14; length <= 34; ++length) {
    GenerateRequest request = RequestFor(length, static_cast<uint32_t>(length), 20);
    const std::vector<uint32_t> expected = Expected(request);
    request.kind = RequestKind::kPrefill;
    const Outcome first = prefill.Run(request);
    ASSERT_EQ(first.tokens.size(), 1u);
    EXPECT_TRUE(first.finish.is_published) << length;
    const NamespaceId ns = MakeNamespaceId(prefill.engine().SpecFor(""));
    const auto chain = MakeChain(ns, request.prompt, 16, /*with_tail=*/true);
    ASSERT_EQ(first.finish.chain.size(), chain.size());
    EXPECT_EQ(first.finish.chain.back(), chain.back().key);

    request.kind = RequestKind::kDecode;
    request.first_token = first.tokens[0];
    const Outcome rest = decode.Run(request);
    EXPECT_EQ(rest.tokens, expected) << length;
    EXPECT_EQ(rest.finish.usage.fetched_tokens, length);
    EXPECT_EQ(rest.finish.usage.computed_tokens, 0u);
  }
  prefill.AwaitRest();
  decode.AwaitRest();
}

TEST_P(EquivalenceTest, DecodeWithoutWhatPrefillPublishedComputesIt) {
  StoreRig store;
  Worker prefill(Setup({store.address()})), decode(Setup({store.address()}));
  GenerateRequest request = RequestFor(37, 3, 20);
  const std::vector<uint32_t> expected = Expected(request);
  request.kind = RequestKind::kPrefill;
  const Outcome first = prefill.Run(request);
  EXPECT_TRUE(first.finish.is_published);
  store.server().store().DropEverything();
  request.kind = RequestKind::kDecode;
  request.first_token = first.tokens[0];
  const Outcome rest = decode.Run(request);
  EXPECT_EQ(rest.tokens, expected);
  EXPECT_EQ(rest.finish.usage.computed_tokens, 37u);
  // A store that is gone: the prefill says that nothing is published, and decode computes.
  store.StopServer();
  store.proxy().Refuse(true);
  store.proxy().CutAll();
  request.kind = RequestKind::kPrefill;
  request.prompt = RandomTokens(37, 99);
  const std::vector<uint32_t> other = Expected(request);
  const Outcome alone = prefill.Run(request);
  EXPECT_FALSE(alone.finish.is_published);
  request.kind = RequestKind::kDecode;
  request.first_token = alone.tokens[0];
  EXPECT_EQ(decode.Run(request).tokens, other);
}

// Failure 3: a block that somebody else is still storing is not stored; if he dies, it never is.
TEST_P(EquivalenceTest, APrefillDoesNotCountOnBlocksThatAnotherIsStoring) {
  StoreRig store;
  WorkerSetup setup = Setup({store.address()});
  setup.engine.store.wait_pending = absl::Milliseconds(50);
  Worker prefill(setup);
  GenerateRequest request = RequestFor(50, 3, 20);
  const std::vector<uint32_t> expected = Expected(request);
  request.kind = RequestKind::kPrefill;
  request.ignores_worker_cache = true;
  const std::vector<BlockKey> chain = prefill.Run(request).finish.chain;
  ASSERT_EQ(chain.size(), 4u);
  prefill.AwaitRest();

  BlockStore& blocks = store.server().store();
  const NamespaceId ns = MakeNamespaceId(prefill.engine().SpecFor(""));
  ASSERT_EQ(blocks.Drop(ns, chain), 4u);
  const SessionId other = *blocks.OpenSession("another worker");
  EXPECT_THAT(*blocks.Offer(other, ns, {&chain[1], 1}), testing::ElementsAre(OfferState::kWanted));
  Outcome outcome = prefill.Run(request);
  EXPECT_EQ(outcome.tokens[0], expected[0]);
  EXPECT_FALSE(outcome.finish.is_published);

  blocks.EndSession(other);
  outcome = prefill.Run(request);
  EXPECT_TRUE(outcome.finish.is_published);
  EXPECT_EQ(blocks.Match({}, ns, chain, {})->matched_count, 4u);
}

// A server that was never there; failures 16, 20: no request waits for it longer than the named
// time.
TEST_P(EquivalenceTest, AStoreThatIsAwayCostsTokensNothing) {
  FaultProxy nowhere;
  WorkerSetup setup = Setup({nowhere.address()});
  setup.waits_until_connected = false;
  setup.fetch_timeout = absl::Milliseconds(400);
  Worker worker(setup);
  for (uint32_t seed = 0; seed < 4; ++seed) {
    const GenerateRequest request = RequestFor(40 + seed, seed);
    const Outcome outcome = worker.Run(request);
    EXPECT_EQ(outcome.tokens, Expected(request));
    EXPECT_LT(outcome.finish.store_wait, absl::Milliseconds(1'500));
  }
  worker.AwaitRest();
}

// Failures 4, 10: the connection breaks in the middle of a fetch, at many places.
TEST_P(EquivalenceTest, AConnectionThatBreaksDuringAFetchAtManyPlaces) {
  StoreRig store;
  Worker first(Setup({store.address()})), second(Setup({store.address()}));
  const GenerateRequest request = RequestFor(150, 1);
  const std::vector<uint32_t> expected = Expected(request);
  EXPECT_EQ(first.Run(request).tokens, expected);
  first.AwaitRest();
  GenerateRequest fetching = request;
  fetching.ignores_worker_cache = true;
  const uint64_t before = store.proxy().bytes_from_server();
  EXPECT_EQ(second.Run(fetching).finish.usage.fetched_tokens, 149u);
  const uint64_t bytes = store.proxy().bytes_from_server() - before;
  uint64_t failures = 0;
  for (int i = 0; i < 12; ++i) {
    second.AwaitReachable();
    store.proxy().CutAfter(1 + bytes * i / 12);
    const Outcome outcome = second.Run(fetching);
    EXPECT_EQ(outcome.tokens, expected) << "cut after " << 1 + bytes * i / 12 << " bytes";
    failures += outcome.finish.usage.fetched_tokens < 149;
    store.proxy().CutAfter(0);
  }
  EXPECT_GT(failures, 0u);
  second.AwaitRest();
}

// Failures 1, 4: bits flip on the wire; what arrives damaged is computed instead.
TEST_P(EquivalenceTest, CorruptBytesOnTheWire) {
  StoreRig store;
  Worker first(Setup({store.address()})), second(Setup({store.address()}));
  const GenerateRequest request = RequestFor(150, 1);
  const std::vector<uint32_t> expected = Expected(request);
  EXPECT_EQ(first.Run(request).tokens, expected);
  first.AwaitRest();
  GenerateRequest fetching = request;
  fetching.ignores_worker_cache = true;
  uint64_t damaged = 0;
  for (uint64_t i = 0; i < 16; ++i) {
    second.AwaitReachable();
    store.proxy().FlipAfter(500 + 1'777 * i, i % 2 == 0 ? 0 : 9'001);
    const Outcome outcome = second.Run(fetching);
    EXPECT_EQ(outcome.tokens, expected) << i;
    damaged += outcome.finish.usage.fetched_tokens < 149;
    store.proxy().FlipAfter(0, 0);
    store.proxy().CutAll();
  }
  EXPECT_GT(damaged, 0u);
  second.AwaitRest();
}

// A black hole: failures 16, 18. The request goes on when its time for the store is up, and later
// ones use the store again.
TEST_P(EquivalenceTest, AStoreThatStallsHoldsARequestNoLongerThanItsTimeout) {
  StoreRig store;
  WorkerSetup setup = Setup({store.address()});
  Worker first(setup);
  setup.fetch_timeout = absl::Milliseconds(300);
  Worker second(setup);
  const GenerateRequest request = RequestFor(100, 1);
  const std::vector<uint32_t> expected = Expected(request);
  first.Run(request);
  first.AwaitRest();
  GenerateRequest fetching = request;
  fetching.ignores_worker_cache = true;
  store.proxy().Stall(true);
  const Outcome stalled = second.Run(fetching);
  EXPECT_EQ(stalled.tokens, expected);
  EXPECT_LT(stalled.finish.store_wait, absl::Seconds(2));
  store.proxy().Stall(false);
  const absl::Time until = absl::Now() + absl::Seconds(20);
  while (second.Run(fetching).finish.usage.fetched_tokens != 99) {
    ASSERT_LT(absl::Now(), until) << "the store is not used again";
  }
  second.AwaitRest();
}

// Failures 17, 18, 34: a server that comes back, empty or from its disk.
TEST_P(EquivalenceTest, ARestartedServerServesFromItsDisk) {
  StoreRig store(/*has_disk=*/true);
  Worker first(Setup({store.address()}));
  const GenerateRequest request = RequestFor(77, 1);
  const std::vector<uint32_t> expected = Expected(request);
  EXPECT_EQ(first.Run(request).tokens, expected);
  first.AwaitRest();
  ASSERT_TRUE(store.server().store().FlushToDisk(absl::Seconds(20)));
  store.RestartServer();
  while (store.server().store().stats().is_recovering) absl::SleepFor(absl::Milliseconds(5));
  Worker second(Setup({store.address()}));
  const Outcome outcome = second.Run(request);
  EXPECT_EQ(outcome.tokens, expected);
  EXPECT_EQ(outcome.finish.usage.fetched_tokens, 76u);
}

TEST_P(EquivalenceTest, ARestartedEmptyServerIsFilledAgain) {
  StoreRig store;
  Worker first(Setup({store.address()})), second(Setup({store.address()}));
  const GenerateRequest request = RequestFor(77, 1);
  const std::vector<uint32_t> expected = Expected(request);
  EXPECT_EQ(first.Run(request).tokens, expected);
  first.AwaitRest();
  store.RestartServer();
  EXPECT_EQ(first.Run(request).tokens, expected);  // perhaps before the client has noticed
  first.AwaitReachable();
  // The worker's own pages are published again once it learns that the store has lost them.
  const absl::Time until = absl::Now() + absl::Seconds(20);
  Outcome outcome;
  do {
    ASSERT_LT(absl::Now(), until) << "the store is not filled again";
    EXPECT_EQ(first.Run(RequestFor(77 + 16, 1)).tokens, Expected(RequestFor(77 + 16, 1)));
    first.AwaitRest();
    GenerateRequest fetching = request;
    fetching.ignores_worker_cache = true;
    outcome = second.Run(fetching);
    EXPECT_EQ(outcome.tokens, expected);
  } while (outcome.finish.usage.fetched_tokens < 64);
  second.AwaitRest();
}

// Many requests, few pages, and a network that breaks, stalls and flips bits at random. Failure 28:
// nothing leaks.
TEST_P(EquivalenceTest, ManyRequestsWhileTheNetworkFailsAtRandom) {
  StoreRig store;
  WorkerSetup setup = Setup({store.address()});
  setup.fetch_timeout = absl::Milliseconds(250);
  setup.engine.pages_count = 40;
  setup.engine.max_batch_tokens = 33;
  setup.engine.max_running_requests = 8;
  setup.engine.store.publish_timeout = absl::Milliseconds(500);
  Worker workers[] = {Worker(setup), Worker(setup)};
  std::vector<GenerateRequest> requests;
  std::vector<std::vector<uint32_t>> expected;
  std::mt19937 random(9);
  for (uint32_t i = 0; i < 60; ++i) {
    requests.push_back(RequestFor(10 + random() % 150, i % 9, 1 + random() % 40));
    requests.back().ignores_worker_cache = i % 3 == 0;
    expected.push_back(Expected(requests.back()));
  }
  std::atomic<bool> is_done = false;
  std::thread chaos([&] {
    std::mt19937 chance(4);
    while (!is_done) {
      switch (chance() % 5) {
        case 0:
          store.proxy().CutAll();
          break;
        case 1:
          store.proxy().CutAfter(1 + chance() % 100'000);
          break;
        case 2:
          store.proxy().FlipAfter(1 + chance() % 50'000, 0);
          break;
        case 3:
          store.proxy().Stall(true);
          absl::SleepFor(absl::Milliseconds(chance() % 60));
          store.proxy().Stall(false);
          break;
        case 4:
          absl::SleepFor(absl::Milliseconds(chance() % 100));
          break;
      }
      absl::SleepFor(absl::Milliseconds(chance() % 20));
    }
  });
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (size_t i = 0; i < requests.size(); ++i) {
      streams.push_back(*workers[(i + round) % 2].engine().Submit(requests[i]));
    }
    for (size_t i = 0; i < streams.size(); ++i) {
      EXPECT_EQ(ReadToEnd(*streams[i]).tokens, expected[i])
          << "round " << round << " request " << i;
    }
  }
  is_done = true;
  chaos.join();
  store.proxy().FlipAfter(0, 0);
  store.proxy().CutAfter(0);
  for (Worker& worker : workers) worker.AwaitRest();
}

// The model of the demo, with blocks of the usual size, around one whole placement group; and a
// stall in mid-fetch.
TEST(DemoEquivalenceTest, AroundOneGroupOfSixtyFourBlocksAndAStallInMidFetch) {
  StoreRig store;
  WorkerSetup setup;
  setup.model = IBID_SOURCE_DIR "/models/demo";
  setup.engine.pages_count = 300;
  Worker reference(setup);
  setup.servers = {store.address()};
  Worker first(setup);
  setup.fetch_timeout = absl::Milliseconds(500);
  Worker second(setup);
  const auto request_of = [](size_t length, uint32_t seed) {
    GenerateRequest request = Request(RandomTokens(length, seed, 2'000), 8);
    request.sampling = {0.8f, 0, 0.9f, seed};
    return request;
  };
  for (const size_t length : {64 * 16 - 1, 64 * 16, 64 * 16 + 1}) {
    const GenerateRequest request = request_of(length, 1);
    const std::vector<uint32_t> expected = reference.Run(request).tokens;
    EXPECT_EQ(first.Run(request).tokens, expected) << length;
    first.AwaitRest();
    GenerateRequest fetching = request;
    fetching.ignores_worker_cache = true;
    const Outcome outcome = second.Run(fetching);
    EXPECT_EQ(outcome.tokens, expected) << length;
    EXPECT_EQ(outcome.finish.usage.fetched_tokens, length - 1);

    const uint64_t before = store.proxy().bytes_from_server();
    const auto stream = *second.engine().Submit(fetching);
    const absl::Time until = absl::Now() + absl::Seconds(5);
    while (store.proxy().bytes_from_server() < before + 200'000 && absl::Now() < until)
      std::this_thread::yield();
    store.proxy().Stall(true);
    const Outcome stalled = ReadToEnd(*stream);
    EXPECT_EQ(stalled.tokens, expected) << length;
    EXPECT_LT(stalled.finish.store_wait, absl::Seconds(2));
    store.proxy().Stall(false);
    second.AwaitRest();
    second.AwaitReachable();
  }
}

}  // namespace
}  // namespace ibid
