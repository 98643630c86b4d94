// Thousands of random calls from one thread, with a manual clock, against a model that knows what
// must hold at each step. Prints the seed of a failure; `--seed N` replays it, `--steps N` sets its
// length.
#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <set>

#include "absl/strings/numbers.h"
#include "cache_server/tenant_table.h"
#include "core/host_memory.h"
#include "tests/cache_server/store/faulty_extent_io.h"
#include "tests/cache_server/store/store_harness.h"

namespace ibid {
namespace {

uint32_t g_seed = 0;  // 0: the fixed set
int g_steps = 1500;

// What is known for certain of a store without knowing its policy.
struct Model {
  std::set<BlockKey> ever_published;  // and not dropped since: may be there
  std::map<BlockKey, int> leased;     // must be there
  uint64_t acquired = 0;
  std::map<BlockKey, uint64_t> published_as;  // the how-manieth publish of all
  uint64_t published_count = 0;

  void Publish(const BlockKey& key) {
    ever_published.insert(key);
    published_as[key] = ++published_count;
  }
};

class Simulation {
 public:
  Simulation(uint32_t seed, bool has_disk)
      : random_(seed), has_disk_(has_disk), has_quotas_(random_() % 2 == 0) {
    options_.host_bytes_max = 48 * 4096;
    options_.extent_bytes = 12 * 4096;
    options_.leased_percent_per_session_max = 100;
    options_.clock = &clock_;
    options_.has_maintenance_thread = false;
    options_.disk_write = random_() % 2 == 0 ? DiskWriteMode::kThrough : DiskWriteMode::kOnDemotion;
    if (has_disk) {
      options_.disk_directory = temp_.path() + "/tier";
      options_.disk_bytes_max = 160 * 4096 + options_.disk_directory_bytes_reserve;
      options_.wrap_extent_io = [this](std::unique_ptr<ExtentIo> real) {
        return std::make_unique<FaultyExtentIo>(std::move(real), faults_);
      };
    }
    for (const uint32_t pages : {1u, 3u, 4u}) {
      const NamespaceId ns = NamespaceOf("pages " + std::to_string(pages));
      for (uint32_t chain = 0; chain < 5; ++chain)
        chains_.push_back({ns, ChainOf(ns, chain + 1, 9, chain % 2 * 3)});
      namespaces_.push_back({ns, LayoutOfPages(pages)});
    }
    Open();
  }

  void Run(int steps) {
    for (int step = 0; step < steps && !::testing::Test::HasFatalFailure(); ++step) {
      step_ = step;
      Step();
      CheckInvariants();
    }
    EndEverything();
  }

 private:
  struct Chain {
    NamespaceId ns;
    std::vector<ChainLink> links;
  };
  struct Writer {
    SessionId session;
    NamespaceId ns;
    ChainLink link;
    Reservation reservation;
  };
  struct HeldLease {
    SessionId session;
    LeaseId id;
    std::vector<BlockKey> keys;
    absl::Time until;
  };

  // What a failure prints: the story of the block.
  void Note(const BlockKey& key, const std::string& what) {
    history_[key] += std::to_string(step_) + " " + what + "; ";
  }
  void NoteAll(const std::string& what) {
    for (const Chain& chain : chains_) {
      for (const ChainLink& link : chain.links) Note(link.key, what);
    }
  }

  static std::string TenantOf(size_t namespace_index) {
    return namespace_index == 0 ? "" : "tenant " + std::to_string(namespace_index);
  }

  // Quotas of bytes come, change and go.
  void ChangeQuota() {
    TenantQuota quota;
    if (Below(3) > 0) quota.host_bytes_max = (8 + Below(40)) * 4096;
    if (Below(3) > 0) quota.disk_bytes_max = Below(150) * 4096;
    const std::string tenant = TenantOf(Below(namespaces_.size()));
    ASSERT_TRUE(store_->tenants().SetQuota(tenant, quota).ok());
    NoteAll("quota");
    store_->RunMaintenance();
  }

  uint32_t Below(size_t n) { return static_cast<uint32_t>(random_() % n); }
  const Chain& AnyChain() { return chains_[Below(chains_.size())]; }

