// Room in the host tier: who leaves, in which order, and what happens when nobody can.
#include <atomic>
#include <random>
#include <thread>

#include "tests/cache_server/store/store_harness.h"

namespace ibid {
namespace {

class RoomTest : public StoreFixture {};

TEST_F(RoomTest, ANewChainPushesOutTheEndOfTheColdestOne) {
  OpenStore(HostOnly(8, 8));
  const auto cold = ChainOf(ns_, 1, 4);
  const auto warm = ChainOf(ns_, 2, 4);
  PublishChain(cold);
  PublishChain(warm);
  PublishChain(ChainOf(ns_, 3, 2));
  EXPECT_EQ(Matched(cold), 2u) << "its last two blocks left";
  EXPECT_EQ(Matched(warm), 4u);
  EXPECT_EQ(Host().evictions, 2u);
}

TEST_F(RoomTest, ASharedPrefixStaysWhileAnyContinuationIsThere) {
  OpenStore(HostOnly(12, 12));
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    for (const ChainLink& link : ChainOf(ns_, seed, 4, /*shared=*/2)) {
      const absl::Status status = PublishOne(link);
      ASSERT_TRUE(status.ok() || absl::IsAlreadyExists(status)) << status;
    }
  }
  PublishChain(ChainOf(ns_, 9, 6));
  const auto chain = ChainOf(ns_, 5, 4, 2);
  const uint32_t matched = Matched(chain);
  EXPECT_GE(matched, 2u) << "the shared blocks are the oldest, and still there";
}

// After any sequence of publishes in chain order, reads and leases no chain has a block behind a
// hole.
TEST_F(RoomTest, PrefixesHaveNoHolesAfterAnyRandomSequence) {
  OpenStore(HostOnly(40, 8));
  std::mt19937 random(7);
  std::vector<std::vector<ChainLink>> chains;
  for (uint32_t seed = 0; seed < 12; ++seed)
    chains.push_back(ChainOf(ns_, seed + 1, 12, seed % 3 * 2));
  std::vector<LeaseId> leases;
  for (int step = 0; step < 3000; ++step) {
    const auto& chain = chains[random() % chains.size()];
    switch (random() % 4) {
      case 0:
      case 1: {  // continue the chain where it ends
        uint32_t at = Matched(chain);
        for (uint32_t i = 0; i < 3 && at < chain.size(); ++i, ++at) {
          const absl::Status status = PublishOne(chain[at]);
          ASSERT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
          if (!status.ok()) break;
        }
        break;
      }
      case 2:
        (void)AcquireOne(chain[random() % chain.size()].key);
        break;
      default:
        if (leases.size() < 2) {
          const auto match = store_->Match(session_, ns_, KeysOf(chain), {.lease = true});
          if (match->lease.value != 0) leases.push_back(match->lease);
        } else {
          store_->ReleaseLeases(session_, leases);
          leases.clear();
        }
    }
    if (step % 50 != 0) continue;
    for (const auto& each : chains) {
      const uint32_t matched = Matched(each);
      for (size_t i = matched; i < each.size(); ++i) {
        ASSERT_EQ(MatchedCount(*store_, ns_, {each[i].key}), 0u)
            << "step " << step << ": a block behind a hole";
      }
    }
  }
  store_->ReleaseLeases(session_, leases);
  EXPECT_EQ(store_->stats().pinned_bytes, 0u);
}

// failures 22
TEST_F(RoomTest, WhenEverythingIsPinnedAReservationIsRefusedAtOnce) {
  OpenStore(HostOnly(8, 8));
  const auto chain = ChainOf(ns_, 1, 8);
  PublishChain(chain);
  const auto match = store_->Match(session_, ns_, KeysOf(chain), {.lease = true});
  ASSERT_EQ(match->matched_count, 8u);
  const auto refused = store_->Reserve(session_, ns_, ChainOf(ns_, 2, 1)[0]);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_NE(std::string(refused.status().message()).find("host_bytes_max"), std::string::npos);
  EXPECT_EQ(store_->stats().rejected_blocks, 1u);
  store_->ReleaseLeases(session_, {&match->lease, 1});
  EXPECT_TRUE(PublishOne(ChainOf(ns_, 2, 1)[0]).ok());
}

TEST_F(RoomTest, BlocksBeingFilledAreNoVictims) {
  OpenStore(HostOnly(4, 4));
  std::vector<Reservation> writers;
  const auto chain = ChainOf(ns_, 1, 5);
  for (int i = 0; i < 4; ++i) writers.push_back(*store_->Reserve(session_, ns_, chain[i]));
  EXPECT_TRUE(absl::IsResourceExhausted(store_->Reserve(session_, ns_, chain[4]).status()));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(CommitFilled(std::move(writers[i]), chain[i].key).ok());
  EXPECT_EQ(Matched(chain), 4u);
}

// failures 30
TEST_F(RoomTest, AnotherBlockSizeGetsRoomThoughOldBlocksAreSpreadOverAllExtents) {
  OpenStore(HostOnly(64, 16));
  const NamespaceId big = NamespaceOf("big");
  ASSERT_TRUE(store_->OpenNamespace(big, LayoutOfPages(16)).ok());
  PublishChain(ChainOf(ns_, 1, 64));
  EXPECT_EQ(Host().largest_free_bytes, 0u);
  const auto big_chain = ChainOf(big, 1, 4);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(Publish(*store_, session_, big, big_chain[i]).ok()) << "block " << i;
    EXPECT_TRUE(HasRightBytes(*AcquireNow(*store_, big, big_chain[i].key), big_chain[i].key));
  }
  EXPECT_EQ(MatchedCount(*store_, big, KeysOf(big_chain)), 3u);
  const uint32_t left = Matched(ChainOf(ns_, 1, 64));
  EXPECT_EQ(left, 16u) << "three of four extents were cleared, and no more";
  for (uint32_t i = 0; i < left; ++i) {
    const BlockKey key = ChainOf(ns_, 1, 64)[i].key;
    EXPECT_TRUE(HasRightBytes(*AcquireOne(key), key)) << "a block that was moved kept its bytes";
  }
}

