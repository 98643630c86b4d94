// One thread, a manual clock and seeded chance: thousands of calls of a BlockStore, and after each
// what must hold whatever its policy is. Steps: block_store_simulation_steps.cc; what is checked:
// block_store_simulation_checks.cc.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cache_server/block_watch.h"
#include "cache_server/tenant_table.h"
#include "tests/cache_server/store/faulty_extent_io.h"
#include "tests/cache_server/store/store_harness.h"

namespace ibid {

struct SimulatedTiers {
  bool has_disk = false;
  bool has_gpu = false;
};

class Simulation {
 public:
  // One seed in three is calm: nothing fails and nobody drops a block. More must hold then.
  Simulation(uint32_t seed, SimulatedTiers tiers);

  void Run(int steps);

 private:
  // What is known for certain of a store without knowing its policy.
  struct Model {
    std::set<BlockKey> ever_published;   // and not dropped since: may be there
    std::set<BlockKey> unsettled_drops;  // dropped; the disk may not have been told yet
    uint64_t acquired = 0;
    std::map<BlockKey, uint64_t> published_as;  // the how-manieth publish of all
    uint64_t published_count = 0;
  };
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
  // Blocks that must stay, of those that were there when they were pinned.
  struct HeldPin {
    std::set<BlockKey> keys;
    absl::Time until;
  };
  // The blocks that can be seen, found by probes that change nothing.
  struct Seen {
    std::set<BlockKey> keys;
    // Of their slots; by the fastest tier that has each.
    uint64_t gpu_bytes = 0, host_bytes = 0, disk_bytes = 0;
    uint64_t bytes() const { return gpu_bytes + host_bytes + disk_bytes; }
  };
  using Usage = std::map<std::string, TenantInfo>;  // by tenant

  void Open();
  uint32_t Below(size_t n) { return static_cast<uint32_t>(random_() % n); }
  const Chain& AnyChain() { return chains_[Below(chains_.size())]; }
  SessionId AnySession() { return sessions_[Below(sessions_.size())]; }
  static std::string TenantOf(size_t namespace_index);
  uint64_t SlotBytesOf(const NamespaceId& ns) const;
  const NamespaceId& NamespaceOfKey(const BlockKey& key) const;
  void OnPublished(const BlockKey& key);
  // What a failure prints: the story of the block.
  void Note(const BlockKey& key, const std::string& what);
  void NoteAll(const std::string& what);
  void NoteEvents();

  void Step();
  void PublishSome();
  void ReserveOne();
  void FinishOne();
  void AcquireSome();
  void LeaseOne();
  void ReleaseOne();
  void OfferSome();
  void EndOneSession();
  void DropSome();
  void PassTime();
  void LetOneSessionDie();  // its client falls silent; those of the others go on
  void ChangeQuota();       // quotas of bytes come, change and go
  void ChangeTheDisk();
  void PinSome();
  void VerifyAll();
  void Restart();
  void HealTheDisk();
  void EndEverything();

  bool HasFaults() const;
  // Waits until nothing is on its way. False when that cannot be: the disk is broken, and keeps
  // its removals until it has healed.
  bool Settle();
  Seen Look();
  void CheckInvariants();
  void CheckCounts(const BlockStoreStats& stats);
  void CheckVisible();
  void CheckHoles(const Seen& seen);
  void CheckHeld();
  void CheckIsThere(const NamespaceId& ns, const BlockKey& key);
  void CheckPins(const Seen& seen);
  void CheckQuotas();
  // REQUIRES of these: it has settled.
  void CheckUsage();
  void CheckTenants();

  std::mt19937 random_;
  const SimulatedTiers tiers_;
  const bool is_calm_;
  const bool has_quotas_;
  TempDir temp_;
  ManualClock clock_;
  std::shared_ptr<DiskFaults> faults_ = std::make_shared<DiskFaults>();
  BlockStoreOptions options_;
  std::vector<std::pair<NamespaceId, KvLayout>> namespaces_;
  std::vector<Chain> chains_;
  std::unique_ptr<BlockStore> store_;
  std::unique_ptr<BlockWatch> watch_;
  std::vector<SessionId> sessions_;
  std::vector<Writer> writers_;
  std::vector<std::pair<BlockKey, BlockRef>> readers_;
  std::vector<HeldLease> leases_;
  std::map<uint64_t, HeldPin> pins_;  // by id: those of kMustStay
  Model model_;
  std::set<BlockKey> seen_before_;  // at the step before
  std::map<BlockKey, std::string> history_;
  Usage used_at_quota_;  // what the tenants used when the quotas were set
  int step_ = 0;
};

}  // namespace ibid
