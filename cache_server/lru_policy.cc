// Invariants:
// - A node in a list is in the tier. A node in the tier need not be in a list: it came in, or was
// taken.
// - The candidates are ordered by last use. A node that left them was the coldest at that time, so
// every candidate was
//   used after it; it returns to the cold end, not further than kPutBackStepsMax from it.
// - A node with children that was met at the cold end is in the inner list until its last child
// leaves.
// - children_count of a node is the number of nodes in the tier whose parent it is.
//
//        coldest                                   hottest
//   <- TakeVictim   [leaf][inner][leaf] ... [leaf][leaf]  <- OnUse
//                      |
//                      +-> inner list, until its last child leaves; then put back
#include "cache_server/lru_policy.h"

#include "core/check.h"

namespace ibid {
namespace {

// Bounds the search for the exact place of a block that is put back; beyond it the order is
// approximate.
constexpr int kPutBackStepsMax = 16;

}  // namespace

LruPolicy::Node& LruPolicy::NodeOf(EntryId b) {
  IBID_CHECK(b < kNoEntry);
  nodes_.EnsureSize(size_t{b} + 1);
  return nodes_[b];
}

void LruPolicy::Unlink(EntryId b) {
  Node& node = nodes_[b];
  if (node.list == ListName::kNone) return;
  List& list = ListOf(node.list);
  (node.colder == kNoEntry ? list.coldest : nodes_[node.colder].hotter) = node.hotter;
  (node.hotter == kNoEntry ? list.hottest : nodes_[node.hotter].colder) = node.colder;
  node.colder = node.hotter = kNoEntry;
  node.list = ListName::kNone;
}

void LruPolicy::LinkAfter(EntryId b, EntryId colder, ListName name) {
  Node& node = nodes_[b];
  List& list = ListOf(name);
  node.colder = colder;
  node.hotter = colder == kNoEntry ? list.coldest : nodes_[colder].hotter;
  (node.colder == kNoEntry ? list.coldest : nodes_[node.colder].hotter) = b;
  (node.hotter == kNoEntry ? list.hottest : nodes_[node.hotter].colder) = b;
  node.list = name;
}

void LruPolicy::OnInsert(EntryId b, EntryId parent) {
  if (parent != kNoEntry) ++NodeOf(parent).children_count;
  Node& node = NodeOf(b);
  IBID_CHECK(!node.is_in_tier) << "block " << b << " came twice into a tier";
  node.is_in_tier = true;
  node.parent = parent;
  node.last_use = ++uses_count_;
}

void LruPolicy::OnUse(EntryId b) {
  if (!contains(b)) return;
  Unlink(b);
  nodes_[b].last_use = ++uses_count_;
  LinkAfter(b, ListOf(ListName::kCandidates).hottest, ListName::kCandidates);
}

void LruPolicy::OnRemove(EntryId b) {
  if (!contains(b)) return;
  Unlink(b);
  Node& node = nodes_[b];
  node.is_in_tier = false;
  const EntryId parent = node.parent;
  node.parent = kNoEntry;
  if (parent == kNoEntry) return;
  IBID_CHECK(nodes_[parent].children_count > 0);
  if (--nodes_[parent].children_count == 0 && nodes_[parent].list == ListName::kInner)
    PutBack(parent);
}

EntryId LruPolicy::TakeLeafFrom(ListName name) {
  const List& list = ListOf(name);
  while (list.coldest != kNoEntry) {
    const EntryId b = list.coldest;
    Unlink(b);
    if (nodes_[b].children_count == 0) return b;
    PutBackInner(b);
  }
  return kNoEntry;
}

EntryId LruPolicy::TakeVictim() { return TakeLeafFrom(ListName::kCandidates); }
EntryId LruPolicy::TakeDeferred() { return TakeLeafFrom(ListName::kDeferred); }

EntryId LruPolicy::TakeInner() {
  const EntryId b = ListOf(ListName::kInner).coldest;
  if (b != kNoEntry) Unlink(b);
  return b;
}

void LruPolicy::PutBackInner(EntryId b) {
  if (!contains(b)) return;
  Unlink(b);
  LinkAfter(b, ListOf(ListName::kInner).hottest, ListName::kInner);
}

void LruPolicy::PutBack(EntryId b) {
  if (!contains(b) || nodes_[b].list == ListName::kCandidates) return;
  Unlink(b);
  EntryId colder = kNoEntry;
  EntryId next = ListOf(ListName::kCandidates).coldest;
  for (int step = 0; step < kPutBackStepsMax && next != kNoEntry; ++step) {
    // Signed difference: the count of uses may wrap.
    if (static_cast<int32_t>(nodes_[next].last_use - nodes_[b].last_use) > 0) break;
    colder = next;
    next = nodes_[next].hotter;
  }
  LinkAfter(b, colder, ListName::kCandidates);
}

void LruPolicy::Defer(EntryId b) {
  if (!contains(b)) return;
  Unlink(b);
  LinkAfter(b, ListOf(ListName::kDeferred).hottest, ListName::kDeferred);
}

void LruPolicy::Undefer(EntryId b) {
  if (contains(b) && nodes_[b].list == ListName::kDeferred) PutBack(b);
}

}  // namespace ibid
