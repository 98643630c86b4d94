// Invariant: what is queued, or in the hands of a RunPiece, belongs to no session any more: it is
// given back exactly once, by who took it out of the queue.
#include "cache_server/let_go_queue.h"

#include <algorithm>

namespace ibid {
namespace {

uint64_t CountBlocks(const LetGo& let_go) {
  uint64_t count = let_go.reservations.size();
  for (const HeldBlocks& held : let_go.leases) count += held.ids.size();
  return count;
}

}  // namespace

void LetGoQueue::Add(LetGo let_go) {
  blocks_count_ += CountBlocks(let_go);
  if (!GiveBackPiece(&let_go)) return;
  {
    MutexLock lock(mutex_);
    queue_.push_back(std::move(let_go));
  }
  on_queued_();
}

bool LetGoQueue::RunPiece() {
  LetGo let_go;
  {
    MutexLock lock(mutex_);
    if (queue_.empty()) return false;
    let_go = std::move(queue_.front());
    queue_.pop_front();
  }
  if (GiveBackPiece(&let_go)) {
    MutexLock lock(mutex_);
    queue_.push_back(std::move(let_go));
  }
  return true;
}

bool LetGoQueue::GiveBackPiece(LetGo* let_go) {
  size_t room = kPieceBlocks;
  // Others may be waiting for these, so they come first; the last one booked, the end of a chain,
  // before the beginning: who waits for that finds the whole chain free.
  std::vector<EntryId>& reservations = let_go->reservations;
  for (; room > 0 && !reservations.empty(); --room) {
    publish_.Revoke(let_go->session, reservations.back());
    reservations.pop_back();
  }
  std::vector<HeldBlocks>& leases = let_go->leases;
  while (room > 0 && !leases.empty()) {
    HeldBlocks& held = leases.back();
    for (; room > 0 && !held.ids.empty(); --room) {
      residency_.EndHold(held.ids.back(), held.payload_bytes);
      held.ids.pop_back();
    }
    if (held.ids.empty()) leases.pop_back();
  }
  blocks_count_ -= kPieceBlocks - room;
  return !let_go->is_empty();
}

}  // namespace ibid
