// 43: the store's counts against a ground truth that is kept beside it while a random trace is
// replayed, in each combination of tiers. hits of all tiers + misses = requested, always.
#include <future>
#include <map>
#include <random>
#include <set>

#include "cache_server/gpu_tier.h"
#include "cache_server/tenant_table.h"
#include "core/device_memory.h"
#include "core/metrics.h"
#include "tests/cache_server/store/watch_picture.h"

namespace ibid {
namespace {

struct Tiers {
  const char* name;
  size_t host_pages, disk_pages;  // 0: no disk tier
  DiskWriteMode mode;
  bool can_evict;
  size_t gpu_pages = 0;    // 0: no gpu tier
  bool has_quota = false;  // half of each tier, for the one tenant
};

void PrintTo(const Tiers& tiers, std::ostream* out) { *out << tiers.name; }

class MetricsTest : public StoreFixture, public ::testing::WithParamInterface<Tiers> {
 protected:
  static constexpr uint32_t kConversations = 24;

  void Open() {
    const Tiers& tiers = GetParam();
    BlockStoreOptions options = tiers.disk_pages == 0
                                    ? HostOnly(tiers.host_pages, 16)
                                    : WithDisk(tiers.host_pages, tiers.disk_pages, 16);
    options.disk_write = tiers.mode;
    options.metrics = &registry_;
    if (tiers.gpu_pages > 0) {
      options.create_gpu_memory = [&tiers] {
        return CreateHostDeviceMemory(tiers.gpu_pages * 4096, GpuTier::kStreamsCount);
      };
    }
    OpenStore(options);
    WaitForRecovery();
    if (tiers.has_quota) {
      TenantQuota quota;
      quota.host_bytes_max = tiers.host_pages * 4096 / 2;
      quota.disk_bytes_max = tiers.disk_pages * 4096 / 2;
      quota.gpu_bytes_max = tiers.gpu_pages * 4096 / 2;
      ASSERT_TRUE(store_->tenants().SetQuota("", quota).ok());
    }
    watch_ = WatchOf(*store_);
  }

  BlockTierStats Gpu() { return TierOf(store_->stats(), "gpu"); }

  // The one number of a line of /metrics; -1 when there is none.
  double Metric(const std::string& line) {
    store_->RunMaintenance();
    const std::string text = SerializeMetrics(registry_);
    const size_t at = text.find("\n" + line + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + line.size() + 2));
  }

  // Where the block will be read, by what a watcher was told: memory of the host before the
  // device's.
  std::string TierOfBlock(const BlockKey& key) {
    EXPECT_TRUE(picture_.Follow(*watch_));
    const auto block = picture_.blocks.find({ns_, key});
    const TierSet tiers = block == picture_.blocks.end() ? TierSet{} : block->second;
    EXPECT_EQ(MatchedCount(*store_, ns_, {key}), tiers.is_empty() ? 0u : 1u);
    for (const TierName tier : {TierName::kHost, TierName::kGpu, TierName::kDisk}) {
      if (tiers.Has(tier)) return std::string(NameOf(tier));
    }
    return "";
  }

  // What one reader does: match with a lease, fetch what was found and some that was not, publish
  // the rest.
  void Request(const std::vector<ChainLink>& chain) {
    const std::vector<BlockKey> keys = KeysOf(chain);
    asked_keys_ += keys.size();
    for (const BlockKey& key : keys) asked_.insert(key);
    const auto match = store_->Match(session_, ns_, keys, {.lease = true});
    ASSERT_TRUE(match.ok()) << match.status();
    matched_keys_ += match->matched_count;
    const size_t fetched = std::min<size_t>(keys.size(), match->matched_count + random_() % 3);
    for (size_t i = 0; i < fetched; ++i) FetchOne(keys[i], i < match->matched_count);
    store_->ReleaseLeases(session_, {&match->lease, 1});
    PublishMissing(chain, match->matched_count);
  }

  void FetchOne(const BlockKey& key, bool is_leased) {
    ASSERT_TRUE(Flush());  // what was asked for has been copied up
    const std::string expected = TierOfBlock(key);
    const auto ref = AcquireOne(key);
    ++requested_;
    if (is_leased) {
      ASSERT_TRUE(ref.ok()) << "a leased block stays: " << ref.status();
    }
    ASSERT_EQ(ref.ok() ? std::string(ref->tier()) : "", expected);
    if (!GetParam().can_evict) {
      ASSERT_EQ(ref.ok(), published_.count(key) == 1);
    }
    if (ref.ok()) {
      ASSERT_TRUE(HasRightBytes(*ref, key));
    }
    ++served_[expected];
  }

