// PagePool owns the worker's pages: a fixed number of pieces of memory, each with room for one
// block in exactly the form of its payload, so that publish and fetch are plain copies.
//
//     free ----Extend----> open ----Seal----> sealed, held ----last handle dies----> cached
//      ^                     |                     ^                                    |
//      |                     | dropped             '------------- Match ----------------+
//      '---------------------'<-------------------------- Extend, least recently used --'
//
// The types say what may be done: an OpenPage has one owner, who writes; a SealedPage has any
// number of holders, who read, and only a SealedPage can be published, so a block that is not
// computed yet never is (docs/testing.md 7).
//
// Thread safety: owned by the engine thread: all calls, and the copying and destroying of handles,
// happen there. A handle may be moved to another thread, read or filled there, and moved back.
// Ownership: handles must not outlive the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "core/block_key.h"
#include "core/checksum.h"
#include "core/host_memory.h"
#include "core/kv_layout.h"

namespace ibid {

class PagePool;

struct PageId {
  uint32_t value = 0;
  auto operator<=>(const PageId&) const = default;
};

// A page that is being filled. Move-only; dropping it frees the page.
class OpenPage {
 public:
  OpenPage(OpenPage&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), id_(other.id_) {}
  OpenPage& operator=(OpenPage&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~OpenPage();

  MutableByteView bytes() const;

 private:
  friend class PagePool;
  OpenPage(PagePool* pool, PageId id) : pool_(pool), id_(id) {}
  PagePool* pool_;
  PageId id_;
};

// A block that is computed, whole and unchanging. Copyable; keeps the page while it lives.
class SealedPage {
 public:
  SealedPage(const SealedPage& other);
  SealedPage(SealedPage&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), id_(other.id_) {}
  SealedPage& operator=(SealedPage other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~SealedPage();

  ByteView payload() const;
  const ChainLink& link() const;

 private:
  friend class PagePool;
  SealedPage(PagePool* pool, PageId id) : pool_(pool), id_(id) {}
  PagePool* pool_;
  PageId id_;
};

// The pages of one sequence: sealed blocks, then blocks that are being filled. Move-only.
class BlockTable {
 public:
  size_t pages_count() const { return pages_.size(); }
  // What a model takes: block i at pages()[i]. Sealed blocks are not written through it.
  std::span<std::byte* const> pages() const { return pages_; }
  std::span<const SealedPage> sealed() const { return sealed_; }
  size_t open_count() const { return open_.size(); }

 private:
  friend class PagePool;
  std::vector<SealedPage> sealed_;
  std::vector<OpenPage> open_;
  std::vector<std::byte*> pages_;
};

struct PagePoolStats {
  size_t pages = 0;
  size_t free = 0;                  // hold nothing
  size_t cached = 0;                // hold a block that nobody uses, and can still be matched
  uint64_t evicted = 0;             // cached blocks that made room
  uint64_t duplicates = 0;          // sealed, and was there already
  uint64_t unequal_duplicates = 0;  // of these, with other bytes: batch invariance was broken
};

class PagePool {
 public:
  // Reserves all memory at once. Errors: InvalidArgument (layout, no pages), ResourceExhausted
  // (memory).
  static absl::StatusOr<std::unique_ptr<PagePool>> Create(const KvLayout& layout,
                                                          size_t pages_count);
  ~PagePool();  // REQUIRES: no handle is alive.
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  const KvLayout& layout() const { return layout_; }
  // Pages that Extend and Take can give: free and cached ones.
  size_t available_count() const { return free_.size() + cached_.size(); }

  // The leading blocks of `chain` that are here.
  std::vector<SealedPage> Match(std::span<const ChainLink> chain);

  // `count` pages of any content, or none at all when there are too few.
  std::vector<OpenPage> Take(size_t count);
  // Adds open pages until `table` has room for `tokens_count` tokens. False, and nothing changed,
  // when there are too few.
  [[nodiscard]] bool Extend(BlockTable& table, size_t tokens_count);

  // A table that starts with `sealed`, then `open`.
  BlockTable MakeTable(std::vector<SealedPage> sealed, std::vector<OpenPage> open);
  // A writable copy of a block; nothing when no page is available.
  std::optional<OpenPage> CopyToOpen(const SealedPage& page);

  // The block is computed: it can be matched from now on, and is never written again. When a page
  // with the same key is there already, the result is that one, and `page` is freed. Tokens beyond
  // link.token_count become zero.
  SealedPage Seal(OpenPage page, const ChainLink& link);
  // Seals the table's first open pages, those of links[sealed().size() ..), which must all be full
  // blocks.
  void SealLeading(BlockTable& table, std::span<const ChainLink> links);
  // The table's last page, open and partly filled, becomes a sealed tail block and leaves the
  // table.
  SealedPage SealTail(BlockTable& table, const ChainLink& link);
  // The same from a copy, while the table's own page goes on growing; nothing when no page is
  // available.
  std::optional<SealedPage> SnapshotTail(const BlockTable& table, const ChainLink& link);

  // Whether the store has, or had, the block: kept with the page while it can be matched.
  bool is_published(const SealedPage& page) const { return states_[page.id_.value].is_published; }
  void MarkPublished(const SealedPage& page, bool is_published = true) {
    states_[page.id_.value].is_published = is_published;
  }
  // Whether this is the first time that the block, which is not published, is given up.
  bool MarkGivenUp(const SealedPage& page) {
    PageState& state = states_[page.id_.value];
    return !state.is_published && !std::exchange(state.is_given_up, true);
  }

  // Marks the sealed pages as used now. Among pages of one touch, ends leave before beginnings.
  void Touch(std::span<const SealedPage> pages);
  // Sealed pages in the table that nobody else holds, and its open pages: what dropping it makes
  // available.
  size_t CountOwnPages(const BlockTable& table) const;

  PagePoolStats stats() const;

 private:
  friend class OpenPage;
  friend class SealedPage;

  struct PageState {
    enum class Kind : uint8_t { kFree, kOpen, kSealed } kind = Kind::kFree;
    bool is_published = false;
    uint32_t holders = 0;   // SealedPage handles
    uint64_t last_use = 0;  // tick of the last touch
    ChainLink link;         // of a sealed page
    bool is_given_up = false;
  };
  // What leaves first compares least: the longest unused; among equals the deepest in its chain.
  using CachedEntry = std::tuple<uint64_t, uint32_t, uint32_t>;

  PagePool(const KvLayout& layout, size_t pages_count, HostMemory memory);
  std::byte* At(PageId id) const { return memory_.begin() + size_t{id.value} * page_stride_; }
  CachedEntry EntryOf(PageId id) const;
  PageId TakeOne();
  void FreeOpen(PageId id);
  void Hold(PageId id);
  void Release(PageId id);
  void ZeroUnusedTokens(std::byte* page, uint32_t token_count) const;

  const KvLayout layout_;
  const size_t payload_bytes_;
  const size_t page_stride_;
  HostMemory memory_;
  std::vector<PageState> states_;
  std::vector<PageId> free_;
  std::set<CachedEntry> cached_;
  absl::flat_hash_map<BlockKey, PageId> by_key_;  // all sealed pages
  uint64_t tick_ = 0;
  uint64_t evicted_ = 0, duplicates_ = 0, unequal_duplicates_ = 0;
};

}  // namespace ibid
