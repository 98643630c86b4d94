// Merging of neighbours, best first: the loop that byte-pair encodings share.
//
// Symbols are a linked list over an array; candidate pairs wait in a heap, and a candidate that is
// out of date when it comes up is dropped. n symbols take O(n log n), however long the piece is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace ibid {

template <typename Rank>
struct Merge {
  Rank rank;        // the smallest is merged first; of equals, the leftmost
  uint32_t merged;  // id
};

// Merges `symbols` in place while find(left, right) -> std::optional<Merge<Rank>> has something.
template <typename Rank, typename Find>
void MergePairs(std::vector<uint32_t>* symbols, Find find) {
  constexpr uint32_t kNone = UINT32_MAX;
  const size_t count = symbols->size();
  if (count < 2) return;
  std::vector<uint32_t> next(count), previous(count);
  for (uint32_t i = 0; i < count; ++i) {
    next[i] = i + 1 == count ? kNone : i + 1;
    previous[i] = i == 0 ? kNone : i - 1;
  }
  struct Candidate {
    Rank rank;
    uint32_t at;           // of the left symbol
    uint32_t left, right;  // the ids that were there
    uint32_t merged;
    bool operator>(const Candidate& other) const {
      return std::tie(rank, at) > std::tie(other.rank, other.at);
    }
  };
  std::vector<Candidate> heap;
  heap.reserve(count);
  const auto candidate = [&](uint32_t at) -> std::optional<Candidate> {
    if (at == kNone || next[at] == kNone) return std::nullopt;
    const uint32_t left = (*symbols)[at], right = (*symbols)[next[at]];
    const std::optional<Merge<Rank>> merge = find(left, right);
    if (!merge) return std::nullopt;
    return Candidate{merge->rank, at, left, right, merge->merged};
  };
  for (uint32_t i = 0; i + 1 < count; ++i) {
    if (const auto c = candidate(i)) heap.push_back(*c);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto push = [&](uint32_t at) {
    if (const auto c = candidate(at)) {
      heap.push_back(*c);
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  };
  std::vector<bool> is_gone(count, false);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const Candidate c = heap.back();
    heap.pop_back();
    if (is_gone[c.at] || (*symbols)[c.at] != c.left) continue;
    const uint32_t right = next[c.at];
    if (right == kNone || (*symbols)[right] != c.right) continue;
    (*symbols)[c.at] = c.merged;
    is_gone[right] = true;
    next[c.at] = next[right];
    if (next[right] != kNone) previous[next[right]] = c.at;
    push(previous[c.at]);
    push(c.at);
  }
  size_t kept = 0;
  for (uint32_t i = 0; i != kNone; i = next[i]) (*symbols)[kept++] = (*symbols)[i];
  symbols->resize(kept);
}

}  // namespace ibid