  void PublishMissing(const std::vector<ChainLink>& chain, size_t from) {
    for (size_t i = from; i < chain.size(); ++i) {
      const absl::Status status = PublishOne(chain[i]);
      if (!status.ok()) continue;
      published_.insert(chain[i].key);
      ++published_count_;
    }
    // The model knows no time: what goes to disk has arrived.
    store_->RunMaintenance();
    ASSERT_TRUE(Flush());
  }

  void TearDown() override { watch_.reset(); }

  MetricsRegistry registry_;
  std::unique_ptr<BlockWatch> watch_;
  Picture picture_;
  std::mt19937 random_{7};
  std::map<std::string, uint64_t> served_;  // by tier; "": a miss
  std::set<BlockKey> published_, asked_;
  uint64_t requested_ = 0, published_count_ = 0, asked_keys_ = 0, matched_keys_ = 0;
};

TEST_P(MetricsTest, TheCountsAreThoseOfTheTrace) {
  Open();
  for (int i = 0; i < 300; ++i) {
    Request(ChainOf(ns_, random_() % kConversations, 1 + random_() % 12, /*shared=*/2));
    if (HasFatalFailure()) return;
    const BlockStoreStats stats = store_->stats();
    ASSERT_EQ(Gpu().hits + Host().hits + Disk().hits + stats.missed_blocks, stats.requested_blocks);
  }
  const BlockStoreStats stats = store_->stats();
  EXPECT_EQ(stats.requested_blocks, requested_);
  EXPECT_EQ(stats.missed_blocks, served_[""]);
  EXPECT_EQ(Host().hits, served_["host"]);
  EXPECT_EQ(Disk().hits, served_["disk"]);
  EXPECT_EQ(Gpu().hits, served_["gpu"]);
  EXPECT_EQ(stats.published_blocks, published_count_);
  EXPECT_EQ(stats.asked_keys, asked_keys_);
  EXPECT_EQ(stats.matched_keys, matched_keys_);
  EXPECT_NEAR(stats.distinct_keys / static_cast<double>(asked_.size()), 1, 0.03);
  EXPECT_EQ(stats.pinned_bytes, 0u);
  // A trace that meets every case, or the above says little.
  EXPECT_GT(served_[""], 20u);
  EXPECT_GT(served_["host"], 20u);
  if (GetParam().disk_pages > 0) {
    EXPECT_GT(served_["disk"], 20u);
  }
  if (GetParam().gpu_pages > 0) {
    EXPECT_GT(served_["gpu"], 20u);
    EXPECT_EQ(Metric("ibid_store_hits_total{tier=\"gpu\"}"), served_["gpu"]);
  }

  EXPECT_EQ(Metric("ibid_store_hits_total{tier=\"host\"}"), served_["host"]);
  EXPECT_EQ(Metric("ibid_store_hits_total{tier=\"disk\"}"), served_["disk"]);
  EXPECT_EQ(Metric("ibid_store_misses_total"), served_[""]);
  EXPECT_EQ(Metric("ibid_store_published_blocks_total"), published_count_);
  EXPECT_EQ(Metric("ibid_store_asked_keys_total"), asked_keys_);
  EXPECT_EQ(Metric("ibid_store_matched_keys_total"), matched_keys_);
}

// What came into a tier left it or is there: by the blocks, the evictions and the residence times.
TEST_P(MetricsTest, BlocksThatLeftAndBlocksThatStayAreAllThatCame) {
  Open();
  for (int i = 0; i < 200; ++i) {
    Request(ChainOf(ns_, random_() % kConversations, 1 + random_() % 12, /*shared=*/2));
    if (HasFatalFailure()) return;
    clock_.Advance(absl::Milliseconds(100));
    ASSERT_TRUE(store_->KeepAlive(session_, false).ok());
  }
  for (const std::string tier : {"host", "disk", "gpu"}) {
    const auto of = [&](const std::string& name) {
      return Metric("ibid_store_" + name + "{tier=\"" + tier + "\"}");
    };
    double evicted = 0;
    std::map<std::string, double> evicted_for;
    for (const std::string reason : {"room", "demoted", "lost", "quota", "quota_lost"}) {
      evicted_for[reason] =
          Metric("ibid_store_evictions_total{reason=\"" + reason + "\",tier=\"" + tier + "\"}");
      evicted += evicted_for[reason];
    }
    // At half of the tier a quota is the only reason for anything to leave.
    if (!GetParam().has_quota) {
      EXPECT_EQ(evicted_for["quota"] + evicted_for["quota_lost"], 0);
    } else if (TierOf(store_->stats(), tier).bytes_max > 0) {
      EXPECT_GT(evicted_for["quota"] + evicted_for["quota_lost"], 0) << tier;
      EXPECT_EQ(evicted_for["room"] + evicted_for["lost"], 0) << tier;
    }
    if (tier == "gpu" && GetParam().gpu_pages == 0) continue;
    const BlockTierStats stats = TierOf(store_->stats(), tier);
    EXPECT_EQ(evicted, stats.evictions);
    EXPECT_EQ(of("residence_seconds_count"), evicted) << "nothing was dropped";
    EXPECT_EQ(evicted > 0, of("residence_seconds_sum") > 0);
    EXPECT_EQ(of("blocks"), stats.blocks);
    EXPECT_EQ(of("used_bytes"), stats.used_bytes);
    EXPECT_EQ(of("bytes_max"), stats.bytes_max);
    EXPECT_EQ(of("largest_free_bytes"), stats.largest_free_bytes);
    std::map<std::string, double> came = {
        {"host",
         Metric("ibid_store_published_blocks_total") + Metric("ibid_store_promoted_blocks_total")},
        {"disk", Metric("ibid_store_disk_write_bytes_total") / 4096},
        {"gpu", Metric("ibid_store_gpu_promoted_blocks_total")}};
    if (GetParam().gpu_pages > 0) {  // last copies of the gpu tier are copied down
      came["host"] += Metric("ibid_store_evictions_total{reason=\"demoted\",tier=\"gpu\"}");
    }
    EXPECT_EQ(came[tier], evicted + stats.blocks) << tier;
  }
  EXPECT_EQ(Metric("ibid_store_leases"), 0);
  EXPECT_EQ(Metric("ibid_store_sessions"), 1);
  EXPECT_EQ(Metric("ibid_store_namespaces"), 1);
}

INSTANTIATE_TEST_SUITE_P(
    AllTiers, MetricsTest,
    ::testing::Values(
        Tiers{"HostOnly", 512, 0, DiskWriteMode::kThrough, false},
        Tiers{"TinyHost", 64, 0, DiskWriteMode::kThrough, true},
        Tiers{"HostAndDiskThrough", 64, 512, DiskWriteMode::kThrough, true},
        Tiers{"HostAndDiskOnDemotion", 64, 512, DiskWriteMode::kOnDemotion, true},
        Tiers{"HostAndDiskOnSecondUse", 64, 512, DiskWriteMode::kOnSecondUse, true},
        Tiers{"BothTiny", 48, 96, DiskWriteMode::kThrough, true},
        Tiers{"GpuAndHost", 64, 0, DiskWriteMode::kThrough, true, 48},
        Tiers{"ThreeTiers", 48, 512, DiskWriteMode::kThrough, true, 32},
        Tiers{"ThreeTiersOnDemotion", 48, 512, DiskWriteMode::kOnDemotion, true, 32},
        Tiers{"ThreeTiersOnSecondUse", 48, 512, DiskWriteMode::kOnSecondUse, true, 32},
        Tiers{"HostAtAQuota", 64, 0, DiskWriteMode::kThrough, true, 0, true},
        Tiers{"ThreeTiersAtAQuota", 48, 256, DiskWriteMode::kThrough, true, 32, true}),
    [](const auto& info) { return std::string(info.param.name); });

using StatsTest = StoreFixture;

TEST_F(StatsTest, AProbeIsNobodysDemand) {
  OpenStore(HostOnly(64, 16));
  const auto chain = ChainOf(ns_, 1, 5);
  PublishChain(chain);
  Matched(chain);
  EXPECT_EQ(store_->stats().asked_keys, 0u);
  EXPECT_TRUE(store_->HottestPrefixes(10).empty());
  ASSERT_TRUE(store_->Match(session_, ns_, KeysOf(chain), {.lease = true}).ok());
  EXPECT_EQ(store_->stats().asked_keys, 5u);
  const auto hottest = store_->HottestPrefixes(10);
  ASSERT_EQ(hottest.size(), 1u);
  EXPECT_EQ(hottest[0].first, chain[0].key);
  EXPECT_EQ(hottest[0].ns, ns_);
  EXPECT_EQ(hottest[0].longest_match, 5u);
}

TEST_F(StatsTest, AGaugeSaysHowManyMatchesWait) {
  MetricsRegistry registry;
  BlockStoreOptions options = HostOnly(64, 16);
  options.metrics = &registry;
  OpenStore(options);
  const auto chain = ChainOf(ns_, 1, 3);
  const SessionId other = *store_->OpenSession("other");
  ASSERT_EQ(store_->Claim(other, ns_, KeysOf(chain))->wanted_count, 3u);
  const auto says = [&](const char* line) {
    store_->RunMaintenance();
    return SerializeMetrics(registry).find(line) != std::string::npos;
  };
  EXPECT_TRUE(says("\nibid_store_waiting_matches 0\n"));
  std::promise<absl::StatusOr<MatchResult>> answer;
  const MatchWaitId wait = store_->StartMatch(
      session_, {{ns_, KeysOf(chain)}}, {.wait_pending = absl::Minutes(10)},
      [&](absl::StatusOr<MatchResult> result) { answer.set_value(std::move(result)); });
  EXPECT_TRUE(says("\nibid_store_waiting_matches 1\n"));
  store_->CancelMatch(wait);
  (void)answer.get_future().get();
  EXPECT_TRUE(says("\nibid_store_waiting_matches 0\n"));
  store_.reset();
}

// A request that waits asks again and again; it counts once.
TEST_F(StatsTest, ARepeatedMatchIsNeitherDemandNorAUse) {
  BlockStoreOptions options = HostOnly(2, 16);
  options.eviction_policy = "lru";
  OpenStore(options);
  const auto repeated = ChainOf(ns_, 1, 1), other = ChainOf(ns_, 2, 1), newest = ChainOf(ns_, 3, 1);
  PublishChain(repeated);
  PublishChain(other);
  const auto match = [&](bool is_repeat) {
    const auto result =
        store_->Match(session_, ns_, KeysOf(repeated), {.lease = true, .is_repeat = is_repeat});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->matched_count, 1u);
    store_->ReleaseLeases(session_, {&result->lease, 1});
  };
  match(/*is_repeat=*/true);
  EXPECT_EQ(store_->stats().asked_keys, 0u);
  EXPECT_TRUE(store_->HottestPrefixes(10).empty());
  PublishChain(newest);
  EXPECT_EQ(Matched(repeated), 0u) << "still the least recently used";
  EXPECT_EQ(Matched(other), 1u);