  void Open() {
    auto store = BlockStore::Open(options_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    for (size_t i = 0; i < namespaces_.size(); ++i) {
      const auto& [ns, layout] = namespaces_[i];
      ASSERT_TRUE(store_->OpenNamespace(ns, layout, TenantOf(i)).ok());
    }
    if (has_quotas_) ChangeQuota();
    sessions_.clear();
    for (int i = 0; i < 3; ++i) sessions_.push_back(*store_->OpenSession("s"));
    model_.acquired = 0;
  }

  void Step() {
    switch (Below(16)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return PublishSome();
      case 4:
        return ReserveOne();
      case 5:
        return FinishOne();
      case 6:
      case 7:
        return AcquireSome();
      case 8:
        return LeaseOne();
      case 9:
        return ReleaseOne();
      case 10:
        return OfferSome();
      case 11:
        return EndOneSession();
      case 12:
        return DropSome();
      case 13:
        return PassTime();
      case 14:
        return ChangeTheDisk();
      default:
        if (has_disk_ && Below(12) == 0) return Restart();
    }
  }

  void PublishSome() {
    const Chain& chain = AnyChain();
    size_t at = MatchedCount(*store_, chain.ns, KeysOf(chain.links));
    for (uint32_t i = 0; i <= Below(4) && at < chain.links.size(); ++i, ++at) {
      const absl::Status status = Publish(*store_, sessions_[Below(sessions_.size())], chain.ns,
                                          chain.links[at], Below(8) == 0);
      // Unavailable: durable, and the disk cannot.
      if (status.ok() || absl::IsUnavailable(status)) model_.Publish(chain.links[at].key);
      Note(chain.links[at].key, "publish: " + std::string(absl::StatusCodeToString(status.code())));
      ASSERT_TRUE(status.ok() || absl::IsAlreadyExists(status) ||
                  absl::IsResourceExhausted(status) || absl::IsUnavailable(status))
          << status;
    }
  }

  void ReserveOne() {
    if (writers_.size() >= 4) return;
    const Chain& chain = AnyChain();
    const ChainLink& link = chain.links[Below(chain.links.size())];
    const SessionId session = sessions_[Below(sessions_.size())];
    auto reservation = store_->Reserve(session, chain.ns, link);
    if (!reservation.ok()) return;
    Fill(*reservation, link.key);
    writers_.push_back({session, chain.ns, link, *std::move(reservation)});
  }

  void FinishOne() {
    if (writers_.empty()) return;
    const size_t at = Below(writers_.size());
    Writer writer = std::move(writers_[at]);
    writers_.erase(writers_.begin() + static_cast<int>(at));
    if (Below(3) == 0) return;  // dropped
    if (Below(6) == 0) {
      absl::Status status;
      std::move(writer.reservation).Commit(1, 2, false, [&](absl::Status result) {
        status = result;
      });
      ASSERT_TRUE(absl::IsDataLoss(status)) << status;
      return;
    }
    const absl::Status status = CommitFilled(std::move(writer.reservation), writer.link.key);
    ASSERT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << status;
    if (status.ok()) model_.Publish(writer.link.key);
    Note(writer.link.key, "commit: " + std::string(absl::StatusCodeToString(status.code())));
  }

  void AcquireSome() {
    const Chain& chain = AnyChain();
    const BlockKey& key = chain.links[Below(chain.links.size())].key;
    auto ref = AcquireNow(*store_, chain.ns, key);
    ++model_.acquired;
    if (!ref.ok()) {
      ASSERT_TRUE(absl::IsNotFound(ref.status()) || absl::IsDataLoss(ref.status()) ||
                  absl::IsUnavailable(ref.status()))
          << ref.status();
      return;
    }
    Note(key, "acquired from " + std::string(ref->tier()));
    ASSERT_TRUE(model_.ever_published.contains(key))
        << "step " << step_
        << ": a block that was never published, or was dropped: " << history_[key];
    ASSERT_TRUE(HasRightBytes(*ref, key));
    if (Below(4) == 0 && readers_.size() < 3) readers_.push_back({key, *std::move(ref)});
    if (Below(4) == 0 && !readers_.empty()) readers_.erase(readers_.begin());
  }

  void LeaseOne() {
    if (leases_.size() >= 4) return;
    faults_->reads_to_flip = 0;  // a leased block that turns out corrupt may go; here none is
    const Chain& chain = AnyChain();
    const SessionId session = sessions_[Below(sessions_.size())];
    const auto match = store_->Match(session, chain.ns, KeysOf(chain.links), {.lease = true});
    ASSERT_TRUE(match.ok()) << match.status();
    ASSERT_EQ(match->host_blocks + match->disk_blocks, match->matched_count);
    ASSERT_EQ(match->lease.value != 0, match->matched_count > 0);
    if (match->matched_count == 0) return;
    HeldLease lease{session, match->lease, {}, clock_.Now() + options_.lease_ttl};
    for (uint32_t i = 0; i < match->matched_count; ++i) lease.keys.push_back(chain.links[i].key);
    leases_.push_back(lease);
  }

  void ReleaseOne() {
    if (leases_.empty()) return;
    const size_t at = Below(leases_.size());
    store_->ReleaseLeases(leases_[at].session, {&leases_[at].id, 1});
    if (Below(3) == 0) store_->ReleaseLeases(leases_[at].session, {&leases_[at].id, 1});
    leases_.erase(leases_.begin() + static_cast<int>(at));
  }

  void OfferSome() {
    const Chain& chain = AnyChain();
    const auto states =
        store_->Offer(sessions_[Below(sessions_.size())], chain.ns, KeysOf(chain.links));
    ASSERT_TRUE(states.ok()) << states.status();
    for (size_t i = 0; i < states->size(); ++i) {
      if ((*states)[i] == OfferState::kPresent) {
        ASSERT_TRUE(model_.ever_published.contains(chain.links[i].key))
            << "step " << step_ << ": " << history_[chain.links[i].key];
      }
    }
  }

  void EndOneSession() {
    const size_t at = Below(sessions_.size());
    store_->EndSession(sessions_[at]);
    std::erase_if(leases_, [&](const HeldLease& lease) { return lease.session == sessions_[at]; });
    sessions_[at] = *store_->OpenSession("s");
  }

  void DropSome() {
    const Chain& chain = AnyChain();
    std::vector<BlockKey> keys;
    std::string what = store_->stats().is_recovering ? "recovering, " : "";
    if (Below(10) == 0) {
      what += "namespace dropped: " + std::to_string(store_->Drop(chain.ns, {}));
      for (const Chain& each : chains_) {
        if (each.ns != chain.ns) continue;
        for (const ChainLink& link : each.links) keys.push_back(link.key);
      }
    } else {
      keys.push_back(chain.links[Below(chain.links.size())].key);
      what += "dropped: " + std::to_string(store_->Drop(chain.ns, keys));
    }
    for (const BlockKey& key : keys) {
      model_.ever_published.erase(key);
      Note(key, what);
      for (HeldLease& lease : leases_) std::erase(lease.keys, key);
    }
  }

  void PassTime() {
    clock_.Advance(absl::Seconds(Below(12)));
    for (const SessionId session : sessions_) ASSERT_TRUE(store_->KeepAlive(session, false).ok());
    store_->RunMaintenance();
    std::erase_if(leases_, [&](const HeldLease& lease) { return lease.until <= clock_.Now(); });
    if (has_quotas_ && Below(3) == 0) ChangeQuota();
    if (Below(6) == 0) LetOneSessionDie();
  }

  // Its client falls silent; those of the others go on.
  void LetOneSessionDie() {
    const size_t at = Below(sessions_.size());
    const absl::Duration most = options_.session_ttl - absl::Seconds(1);
    clock_.Advance(most);
    for (size_t i = 0; i < sessions_.size(); ++i) {
      if (i != at) ASSERT_TRUE(store_->KeepAlive(sessions_[i], false).ok());
    }
    clock_.Advance(absl::Seconds(1) + absl::Seconds(12));
    store_->RunMaintenance();
    ASSERT_TRUE(absl::IsFailedPrecondition(store_->KeepAlive(sessions_[at], false)));
    std::erase_if(leases_, [&](const HeldLease& lease) {
      return lease.session == sessions_[at] || lease.until <= clock_.Now();
    });
    sessions_[at] = *store_->OpenSession("s");
  }

  void ChangeTheDisk() {
    if (!has_disk_) return;
    // A broken disk keeps its removals until it has healed.
    if (TierOf(store_->stats(), "disk").state == "ok" && !faults_->writes_fail) {
      ASSERT_TRUE(store_->FlushToDisk(absl::Seconds(30)));
      CheckTenants();
    }
    if (Below(4) != 0) return;
    faults_->writes_fail = Below(4) == 0;
    NoteAll(faults_->writes_fail ? "writes fail" : "writes work");
    faults_->has_no_space = Below(4) == 0;
    // Readers of leased blocks must find them: reads fail only while nothing is leased.
    if (leases_.empty()) faults_->reads_to_flip = static_cast<int>(Below(2));
  }

  void Restart() {
    NoteAll("restart");
    writers_.clear();
    readers_.clear();
    leases_.clear();
    faults_->writes_fail = faults_->has_no_space = false;
    faults_->reads_to_flip = 0;
    clock_.Advance(absl::Minutes(1));
    store_->RunMaintenance();
    ASSERT_TRUE(store_->FlushToDisk(absl::Seconds(30)));
    store_.reset();
    Open();
    while (store_->stats().is_recovering) std::this_thread::yield();
    // Nothing is in memory: what can be seen is what the disk tier holds.
    const Seen seen = Look();
    ASSERT_EQ(TierOf(store_->stats(), "disk").used_bytes, seen.bytes) << "step " << step_;
    CheckTenants();
  }

  // What the tenants use is what is used. REQUIRES: no block is on its way to disk or from it.
  void CheckTenants() {
    uint64_t host_bytes = 0, disk_bytes = 0;
    for (const TenantInfo& tenant : store_->Tenants()) {
      host_bytes += tenant.host_used_bytes;
      disk_bytes += tenant.disk_used_bytes;
    }
    ASSERT_EQ(host_bytes, TierOf(store_->stats(), "host").used_bytes) << "step " << step_;
    ASSERT_EQ(disk_bytes, TierOf(store_->stats(), "disk").used_bytes) << "step " << step_;
  }

  // Nobody comes to use more than his quota; who did when it was set uses no more than before.
  void CheckQuotas() {
    for (const TenantInfo& tenant : store_->Tenants()) {
      uint64_t& before = host_used_before_[tenant.name];
      ASSERT_LE(tenant.host_used_bytes, std::max(tenant.quota.host_bytes_max, before))
          << "step " << step_ << " tenant " << tenant.name;
      before = tenant.host_used_bytes;
    }
  }

  // The blocks that can be seen, found by probes that change nothing.
  struct Seen {
    std::set<BlockKey> keys;
    uint64_t bytes = 0;  // of their slots
  };
  Seen Look() {
    Seen seen;
    for (const Chain& chain : chains_) {
      for (const ChainLink& link : chain.links) {
        if (seen.keys.contains(link.key) || MatchedCount(*store_, chain.ns, {link.key}) == 0) {
          continue;
        }
        seen.keys.insert(link.key);
        seen.bytes += SlotBytesOf(chain.ns);
      }
    }
    return seen;
  }
  uint64_t SlotBytesOf(const NamespaceId& ns) const {
    for (const auto& [each, layout] : namespaces_) {
      if (each == ns) return RoundUp(layout.PayloadBytes(), kPageBytes);
    }
    return 0;
  }

  // What can be seen was committed and not dropped; and the store itself made no hole in a prefix:
  // a block that went while its child stayed was dropped by request, or came after the child did,
  // in the place of one that was dropped while somebody held it.
  void CheckVisible(const BlockStoreStats& stats) {
    const Seen seen = Look();
    for (const BlockKey& key : seen.keys) {
      ASSERT_TRUE(model_.ever_published.contains(key)) << "step " << step_ << ": " << history_[key];
    }
    if (has_disk_) return;  // there a chain longer than the host tier may pass through it
    for (const Chain& chain : chains_) {
      for (size_t i = 0; i + 1 < chain.links.size(); ++i) {
        const BlockKey& key = chain.links[i].key;
        const BlockKey& child = chain.links[i + 1].key;
        const bool is_hole = seen_before_.contains(key) && !seen.keys.contains(key) &&
                             seen_before_.contains(child) && seen.keys.contains(child);
        ASSERT_FALSE(is_hole && model_.ever_published.contains(key) &&
                     model_.published_as.at(key) < model_.published_as.at(child))
            << "step " << step_ << " position " << i << ": " << history_[key];
      }
    }
    uint64_t written_bytes = 0;
    for (const Writer& writer : writers_) written_bytes += SlotBytesOf(writer.ns);
    ASSERT_GE(TierOf(stats, "host").used_bytes, seen.bytes) << "step " << step_;
    // Else a block that was dropped or doomed may keep its slot for those who hold it.
    if (leases_.empty() && readers_.empty()) {
      ASSERT_EQ(TierOf(stats, "host").used_bytes, seen.bytes + written_bytes) << "step " << step_;
    }
    seen_before_ = seen.keys;
  }

  void CheckInvariants() {
    const BlockStoreStats stats = store_->stats();
    ASSERT_EQ(stats.requested_blocks, model_.acquired) << "step " << step_;
    ASSERT_EQ(stats.requested_blocks,
              stats.missed_blocks + TierOf(stats, "host").hits + TierOf(stats, "disk").hits);
    ASSERT_LE(TierOf(stats, "host").used_bytes, options_.host_bytes_max);
    ASSERT_LE(TierOf(stats, "disk").used_bytes, options_.disk_bytes_max);
    ASSERT_LE(TierOf(stats, "disk").allocated_bytes + TierOf(stats, "disk").directory_bytes,
              options_.disk_bytes_max);
    if (leases_.empty() && readers_.empty()) {
      ASSERT_EQ(stats.pinned_bytes, 0u) << "step " << step_;
    }
    CheckVisible(stats);
    if (!has_disk_) CheckTenants();
    if (!has_disk_) CheckQuotas();
    ASSERT_EQ(stats.leases, leases_.size()) << "step " << step_;
    for (const auto& [key, ref] : readers_)
      ASSERT_TRUE(HasRightBytes(ref, key)) << "step " << step_;
    for (const HeldLease& lease : leases_) {
      ASSERT_TRUE(store_->CheckLease(lease.session, lease.id).ok()) << "step " << step_;
      for (const BlockKey& key : lease.keys) {
        const auto ns = std::find_if(chains_.begin(), chains_.end(), [&](const Chain& chain) {
          return std::any_of(chain.links.begin(), chain.links.end(),
                             [&](const ChainLink& link) { return link.key == key; });
        });
        ASSERT_EQ(MatchedCount(*store_, ns->ns, {key}), 1u)
            << "step " << step_ << ": a leased block is gone";
      }
    }
  }

  void EndEverything() {
    writers_.clear();
    readers_.clear();
    leases_.clear();
    for (const SessionId session : sessions_) store_->EndSession(session);
    faults_->writes_fail = faults_->has_no_space = false;
    clock_.Advance(absl::Minutes(1));
    store_->RunMaintenance();
    ASSERT_TRUE(store_->FlushToDisk(absl::Seconds(30)));
    const BlockStoreStats stats = store_->stats();
    EXPECT_EQ(stats.pinned_bytes, 0u);
    EXPECT_EQ(stats.leases + stats.reservations + stats.sessions, 0u);
    store_->DropEverything();
    ASSERT_TRUE(store_->FlushToDisk(absl::Seconds(30)));
    for (const BlockTierStats& tier : store_->stats().tiers) {
      EXPECT_EQ(tier.used_bytes, 0u) << tier.tier;
      EXPECT_EQ(tier.blocks, 0u) << tier.tier;
    }
    CheckTenants();
  }

  std::mt19937 random_;
  const bool has_disk_;
  const bool has_quotas_;
  TempDir temp_;
  ManualClock clock_;
  std::shared_ptr<DiskFaults> faults_ = std::make_shared<DiskFaults>();
  BlockStoreOptions options_;
  std::vector<std::pair<NamespaceId, KvLayout>> namespaces_;
  std::vector<Chain> chains_;
  std::unique_ptr<BlockStore> store_;
  std::vector<SessionId> sessions_;
  std::vector<Writer> writers_;
  std::vector<std::pair<BlockKey, BlockRef>> readers_;
  std::vector<HeldLease> leases_;
  Model model_;
  std::set<BlockKey> seen_before_;  // at the step before
  std::map<BlockKey, std::string> history_;
  std::map<std::string, uint64_t> host_used_before_;  // by tenant
  int step_ = 0;
};

void RunSeeds(bool has_disk, uint32_t seeds_count) {
  const uint32_t first = g_seed != 0 ? g_seed : 1;
  const uint32_t last = g_seed != 0 ? g_seed : seeds_count;
  for (uint32_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("--seed " + std::to_string(seed));
    std::printf("seed %u\n", seed);
    std::fflush(stdout);
    Simulation(seed, has_disk).Run(g_steps);
    if (::testing::Test::HasFailure()) {
      std::printf("the failing seed is %u: replay with --seed %u\n", seed, seed);
      return;
    }
  }
}

TEST(BlockStoreSimulation, HostTierKeepsItsPromises) { RunSeeds(/*has_disk=*/false, 30); }
TEST(BlockStoreSimulation, BothTiersKeepTheirPromisesWithAFaultyDisk) {
  RunSeeds(/*has_disk=*/true, 12);
}

}  // namespace
}  // namespace ibid

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i + 1 < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--seed") (void)absl::SimpleAtoi(argv[i + 1], &ibid::g_seed);
    if (flag == "--steps") (void)absl::SimpleAtoi(argv[i + 1], &ibid::g_steps);
  }
  return RUN_ALL_TESTS();
}
