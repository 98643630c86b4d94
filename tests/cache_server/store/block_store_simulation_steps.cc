// What may happen to a store in the simulation.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache_server/gpu_tier.h"
#include "core/device_memory.h"
#include "core/host_memory.h"
#include "tests/cache_server/store/block_store_simulation.h"
#include "tests/harness/eventually.h"

namespace ibid {

Simulation::Simulation(uint32_t seed, SimulatedTiers tiers)
    : random_(seed), tiers_(tiers), is_calm_(seed % 3 == 0), has_quotas_(random_() % 2 == 0) {
  options_.host_bytes_max = 48 * 4096;
  options_.leased_percent_per_session_max = 100;
  options_.extent_bytes = 12 * 4096;
  options_.clock = &clock_;
  options_.has_maintenance_thread = false;
  options_.disk_write = static_cast<DiskWriteMode>(Below(3));
  if (tiers_.has_disk) {
    options_.disk_directory = temp_.path() + "/tier";
    options_.disk_bytes_max = 160 * 4096 + options_.disk_directory_bytes_reserve;
    options_.wrap_extent_io = [this](std::unique_ptr<ExtentIo> real) {
      return std::make_unique<FaultyExtentIo>(std::move(real), faults_);
    };
  }
  if (tiers_.has_gpu) {
    options_.create_gpu_memory = [] {
      return CreateHostDeviceMemory(24 * 4096, GpuTier::kStreamsCount);
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

void Simulation::Run(int steps) {
  for (int step = 0; step < steps && !::testing::Test::HasFatalFailure(); ++step) {
    step_ = step;
    Step();
    CheckInvariants();
  }
  EndEverything();
}

std::string Simulation::TenantOf(size_t namespace_index) {
  return namespace_index == 0 ? "" : "tenant " + std::to_string(namespace_index);
}

uint64_t Simulation::SlotBytesOf(const NamespaceId& ns) const {
  for (const auto& [each, layout] : namespaces_) {
    if (each == ns) return RoundUp(layout.PayloadBytes(), kPageBytes);
  }
  return 0;
}

const NamespaceId& Simulation::NamespaceOfKey(const BlockKey& key) const {
  return std::find_if(chains_.begin(), chains_.end(),
                      [&](const Chain& chain) {
                        return std::any_of(chain.links.begin(), chain.links.end(),
                                           [&](const ChainLink& link) { return link.key == key; });
                      })
      ->ns;
}

void Simulation::OnPublished(const BlockKey& key) {
  model_.ever_published.insert(key);
  model_.published_as[key] = ++model_.published_count;
}

void Simulation::Note(const BlockKey& key, const std::string& what) {
  history_[key] += std::to_string(step_) + " " + what + "; ";
}

void Simulation::NoteAll(const std::string& what) {
  for (const Chain& chain : chains_) {
    for (const ChainLink& link : chain.links) Note(link.key, what);
  }
}

void Simulation::NoteEvents() {
  static const std::map<BlockChange, std::string> kNames = {{BlockChange::kStored, "stored"},
                                                            {BlockChange::kPromoted, "promoted"},
                                                            {BlockChange::kDemoted, "demoted"},
                                                            {BlockChange::kRemoved, "removed"},
                                                            {BlockChange::kHeld, "held"}};
  while (true) {
    const WatchPiece piece = watch_->Next();
    for (const BlockEvent& event : piece.events)
      Note(event.key, kNames.at(event.change) + " " + std::string(NameOf(event.tier)));
    if (piece.is_waiting) return;
  }
}

void Simulation::Open() {
  auto store = BlockStore::Open(options_);
  ASSERT_TRUE(store.ok()) << store.status();
  store_ = *std::move(store);
  watch_ = *store_->Watch({.has_snapshot = false});
  for (size_t i = 0; i < namespaces_.size(); ++i) {
    const auto& [ns, layout] = namespaces_[i];
    ASSERT_TRUE(store_->OpenNamespace(ns, layout, TenantOf(i)).ok());
  }
  while (store_->stats().is_recovering) std::this_thread::yield();
  if (has_quotas_) ChangeQuota();
  sessions_.clear();
  for (int i = 0; i < 3; ++i) sessions_.push_back(*store_->OpenSession("s"));
  model_.acquired = 0;
}

void Simulation::Step() {
  switch (Below(18)) {
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
    case 15:
      return PinSome();
    case 16:
      return VerifyAll();
    default:
      if (tiers_.has_disk && Below(8) == 0) return Restart();
  }
}

void Simulation::PublishSome() {
  const Chain& chain = AnyChain();
  size_t at = MatchedCount(*store_, chain.ns, KeysOf(chain.links));
  for (uint32_t i = 0; i <= Below(4) && at < chain.links.size(); ++i, ++at) {
    const BlockKey& key = chain.links[at].key;
    const absl::Status status =
        Publish(*store_, AnySession(), chain.ns, chain.links[at], Below(8) == 0);
    Note(key, "publish: " + std::string(absl::StatusCodeToString(status.code())));
    // Unavailable: durable, and the disk cannot.
    if (status.ok() || absl::IsUnavailable(status)) {
      OnPublished(key);
      CheckIsThere(chain.ns, key);
      if (::testing::Test::HasFatalFailure()) return;
    }
    ASSERT_TRUE(status.ok() || absl::IsAlreadyExists(status) || absl::IsResourceExhausted(status) ||
                absl::IsUnavailable(status))
        << status;
  }
}

void Simulation::ReserveOne() {
  if (writers_.size() >= 4) return;
  const Chain& chain = AnyChain();
  const ChainLink& link = chain.links[Below(chain.links.size())];
  const SessionId session = AnySession();
  auto reservation = store_->Reserve(session, chain.ns, link);
  if (!reservation.ok()) return;
  Fill(*reservation, link.key);
  writers_.push_back({session, chain.ns, link, *std::move(reservation)});
}

void Simulation::FinishOne() {
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
  const BlockKey& key = writer.link.key;
  const absl::Status status = CommitFilled(std::move(writer.reservation), key);
  ASSERT_TRUE(status.ok() || absl::IsFailedPrecondition(status) || absl::IsAborted(status))
      << status;
  Note(key, "commit: " + std::string(absl::StatusCodeToString(status.code())));
  if (!status.ok()) return;
  OnPublished(key);
  CheckIsThere(writer.ns, key);
}

// Of a block that was committed just now.
void Simulation::CheckIsThere(const NamespaceId& ns, const BlockKey& key) {
  if (MatchedCount(*store_, ns, {key}) == 1) return;
  // Only the gpu tier's thread may have taken its room since, for a block on its way down.
  NoteEvents();
  const std::string at_once = absl::StrCat(step_, " stored host; ", step_, " removed host; ");
  ASSERT_TRUE(tiers_.has_gpu && absl::StrContains(history_[key], at_once))
      << "step " << step_ << ": not there after its commit: " << history_[key];
}

void Simulation::AcquireSome() {
  const Chain& chain = AnyChain();
  const BlockKey& key = chain.links[Below(chain.links.size())].key;
  auto ref = AcquireNow(*store_, chain.ns, key);
  ++model_.acquired;
  if (!ref.ok()) {
    ASSERT_TRUE(absl::IsNotFound(ref.status()) || absl::IsDataLoss(ref.status()) ||
                absl::IsUnavailable(ref.status()))
        << ref.status();
    Note(key, "not acquired: " + ref.status().ToString());
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

void Simulation::LeaseOne() {
  if (leases_.size() >= 4) return;
  faults_->reads_to_flip = 0;  // a leased block that turns out corrupt may go; here none is
  const Chain& chain = AnyChain();
  const SessionId session = AnySession();
  const auto match = store_->Match(session, chain.ns, KeysOf(chain.links), {.lease = true});
  ASSERT_TRUE(match.ok()) << match.status();
  ASSERT_EQ(match->gpu_blocks + match->host_blocks + match->disk_blocks, match->matched_count);
  ASSERT_EQ(match->lease.value != 0, match->matched_count > 0);
  if (match->matched_count == 0) return;
  HeldLease lease{session, match->lease, {}, clock_.Now() + options_.lease_ttl};
  for (uint32_t i = 0; i < match->matched_count; ++i) lease.keys.push_back(chain.links[i].key);
  leases_.push_back(lease);
}

void Simulation::ReleaseOne() {
  if (leases_.empty()) return;
  const size_t at = Below(leases_.size());
  store_->ReleaseLeases(leases_[at].session, {&leases_[at].id, 1});
  if (Below(3) == 0) store_->ReleaseLeases(leases_[at].session, {&leases_[at].id, 1});
  leases_.erase(leases_.begin() + static_cast<int>(at));
}

void Simulation::OfferSome() {
  const Chain& chain = AnyChain();
  const auto states = store_->Offer(AnySession(), chain.ns, KeysOf(chain.links));
  ASSERT_TRUE(states.ok()) << states.status();
  for (size_t i = 0; i < states->size(); ++i) {
    if ((*states)[i] == OfferState::kPresent) {
      ASSERT_TRUE(model_.ever_published.contains(chain.links[i].key))
          << "step " << step_ << ": " << history_[chain.links[i].key];
    }
  }
}

void Simulation::EndOneSession() {
  const size_t at = Below(sessions_.size());
  store_->EndSession(sessions_[at]);
  std::erase_if(leases_, [&](const HeldLease& lease) { return lease.session == sessions_[at]; });
  sessions_[at] = *store_->OpenSession("s");
}

void Simulation::DropSome() {
  if (is_calm_) return;
  const Chain& chain = AnyChain();
  std::vector<BlockKey> keys;
  std::string what;
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
    if (model_.ever_published.erase(key) > 0) model_.unsettled_drops.insert(key);
    Note(key, what);
    for (HeldLease& lease : leases_) std::erase(lease.keys, key);
    for (auto& [id, pin] : pins_) pin.keys.erase(key);
  }
}

void Simulation::PassTime() {
  clock_.Advance(absl::Seconds(Below(12)));
  for (const SessionId session : sessions_) ASSERT_TRUE(store_->KeepAlive(session, false).ok());
  store_->RunMaintenance();
  std::erase_if(leases_, [&](const HeldLease& lease) { return lease.until <= clock_.Now(); });
  if (has_quotas_ && Below(3) == 0) ChangeQuota();
  if (Below(6) == 0) LetOneSessionDie();
}

void Simulation::LetOneSessionDie() {
  const size_t at = Below(sessions_.size());
  const absl::Duration most = options_.session_ttl - absl::Seconds(1);
  clock_.Advance(most);
  for (size_t i = 0; i < sessions_.size(); ++i) {
    if (i == at) continue;
    ASSERT_TRUE(store_->KeepAlive(sessions_[i], false).ok());
  }
  clock_.Advance(absl::Seconds(1) + absl::Seconds(12));
  store_->RunMaintenance();
  ASSERT_TRUE(absl::IsFailedPrecondition(store_->KeepAlive(sessions_[at], false)));
  std::erase_if(leases_, [&](const HeldLease& lease) {
    return lease.session == sessions_[at] || lease.until <= clock_.Now();
  });
  sessions_[at] = *store_->OpenSession("s");
}

void Simulation::ChangeQuota() {
  TenantQuota quota;
  if (Below(3) > 0) quota.host_bytes_max = (8 + Below(40)) * 4096;
  if (Below(3) > 0) quota.disk_bytes_max = Below(150) * 4096;
  if (Below(3) > 0) quota.gpu_bytes_max = Below(24) * 4096;
  const std::string tenant = TenantOf(Below(namespaces_.size()));
  Settle();
  for (const TenantInfo& each : store_->Tenants()) used_at_quota_[each.name] = each;
  ASSERT_TRUE(store_->tenants().SetQuota(tenant, quota).ok());
  NoteAll("quota");
  store_->RunMaintenance();
}

void Simulation::ChangeTheDisk() {
  if (!tiers_.has_disk || is_calm_ || Below(4) != 0) return;
  faults_->writes_fail = Below(4) == 0;
  NoteAll(faults_->writes_fail ? "writes fail" : "writes work");
  faults_->has_no_space = Below(4) == 0;
  // Readers of leased blocks must find them: reads fail only while nothing is leased.
  if (leases_.empty()) faults_->reads_to_flip = static_cast<int>(Below(2));
}

void Simulation::PinSome() {
  const PinId id{1 + Below(4)};
  if (Below(3) == 0) {
    const absl::Status status = store_->Unpin(id);
    ASSERT_TRUE(status.ok() || absl::IsNotFound(status)) << status;
    pins_.erase(id.value);
    return;
  }
  const Chain& chain = AnyChain();
  std::vector<BlockKey> keys = KeysOf(chain.links);
  keys.resize(1 + Below(keys.size()));
  PinOptions pin;
  pin.priority = static_cast<KeepPriority>(1 + Below(3));
  if (Below(2) == 0) pin.duration = absl::Seconds(1 + Below(60));
  const auto result = store_->Pin(id, chain.ns, keys, pin);
  if (!result.ok()) {
    ASSERT_TRUE(absl::IsResourceExhausted(result.status())) << result.status();
    return;
  }
  pins_.erase(id.value);
  if (pin.priority != KeepPriority::kMustStay) return;
  HeldPin& held = pins_[id.value];
  held.until = clock_.Now() + pin.duration;
  for (const BlockKey& key : keys) {
    if (MatchedCount(*store_, chain.ns, {key}) == 1) held.keys.insert(key);
    Note(key, "pinned");
  }
}

void Simulation::VerifyAll() {
  const bool may_flip = faults_->reads_to_flip > 0;
  const auto report = store_->Verify(0, [](const VerifyReport&) { return true; });
  if (!report.ok()) {
    ASSERT_TRUE(absl::IsUnavailable(report.status()) && HasFaults()) << report.status();
    return;
  }
  if (may_flip) return;
  ASSERT_EQ(report->bad_copies(), 0u)
      << "step " << step_
      << ": damaged host, disk, gpu, unreadable disk, gpu: " << report->damaged_host_copies << " "
      << report->damaged_disk_copies << " " << report->damaged_gpu_copies << " "
      << report->unreadable_disk_copies << " " << report->unreadable_gpu_copies;
}

void Simulation::HealTheDisk() {
  faults_->writes_fail = faults_->has_no_space = false;
  faults_->reads_to_flip = 0;
  for (int i = 0; i < 20 && (i == 0 || HasFaults()); ++i) {
    clock_.Advance(absl::Minutes(1));
    store_->RunMaintenance();
  }
  ASSERT_FALSE(HasFaults()) << "step " << step_;
}

// Of three, one in an orderly way; one in the midst of its work; one, unless it is calm, while the
// disk goes on to fail.
void Simulation::Restart() {
  const uint32_t way = Below(3);
  NoteAll("restart " + std::to_string(way));
  writers_.clear();
  readers_.clear();
  leases_.clear();
  pins_.clear();
  if (way != 2) HealTheDisk();
  const bool is_settled = way == 0 && Settle();
  ASSERT_TRUE(is_settled || way != 0);
  // What the disk was not told comes back.
  if (HasFaults()) {
    model_.ever_published.insert(model_.unsettled_drops.begin(), model_.unsettled_drops.end());
  }
  for (const BlockKey& key : model_.unsettled_drops) model_.published_as.try_emplace(key, 0);
  watch_.reset();
  store_.reset();
  seen_before_.clear();
  Open();
  // Nothing is in memory: what can be seen is what the disk tier holds.
  const Seen seen = Look();
  ASSERT_EQ(TierOf(store_->stats(), "disk").used_bytes, seen.bytes()) << "step " << step_;
  CheckTenants();
}

void Simulation::EndEverything() {
  writers_.clear();
  readers_.clear();
  leases_.clear();
  for (const SessionId session : sessions_) store_->EndSession(session);
  HealTheDisk();
  ASSERT_TRUE(Settle());
  const BlockStoreStats stats = store_->stats();
  EXPECT_EQ(stats.pinned_bytes, 0u);
  EXPECT_EQ(stats.leases + stats.reservations + stats.sessions, 0u);
  store_->DropEverything();
  ASSERT_TRUE(Settle());
  // A read lets go of its block a moment after it has answered.
  const auto is_empty = [](const BlockTierStats& tier) {
    return tier.used_bytes == 0 && tier.blocks == 0;
  };
  EXPECT_TRUE(Eventually(absl::Seconds(10), [&] {
    const BlockStoreStats now = store_->stats();
    return std::all_of(now.tiers.begin(), now.tiers.end(), is_empty);
  }));
  CheckTenants();
}

}  // namespace ibid
