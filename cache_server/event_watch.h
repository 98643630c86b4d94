// Starts the watches of one store. Private to it.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "cache_server/block_watch.h"
#include "cache_server/residency.h"

namespace ibid {

// As BlockStore::Watch; `epoch` is the store's incarnation.
absl::StatusOr<std::unique_ptr<BlockWatch>> StartWatch(StoreParts& parts, Residency& residency,
                                                       uint64_t epoch, const WatchOptions& options);

}  // namespace ibid
