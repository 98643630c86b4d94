// Pins, as values: what an operator asks for, and what is told of it.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "core/block_key.h"
#include "core/eviction/keep_priority.h"

namespace ibid {

// Names a pin: an operator's word that the blocks of a prefix stay. Chosen by who asks, so that all
// servers of a cluster know one pin by one id; not 0.
struct PinId {
  uint64_t value = 0;
  auto operator<=>(const PinId&) const = default;
};

struct PinOptions {
  KeepPriority priority = KeepPriority::kMustStay;
  absl::Duration duration = absl::InfiniteDuration();
};

struct PinResult {
  uint64_t stored_blocks = 0;     // of its blocks, that are there now
  bool survives_restart = false;  // the disk tier has a record of it
};

struct PinInfo {
  PinId id;
  NamespaceId ns;
  KeepPriority priority = KeepPriority::kNone;
  absl::Duration left;
  uint64_t blocks = 0;                                           // that it names
  uint64_t stored_blocks = 0, host_blocks = 0, disk_blocks = 0;  // of these: with a copy, and where
};

}  // namespace ibid
