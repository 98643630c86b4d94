// Many threads at once on a small store: publish, claim, match, lease, acquire, drop, pin, verify,
// flush, end sessions, beside one that watches. Made for ThreadSanitizer; the bytes of every block
// that anybody reads are checked. `--seconds N` makes each case a soak of that length.
#include <atomic>
#include <random>
#include <thread>

#include "absl/strings/numbers.h"
#include "cache_server/block_watch.h"
#include "cache_server/gpu_tier.h"
#include "cache_server/tenant_table.h"
#include "core/device_memory.h"
#include "tests/cache_server/store/store_harness.h"

namespace ibid {
namespace {

int g_seconds = 0;  // 0: a fixed number of steps
constexpr int kThreads = 6;
constexpr int kStepsPerThread = 400;

class Stress {
 public:
  explicit Stress(BlockStoreOptions options, bool has_quotas = false)
      : store_(*BlockStore::Open(std::move(options))), has_quotas_(has_quotas) {
    for (const uint32_t pages : {1u, 4u}) {
      const NamespaceId ns = NamespaceOf("pages " + std::to_string(pages));
      EXPECT_TRUE(store_->OpenNamespace(ns, LayoutOfPages(pages), TenantOf(pages)).ok());
      for (uint32_t seed = 1; seed <= 6; ++seed)
        chains_.push_back({ns, ChainOf(ns, seed, 10, seed % 2 * 4)});
    }
  }

  void Run() {
    // Before there is anything to see: a thread may start late.
    std::unique_ptr<BlockWatch> watch = *store_->Watch({});
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i)
      threads.emplace_back([this, i] { Work(static_cast<uint32_t>(i)); });
    std::atomic<bool> is_over{false};
    std::thread watcher([&] { Watch(std::move(watch), is_over); });
    for (std::thread& thread : threads) thread.join();
    is_over = true;
    watcher.join();
    EXPECT_GT(events_, 0);
    EXPECT_GT(verified_, 0);
    for (const PinInfo& pin : store_->Pins()) EXPECT_TRUE(store_->Unpin(pin.id).ok());
    EXPECT_TRUE(store_->FlushToDisk(absl::Seconds(60)));
    const BlockStoreStats stats = store_->stats();
    EXPECT_EQ(wrong_, 0);
    EXPECT_EQ(stats.corrupt_blocks, 0u);
    EXPECT_EQ(stats.pinned_bytes, 0u);
    EXPECT_EQ(stats.leases + stats.reservations + stats.sessions, 0u);
    EXPECT_EQ(stats.requested_blocks, static_cast<uint64_t>(acquired_));
    store_->DropEverything();
    EXPECT_TRUE(store_->FlushToDisk(absl::Seconds(60)));
    for (const BlockTierStats& tier : store_->stats().tiers) {
      EXPECT_EQ(tier.used_bytes, 0u) << tier.tier;
      EXPECT_EQ(tier.blocks, 0u) << tier.tier;
    }
    for (const TenantInfo& tenant : store_->Tenants()) {
      EXPECT_EQ(tenant.host_used_bytes + tenant.disk_used_bytes + tenant.gpu_used_bytes, 0u);
    }
  }

 private:
  struct Chain {
    NamespaceId ns;
    std::vector<ChainLink> links;
  };

  static std::string TenantOf(uint32_t pages) { return "tenant " + std::to_string(pages); }

  void ChangeQuota(std::mt19937& random) {
    TenantQuota quota;
    if (random() % 3 > 0) quota.host_bytes_max = (8 + random() % 40) * 4096;
    if (random() % 3 > 0) quota.disk_bytes_max = random() % 100 * 4096;
    if (random() % 3 > 0) quota.gpu_bytes_max = random() % 20 * 4096;
    EXPECT_TRUE(store_->tenants().SetQuota(TenantOf(random() % 2 == 0 ? 1 : 4), quota).ok());
  }

  void Work(uint32_t number) {
    std::mt19937 random(number + 1);
    SessionId session = *store_->OpenSession("stress");
    const absl::Time until = absl::Now() + absl::Seconds(g_seconds);
    for (int step = 0; step < kStepsPerThread || absl::Now() < until; ++step) {
      const Chain& chain = chains_[random() % chains_.size()];
      const std::vector<BlockKey> keys = KeysOf(chain.links);
      switch (random() % 10) {
        case 0:
        case 1:
        case 2: {
          (void)store_->Offer(session, chain.ns, keys);
          for (const ChainLink& link : chain.links)
            (void)Publish(*store_, session, chain.ns, link, random() % 32 == 0);
          break;
        }
        case 3: {
          const auto match = store_->Match(session, chain.ns, keys, {.lease = true});
          if (!match.ok() || match->lease.value == 0) break;
          for (uint32_t i = 0; i < match->matched_count; ++i) ReadOne(chain, keys[i]);
          store_->ReleaseLeases(session, {&match->lease, 1});
          break;
        }
        case 4:
        case 5:
          ReadOne(chain, keys[random() % keys.size()]);
          break;
        case 6:
          if (random() % 4 == 0) {
            store_->Drop(chain.ns, {&keys[random() % keys.size()], 1});
          } else {
            (void)store_->Match({}, chain.ns, keys,
                                {.lease = false, .wait_pending = absl::Milliseconds(1)});
          }
          break;
        case 7: {
          const auto claim = store_->Claim(session, chain.ns, keys);
          if (claim.ok() && random() % 2 == 0) store_->Withdraw(session, chain.ns, keys);
          break;
        }
        case 8:
          Administer(random, chain, keys);
          break;
        default:
          if (random() % 4 == 0) {
            store_->EndSession(session);
            session = *store_->OpenSession("stress");
          } else {
            (void)store_->KeepAlive(session, true);
            (void)store_->stats();
            if (has_quotas_) ChangeQuota(random);
          }
      }
    }
    store_->EndSession(session);
  }

