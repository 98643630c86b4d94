// What the paths of one store share. Declared in the order of construction; the disk tier may be
// absent.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "cache_server/block_index.h"
#include "cache_server/block_store.h"
#include "cache_server/demand.h"
#include "cache_server/disk_tier.h"
#include "cache_server/disk_work_queue.h"
#include "cache_server/event_log.h"
#include "cache_server/eviction_book.h"
#include "cache_server/gpu_tier.h"
#include "cache_server/host_arena.h"
#include "cache_server/match_waits.h"
#include "cache_server/namespace_table.h"
#include "cache_server/pin_table.h"
#include "cache_server/read_buffers.h"
#include "cache_server/session_table.h"
#include "cache_server/store_counters.h"
#include "cache_server/tenant_table.h"

namespace ibid {

struct StoreParts {
  StoreParts(BlockStoreOptions store_options, const Clock* store_clock,
             std::unique_ptr<HostArena> host, std::unique_ptr<DiskTier> disk_tier,
             std::unique_ptr<GpuTier> gpu_tier)
      : options(std::move(store_options)),
        clock(store_clock),
        arena(std::move(host)),
        disk(std::move(disk_tier)),
        gpu(std::move(gpu_tier)),
        counters(options.metrics),
        events(options.event_log_max, options.watchers_max, options.metrics),
        namespaces(options.namespaces_max),
        tenants(options.tenants_max, [this] { ApplyQuotas(); }),
        sessions(options),
        book(options.eviction_policy),
        pins(options, &index, &book, &tenants),
        read_buffers(options.read_buffer_bytes_max),
        disk_queue(options.disk_write_queue_max),
        waits(options.waiting_matches_max, options.waiting_keys_max) {
    const auto set_room = [this](TierName tier, const ExtentAllocator::Usage& usage) {
      book.SetRoom(tier, usage.total_bytes / kPageBytes);
    };
    set_room(TierName::kHost, arena->usage());
    if (disk != nullptr) set_room(TierName::kDisk, disk->usage());
    if (gpu != nullptr) set_room(TierName::kGpu, gpu->usage());
  }

  absl::Time Now() const { return clock->Now(); }
  // The quotas of the tenants hold for their blocks from here on.
  void ApplyQuotas() {
    uint64_t version = 0;
    std::vector<TierPages> pages;
    for (const TenantQuota& quota : tenants.Quotas(&version)) {
      const uint64_t bytes[] = {quota.host_bytes_max, quota.disk_bytes_max, quota.gpu_bytes_max};
      TierPages& own = pages.emplace_back();
      for (int tier = 0; tier < kTiersCount; ++tier) {
        own[tier] = bytes[tier] == TenantQuota::kNoLimit ? EvictionTier::kNoQuota
                                                         : bytes[tier] / kPageBytes;
      }
    }
    if (book.SetQuotas(version, pages)) has_misplaced_blocks = true;
  }

  // What the disk directory has to know of the namespace.
  DiskNamespace RecordOf(const NamespaceInfo& ns) const {
    DiskNamespace record{ns.number, ns.id, ns.layout.ToString(), std::nullopt};
    if (const uint32_t tenant = ns.tenant.load(); tenant != kNoTenant) {
      record.tenant = tenants.NameOf(tenant);
    }
    return record;
  }

  const BlockStoreOptions options;
  const Clock* const clock;
  const std::unique_ptr<HostArena> arena;
  const std::unique_ptr<DiskTier> disk;  // null: none
  const std::unique_ptr<GpuTier> gpu;    // null: none
  StoreCounters counters;
  EventLog events;
  Demand demand{counters};
  NamespaceTable namespaces;
  TenantTable tenants;
  SessionTable sessions;
  BlockIndex index;
  EvictionBook book;
  PinTable pins;
  ReadBuffers read_buffers;
  DiskWorkQueue disk_queue;
  MatchWaits waits;
  std::atomic<uint32_t> disk_reads_waiting{0};    // somebody waits for each; the disk writer yields
  std::atomic<uint64_t> gpu_moves_waiting{0};     // queued for the gpu mover, or in its hands
  std::atomic<bool> has_misplaced_blocks{false};  // of owners that changed, or whose quotas did
  std::atomic<bool> is_refusing_blocks{false};  // no offer is wanted, nothing is reserved any more
};

}  // namespace ibid
