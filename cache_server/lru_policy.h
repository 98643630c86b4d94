// Least recently used first, children before parents. See eviction_policy.h for the contract.
#pragma once

#include "core/chunked_array.h"
#include "cache_server/eviction_policy.h"

namespace ibid {

class LruPolicy final : public EvictionPolicy {
 public:
  void OnInsert(EntryId b, EntryId parent) override;
  void OnUse(EntryId b) override;
  void OnRemove(EntryId b) override;
  EntryId TakeVictim() override;
  void PutBack(EntryId b) override;
  void Defer(EntryId b) override;
  EntryId TakeDeferred() override;
  void Undefer(EntryId b) override;
  EntryId TakeInner() override;
  void PutBackInner(EntryId b) override;
  bool contains(EntryId b) const override { return b < nodes_.size() && nodes_[b].is_in_tier; }
  uint32_t children_count(EntryId b) const override {
    return b < nodes_.size() ? nodes_[b].children_count : 0;
  }

 private:
  enum class ListName : uint8_t { kNone, kCandidates, kDeferred, kInner };
  static constexpr int kListsCount = 4;

  struct Node {
    EntryId colder = kNoEntry;
    EntryId hotter = kNoEntry;
    EntryId parent = kNoEntry;
    uint32_t children_count = 0;
    uint32_t last_use = 0;
    ListName list = ListName::kNone;
    bool is_in_tier = false;
  };

  struct List {
    EntryId coldest = kNoEntry;
    EntryId hottest = kNoEntry;
  };

  List& ListOf(ListName name) { return lists_[static_cast<int>(name)]; }
  Node& NodeOf(EntryId b);
  void Unlink(EntryId b);
  // Places `b` directly hotter than `colder` (kNoEntry: as the coldest).
  void LinkAfter(EntryId b, EntryId colder, ListName name);
  EntryId TakeLeafFrom(ListName name);

  ChunkedArray<Node, 4096> nodes_;
  List lists_[kListsCount];
  uint32_t uses_count_ = 0;
};

}  // namespace ibid