  PublishChain(repeated);  // in place of `other`
  match(/*is_repeat=*/false);
  EXPECT_EQ(store_->stats().asked_keys, 1u);
}

TEST_F(StatsTest, SessionsAreListedByWhatTheyHold) {
  OpenStore(HostOnly(64, 16));
  const auto chain = ChainOf(ns_, 1, 5);
  PublishChain(chain);
  clock_.Advance(absl::Seconds(2));
  const SessionId holder = *store_->OpenSession("holder");
  ASSERT_TRUE(store_->Match(holder, ns_, KeysOf(chain), {.lease = true}).ok());
  clock_.Advance(absl::Seconds(3));
  const auto sessions = store_->Sessions(10);
  ASSERT_EQ(sessions.size(), 2u);
  EXPECT_EQ(sessions[0].client_name, "holder");
  EXPECT_EQ(sessions[0].age, absl::Seconds(3));
  EXPECT_EQ(sessions[0].silence, absl::Seconds(3));
  EXPECT_EQ(sessions[0].leases, 1u);
  EXPECT_EQ(sessions[0].leased_blocks, 5u);
  EXPECT_EQ(sessions[1].client_name, "test");
  EXPECT_EQ(sessions[1].age, absl::Seconds(5));
  EXPECT_EQ(store_->Sessions(1).size(), 1u);
}

TEST_F(StatsTest, TheHistoryIsTenMinutesOfSamples) {
  OpenStore(HostOnly(64, 16));
  const auto chain = ChainOf(ns_, 1, 5);
  store_->RunMaintenance();
  PublishChain(chain);
  clock_.Advance(absl::Seconds(1));
  store_->RunMaintenance();
  EXPECT_EQ(store_->History().size(), 1u) << "not yet due";
  clock_.Advance(absl::Seconds(1));
  store_->RunMaintenance();
  auto history = store_->History();
  ASSERT_EQ(history.size(), 2u);
  EXPECT_EQ(history[0].published_blocks, 0u);
  EXPECT_EQ(history[1].published_blocks, 5u);
  EXPECT_EQ(history[1].at - history[0].at, absl::Seconds(2));
  for (int i = 0; i < 400; ++i) {
    clock_.Advance(absl::Seconds(2));
    store_->RunMaintenance();
  }
  history = store_->History();
  EXPECT_EQ(history.size(), 300u);
  EXPECT_EQ(history.back().at - history.front().at, absl::Seconds(598));
}

}  // namespace
}  // namespace ibid