  // What an operator does; seldom, for it is dear.
  void Administer(std::mt19937& random, const Chain& chain, const std::vector<BlockKey>& keys) {
    const PinId id{1 + random() % 3};
    switch (random() % 4) {
      case 0: {
        const auto report = store_->Verify(0, [](const VerifyReport&) { return true; });
        if (!report.ok()) break;
        EXPECT_EQ(report->bad_copies(), 0u);
        ++verified_;
        break;
      }
      case 1:
        (void)store_->Pin(id, chain.ns, keys,
                          {.priority = static_cast<KeepPriority>(1 + random() % 3),
                           .duration = absl::Milliseconds(1 + random() % 200)});
        break;
      case 2:
        (void)store_->Unpin(id);
        break;
      default:
        random() % 2 == 0 ? (void)store_->FlushToDisk(absl::Milliseconds(100))
                          : (void)store_->FlushRemovals(absl::Milliseconds(100));
    }
  }

  // Reads now and then, and again from a snapshot when it was cut off.
  void Watch(std::unique_ptr<BlockWatch> watch, const std::atomic<bool>& is_over) {
    bool is_last = false;
    for (uint64_t last = 0; !is_last;) {
      is_last = is_over;
      last = store_->WaitForEvents(last, absl::Milliseconds(20));
      WatchPiece piece = watch->Next();
      for (; !piece.is_waiting && piece.notice != WatchNotice::kCutOff; piece = watch->Next())
        events_ += static_cast<int64_t>(piece.events.size());
      events_ += static_cast<int64_t>(piece.events.size());
      if (piece.notice != WatchNotice::kCutOff) continue;
      watch.reset();
      watch = *store_->Watch({});
    }
  }

  void ReadOne(const Chain& chain, const BlockKey& key) {
    ++acquired_;
    const auto ref = AcquireNow(*store_, chain.ns, key);
    if (ref.ok() && !HasRightBytes(*ref, key)) ++wrong_;
  }

  std::unique_ptr<BlockStore> store_;
  const bool has_quotas_;
  std::vector<Chain> chains_;
  std::atomic<int> wrong_{0};
  std::atomic<int> acquired_{0};
  std::atomic<int> verified_{0};
  std::atomic<int64_t> events_{0};
};

TEST(BlockStoreStress, ManyThreadsOnASmallHostTier) {
  BlockStoreOptions options;
  options.host_bytes_max = 96 * 4096;
  options.extent_bytes = 16 * 4096;
  Stress(options).Run();
}

TEST(BlockStoreStress, ManyThreadsOnTwoSmallTiers) {
  TempDir temp;
  BlockStoreOptions options;
  options.host_bytes_max = 64 * 4096;
  options.extent_bytes = 16 * 4096;
  options.disk_directory = temp.path() + "/tier";
  options.disk_bytes_max = 192 * 4096 + options.disk_directory_bytes_reserve;
  Stress(options).Run();
}

TEST(BlockStoreStress, ManyThreadsOnThreeTiersWhileQuotasComeAndGo) {
  TempDir temp;
  BlockStoreOptions options;
  options.host_bytes_max = 64 * 4096;
  options.extent_bytes = 16 * 4096;
  options.disk_directory = temp.path() + "/tier";
  options.disk_bytes_max = 192 * 4096 + options.disk_directory_bytes_reserve;
  options.create_gpu_memory = [] {
    return CreateHostDeviceMemory(32 * 4096, GpuTier::kStreamsCount);
  };
  Stress(options, /*has_quotas=*/true).Run();
}

TEST(BlockStoreStress, ManyThreadsThatDemote) {
  TempDir temp;
  BlockStoreOptions options;
  options.host_bytes_max = 64 * 4096;
  options.extent_bytes = 16 * 4096;
  options.disk_directory = temp.path() + "/tier";
  options.disk_bytes_max = 192 * 4096 + options.disk_directory_bytes_reserve;
  options.disk_write = DiskWriteMode::kOnDemotion;
  Stress(options).Run();
}

}  // namespace
}  // namespace ibid

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string(argv[i]) == "--seconds") (void)absl::SimpleAtoi(argv[i + 1], &ibid::g_seconds);
  }
  return RUN_ALL_TESTS();
}
