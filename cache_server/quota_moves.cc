// A block that comes while a pass runs is where it belongs already. So when the pass is over all
// blocks are, unless quotas changed meanwhile: then another pass is due.
#include "cache_server/quota_moves.h"

namespace ibid {
namespace {

constexpr uint32_t kPiecePlaces = 1'024;

}  // namespace

bool QuotaMoves::RunPiece() {
  if (is_at_work_.exchange(true)) return false;
  const bool has_worked = MovePiece();
  is_at_work_.store(false);
  return has_worked;
}

bool QuotaMoves::MovePiece() {
  if (parts_.has_misplaced_blocks.exchange(false)) {
    shard_ = 0;
    place_ = 0;
  }
  if (shard_ == BlockIndex::kShardsCount) return false;
  for (const Block& block : TakePiece()) {
    Move(block);
    residency_.DropRef(block.id);
  }
  return true;
}

std::vector<QuotaMoves::Block> QuotaMoves::TakePiece() {
  std::vector<Block> blocks;
  IndexShard& shard = parts_.index.shard(shard_);
  bool has_more = false;
  {
    MutexLock lock(shard.mutex);
    has_more = shard.VisitPlaces(&place_, kPiecePlaces, [&](EntryId id, IndexEntry& entry) {
      if (!entry.is_resident() && !entry.is_filling()) return;
      ++entry.refs;
      blocks.push_back({id, entry.ns});
    });
  }
  if (!has_more) {
    ++shard_;
    place_ = 0;
  }
  return blocks;
}

void QuotaMoves::Move(const Block& block) {
  const NamespacePtr ns = parts_.namespaces.Find(block.ns);
  if (ns == nullptr) return;  // it was closed, and its blocks are on their way out
  BlockTraits traits;
  {
    IndexShard& shard = parts_.index.ShardOf(block.id);
    MutexLock lock(shard.mutex);
    traits = residency_.TraitsOf(shard.Get(block.id), *ns);
  }
  parts_.book.Move(block.id, ns->owner(), ns->slot_pages, traits);
}

}  // namespace ibid
