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
        tenants(options.tenants_max),
        sessions(options),
        book(options.eviction_policy),
        pins(options, &index, &book),
        read_buffers(options.read_buffer_bytes_max),
        disk_queue(options.disk_write_queue_max),
        waits(options.waiting_matches_max, options.waiting_keys_max) {}

  absl::Time Now() const { return clock->Now(); }

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
  std::atomic<uint32_t> disk_reads_waiting{0};  // somebody waits for each; the disk writer yields
  std::atomic<bool> is_refusing_blocks{false};  // no offer is wanted, nothing is reserved any more
};

}  // namespace ibid
