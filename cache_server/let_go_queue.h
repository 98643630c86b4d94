// Gives back what ended sessions and leases held. A little is given back at once; the rest piece by
// piece, whoever calls RunPiece, and the owners of large holdings take turns.
//
// Thread safety: every method, from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

#include "cache_server/publish_path.h"
#include "cache_server/residency.h"
#include "cache_server/session_table.h"
#include "core/mutex.h"

namespace ibid {

class LetGoQueue {
 public:
  // Blocks that are given back in one go: less than a millisecond.
  static constexpr size_t kPieceBlocks = 1'024;

  // `on_queued` is called, without a lock, when there is work for RunPiece.
  LetGoQueue(Residency& residency, PublishPath& publish, std::function<void()> on_queued)
      : residency_(residency), publish_(publish), on_queued_(std::move(on_queued)) {}

  void Add(LetGo let_go);
  // False when nothing is queued.
  bool RunPiece();

  uint64_t blocks_count() const { return blocks_count_.load(std::memory_order_relaxed); }

 private:
  // Gives back up to kPieceBlocks of it. False when nothing of it is left.
  bool GiveBackPiece(LetGo* let_go);

  Residency& residency_;
  PublishPath& publish_;
  const std::function<void()> on_queued_;
  std::atomic<uint64_t> blocks_count_{0};
  Mutex mutex_;
  std::deque<LetGo> queue_ IBID_GUARDED_BY(mutex_);
};

}  // namespace ibid
