// What must hold after each step of the simulation.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/host_memory.h"
#include "tests/cache_server/store/block_store_simulation.h"

namespace ibid {

bool Simulation::HasFaults() const {
  return faults_->writes_fail || faults_->has_no_space || faults_->reads_to_flip > 0 ||
         (tiers_.has_disk && TierOf(store_->stats(), "disk").state != "ok");
}

bool Simulation::Settle() {
  if (tiers_.has_disk && (faults_->writes_fail || TierOf(store_->stats(), "disk").state != "ok")) {
    return false;
  }
  EXPECT_TRUE(store_->FlushToDisk(absl::Seconds(30))) << "step " << step_;
  model_.unsettled_drops.clear();
  return true;
}

Simulation::Seen Simulation::Look() {
  Seen seen;
  for (const Chain& chain : chains_) {
    for (const ChainLink& link : chain.links) {
      if (seen.keys.contains(link.key)) continue;
      const auto match = store_->Match({}, chain.ns, {&link.key, 1}, {});
      if (!match.ok() || match->matched_count == 0) continue;
      seen.keys.insert(link.key);
      const uint64_t bytes = SlotBytesOf(chain.ns);
      seen.gpu_bytes += match->gpu_blocks * bytes;
      seen.host_bytes += match->host_blocks * bytes;
      seen.disk_bytes += match->disk_blocks * bytes;
    }
  }
  return seen;
}

void Simulation::CheckInvariants() {
  NoteEvents();
  CheckCounts(store_->stats());
  CheckVisible();
  CheckHeld();
  if (tiers_.has_disk && Below(4) != 0) return;  // blocks shall be on their way between steps
  if (!Settle()) return;
  CheckUsage();
  CheckTenants();
  CheckQuotas();
}

void Simulation::CheckCounts(const BlockStoreStats& stats) {
  const BlockTierStats gpu = TierOf(stats, "gpu"), host = TierOf(stats, "host"),
                       disk = TierOf(stats, "disk");
  ASSERT_EQ(stats.requested_blocks, model_.acquired) << "step " << step_;
  ASSERT_EQ(stats.requested_blocks, stats.missed_blocks + gpu.hits + host.hits + disk.hits);
  ASSERT_LE(gpu.used_bytes, gpu.bytes_max);
  ASSERT_LE(host.used_bytes, options_.host_bytes_max);
  ASSERT_LE(disk.used_bytes, options_.disk_bytes_max);
  ASSERT_LE(disk.allocated_bytes + disk.directory_bytes, options_.disk_bytes_max);
  ASSERT_EQ(stats.leases, leases_.size()) << "step " << step_;
  if (leases_.empty() && readers_.empty()) {
    ASSERT_EQ(stats.pinned_bytes, 0u) << "step " << step_;
  }
}

// What can be seen was committed and not dropped.
void Simulation::CheckVisible() {
  const Seen seen = Look();
  for (const BlockKey& key : seen.keys) {
    ASSERT_TRUE(model_.ever_published.contains(key)) << "step " << step_ << ": " << history_[key];
  }
  if (!tiers_.has_disk && !tiers_.has_gpu) CheckHoles(seen);
  if (is_calm_ || !tiers_.has_disk) CheckPins(seen);
  seen_before_ = seen.keys;
}

// A tier makes no hole in a prefix: a block that went while its child stayed was dropped by
// request, or came after the child did, in the place of one that was dropped while somebody held
// it. Several tiers make one when nothing else of a share can leave (EvictionShare::Defer).
void Simulation::CheckHoles(const Seen& seen) {
  for (const Chain& chain : chains_) {
    for (size_t i = 0; i + 1 < chain.links.size(); ++i) {
      const BlockKey& key = chain.links[i].key;
      const BlockKey& child = chain.links[i + 1].key;
      const bool is_hole = seen_before_.contains(key) && !seen.keys.contains(key) &&
                           seen_before_.contains(child) && seen.keys.contains(child);
      ASSERT_FALSE(is_hole && model_.ever_published.contains(key) &&
                   model_.published_as.at(key) < model_.published_as.at(child))
          << "step " << step_ << " position " << i << ": " << history_[key]
          << "\nits child: " << history_[child];
    }
  }
}

void Simulation::CheckPins(const Seen& seen) {
  std::erase_if(pins_, [&](const auto& pin) { return pin.second.until <= clock_.Now(); });
  for (const auto& [id, pin] : pins_) {
    for (const BlockKey& key : pin.keys) {
      ASSERT_TRUE(seen.keys.contains(key))
          << "step " << step_ << ": a block that must stay is gone: " << history_[key];
    }
  }
}

void Simulation::CheckHeld() {
  for (const auto& [key, ref] : readers_) ASSERT_TRUE(HasRightBytes(ref, key)) << "step " << step_;
  for (const HeldLease& lease : leases_) {
    ASSERT_TRUE(store_->CheckLease(lease.session, lease.id).ok()) << "step " << step_;
    for (const BlockKey& key : lease.keys) {
      ASSERT_EQ(MatchedCount(*store_, NamespaceOfKey(key), {key}), 1u)
          << "step " << step_ << ": a leased block is gone: " << history_[key];
    }
  }
}

// The slots in use are those of the blocks.
void Simulation::CheckUsage() {
  uint64_t written_bytes = 0;
  for (const Writer& writer : writers_) written_bytes += SlotBytesOf(writer.ns);
  // A block that was dropped or doomed may keep its slot for those who hold it.
  const bool is_held = !leases_.empty() || !readers_.empty();
  std::string found;
  // A read lets go of its block a moment after it has answered, and the slot is freed then.
  for (int i = 0; i < 100'000; ++i) {
    const Seen seen = Look();
    const BlockStoreStats stats = store_->stats();
    const uint64_t gpu = TierOf(stats, "gpu").used_bytes, host = TierOf(stats, "host").used_bytes,
                   disk = TierOf(stats, "disk").used_bytes;
    const uint64_t host_least = seen.host_bytes + (is_held ? 0 : written_bytes);
    const uint64_t host_most = host_least + seen.gpu_bytes;  // those may have a host copy too
    const bool is_right =
        gpu >= seen.gpu_bytes && host >= host_least && disk >= seen.disk_bytes &&
        (is_held || (gpu == seen.gpu_bytes && host <= host_most && disk <= seen.bytes()));
    if (is_right) return;
    found = absl::StrCat("gpu ", gpu, " of ", seen.gpu_bytes, ", host ", host, " of ", host_least,
                         " to ", host_most, ", disk ", disk, " of ", seen.disk_bytes);
    std::this_thread::yield();
  }
  FAIL() << "step " << step_ << ": " << found;
}

// What the tenants use is what is used.
void Simulation::CheckTenants() {
  uint64_t gpu_bytes = 0, host_bytes = 0, disk_bytes = 0;
  for (const TenantInfo& tenant : store_->Tenants()) {
    gpu_bytes += tenant.gpu_used_bytes;
    host_bytes += tenant.host_used_bytes;
    disk_bytes += tenant.disk_used_bytes;
  }
  const BlockStoreStats stats = store_->stats();
  ASSERT_EQ(gpu_bytes, TierOf(stats, "gpu").used_bytes) << "step " << step_;
  ASSERT_EQ(host_bytes, TierOf(stats, "host").used_bytes) << "step " << step_;
  ASSERT_EQ(disk_bytes, TierOf(stats, "disk").used_bytes) << "step " << step_;
}

// Nobody comes to use more than his quota; who did when it was set uses no more than then.
void Simulation::CheckQuotas() {
  for (const TenantInfo& tenant : store_->Tenants()) {
    TenantInfo& then = used_at_quota_[tenant.name];
    then.gpu_used_bytes = std::min(then.gpu_used_bytes, tenant.gpu_used_bytes);
    then.host_used_bytes = std::min(then.host_used_bytes, tenant.host_used_bytes);
    then.disk_used_bytes = std::min(then.disk_used_bytes, tenant.disk_used_bytes);
    const std::string where = absl::StrCat("step ", step_, " tenant ", tenant.name);
    ASSERT_LE(tenant.gpu_used_bytes, std::max(tenant.quota.gpu_bytes_max, then.gpu_used_bytes))
        << where;
    ASSERT_LE(tenant.host_used_bytes, std::max(tenant.quota.host_bytes_max, then.host_used_bytes))
        << where;
    ASSERT_LE(tenant.disk_used_bytes, std::max(tenant.quota.disk_bytes_max, then.disk_used_bytes))
        << where;
  }
}

}  // namespace ibid