// Who waits while another empties an extent must not go on evicting: moving an extent takes as long
// as evicting hundreds of blocks.
TEST_F(RoomTest, TwoThreadsThatNeedAnExtentAtOnceEvictWhatTheyNeed) {
  constexpr uint32_t kSmallPages = 128, kSlots = 16, kExtents = 16;
  const NamespaceId large_ns = NamespaceOf("large");
  for (int round = 0; round < 8; ++round) {
    BlockStoreOptions options = HostOnly(kExtents * kSlots * kSmallPages, kSlots * kSmallPages);
    options.eviction_policy = "lru";
    OpenStore(options, kSmallPages);
    ASSERT_TRUE(store_->OpenNamespace(large_ns, LayoutOfPages(kSlots * kSmallPages)).ok());
    for (uint32_t i = 0; i < kExtents * kSlots; ++i) {
      auto reservation = store_->Reserve(session_, ns_, ChainOf(ns_, i, 1)[0]);
      ASSERT_TRUE(reservation.ok()) << reservation.status();
      std::move(*reservation).Commit(0, 0, /*durable=*/false, [](const absl::Status&) {});
    }
    // The coldest are spread over all extents.
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      for (uint32_t extent = 0; extent < kExtents; ++extent) {
        ASSERT_TRUE(AcquireOne(ChainOf(ns_, extent * kSlots + slot, 1)[0].key).ok());
      }
    }
    std::atomic<int> ready_count{0};
    absl::StatusOr<Reservation> reservations[2] = {absl::UnknownError(""), absl::UnknownError("")};
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < 2; ++t) {
      threads.emplace_back([&, t] {
        for (++ready_count; ready_count < 2;) std::this_thread::yield();
        reservations[t] = store_->Reserve(session_, large_ns, ChainOf(large_ns, t, 1)[0]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& reservation : reservations) {
      ASSERT_TRUE(reservation.ok()) << reservation.status();
    }
    EXPECT_LT(Host().evictions, 3 * kSlots) << "two extents, and a few that came between";
  }
}

TEST_F(RoomTest, MixedSizesGoOnForeverWithoutFragmentation) {
  OpenStore(HostOnly(96, 16));
  std::mt19937 random(3);
  const uint32_t sizes[] = {1, 3, 5, 16};
  std::vector<NamespaceId> namespaces;
  for (const uint32_t size : sizes) {
    namespaces.push_back(NamespaceOf(std::to_string(size)));
    ASSERT_TRUE(store_->OpenNamespace(namespaces.back(), LayoutOfPages(size)).ok());
  }
  for (uint32_t i = 0; i < 2000; ++i) {
    const NamespaceId& ns = namespaces[random() % 4];
    const ChainLink link = ChainOf(ns, i, 1)[0];
    const absl::Status status = Publish(*store_, session_, ns, link);
    ASSERT_TRUE(status.ok()) << status << " at " << i;
    ASSERT_TRUE(HasRightBytes(*AcquireNow(*store_, ns, link.key), link.key));
  }
  const uint64_t resident = store_->stats().published_blocks - Host().evictions;
  EXPECT_EQ(store_->DropEverything(), resident);
  EXPECT_EQ(Host().used_bytes, 0u);
  EXPECT_EQ(Host().largest_free_bytes, 16 * 4096u);
}

TEST_F(RoomTest, PinnedBlocksOfAnotherSizeAreNeitherMovedNorEvicted) {
  OpenStore(HostOnly(32, 16));
  const NamespaceId big = NamespaceOf("big");
  ASSERT_TRUE(store_->OpenNamespace(big, LayoutOfPages(16)).ok());
  const auto chain = ChainOf(ns_, 1, 32);
  PublishChain(chain);
  // One reader in each extent: no extent can be cleared.
  std::vector<BlockRef> readers;
  readers.push_back(*AcquireOne(chain[0].key));
  readers.push_back(*AcquireOne(chain[31].key));
  const std::byte* const where = readers[0].payload().data();
  EXPECT_TRUE(absl::IsResourceExhausted(Publish(*store_, session_, big, ChainOf(big, 1, 1)[0])));
  EXPECT_EQ(readers[0].payload().data(), where);
  EXPECT_TRUE(HasRightBytes(readers[0], chain[0].key));
  EXPECT_TRUE(HasRightBytes(readers[1], chain[31].key));
  readers.clear();
  EXPECT_TRUE(Publish(*store_, session_, big, ChainOf(big, 1, 1)[0]).ok());
}

}  // namespace
}  // namespace ibid
