// Invariants:
// - A page is in exactly one of: free_, one OpenPage, sealed with holders, cached_ (sealed without
// holders).
// - by_key_ has each sealed page once, by its link's key; no two sealed pages have one key.
// - A holder of a block holds the blocks before it in its chain, or touched them no earlier: so of
// a prefix the end
//   leaves first.
#include "worker/engine/page_pool.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/log.h"

namespace ibid {
namespace {

// Vector loads of a kernel start on cache lines.
constexpr size_t kPageAlignment = 64;

// Between two log lines of one place.
constexpr int kLogPeriodSeconds = 10;

}  // namespace

OpenPage::~OpenPage() {
  if (pool_ != nullptr) pool_->FreeOpen(id_);
}
MutableByteView OpenPage::bytes() const { return {pool_->At(id_), pool_->payload_bytes_}; }

SealedPage::SealedPage(const SealedPage& other) : pool_(other.pool_), id_(other.id_) {
  if (pool_ != nullptr) pool_->Hold(id_);
}
SealedPage::~SealedPage() {
  if (pool_ != nullptr) pool_->Release(id_);
}
ByteView SealedPage::payload() const { return {pool_->At(id_), pool_->payload_bytes_}; }
const ChainLink& SealedPage::link() const { return pool_->states_[id_.value].link; }

absl::StatusOr<std::unique_ptr<PagePool>> PagePool::Create(const KvLayout& layout,
                                                           size_t pages_count) {
  IBID_RETURN_IF_ERROR(layout.Validate());
  if (pages_count == 0 || pages_count > UINT32_MAX) {
    return absl::InvalidArgumentError(absl::StrFormat("a page pool of %d pages", pages_count));
  }
  const size_t stride = RoundUp(layout.PayloadBytes(), kPageAlignment);
  IBID_ASSIGN_OR_RETURN(HostMemory memory, HostMemory::CreatePrivate(stride * pages_count));
  return std::unique_ptr<PagePool>(new PagePool(layout, pages_count, std::move(memory)));
}

PagePool::PagePool(const KvLayout& layout, size_t pages_count, HostMemory memory)
    : layout_(layout),
      payload_bytes_(layout.PayloadBytes()),
      page_stride_(RoundUp(payload_bytes_, kPageAlignment)),
      memory_(std::move(memory)),
      states_(pages_count) {
  free_.reserve(pages_count);
  for (size_t i = pages_count; i > 0; --i) free_.push_back(PageId{static_cast<uint32_t>(i - 1)});
}

PagePool::~PagePool() {
  IBID_CHECK(available_count() == states_.size())
      << states_.size() - available_count() << " pages are still held at the end of their pool";
}

std::vector<SealedPage> PagePool::Match(std::span<const ChainLink> chain) {
  std::vector<SealedPage> found;
  for (const ChainLink& link : chain) {
    const auto it = by_key_.find(link.key);
    if (it == by_key_.end()) break;
    Hold(it->second);
    found.push_back(SealedPage(this, it->second));
  }
  Touch(found);
  return found;
}

std::vector<OpenPage> PagePool::Take(size_t count) {
  std::vector<OpenPage> pages;
  if (count > available_count()) return pages;
  pages.reserve(count);
  for (size_t i = 0; i < count; ++i) pages.push_back(OpenPage(this, TakeOne()));
  return pages;
}

bool PagePool::Extend(BlockTable& table, size_t tokens_count) {
  const size_t needed = (tokens_count + layout_.block_tokens - 1) / layout_.block_tokens;
  if (needed <= table.pages_count()) return true;
  const size_t missing = needed - table.pages_count();
  if (missing > available_count()) return false;
  for (OpenPage& page : Take(missing)) {
    table.pages_.push_back(page.bytes().data());
    table.open_.push_back(std::move(page));
  }
  return true;
}

BlockTable PagePool::MakeTable(std::vector<SealedPage> sealed, std::vector<OpenPage> open) {
  BlockTable table;
  for (const SealedPage& page : sealed) table.pages_.push_back(At(page.id_));
  for (const OpenPage& page : open) table.pages_.push_back(At(page.id_));
  table.sealed_ = std::move(sealed);
  table.open_ = std::move(open);
  return table;
}

std::optional<OpenPage> PagePool::CopyToOpen(const SealedPage& page) {
  std::vector<OpenPage> taken = Take(1);
  if (taken.empty()) return std::nullopt;
  std::memcpy(taken[0].bytes().data(), page.payload().data(), payload_bytes_);
  return std::move(taken[0]);
}

SealedPage PagePool::Seal(OpenPage page, const ChainLink& link) {
  IBID_CHECK(page.pool_ == this);
  IBID_CHECK(link.token_count > 0 && link.token_count <= layout_.block_tokens);
  ZeroUnusedTokens(At(page.id_), link.token_count);
  const auto [it, is_new] = by_key_.try_emplace(link.key, page.id_);
  if (!is_new) {
    ++duplicates_;
    if (std::memcmp(At(it->second), At(page.id_), payload_bytes_) != 0) {
      ++unequal_duplicates_;
      IBID_LOG_EVERY(kLogPeriodSeconds, error, "block {} was computed twice with different bytes",
                     DigestToShortHex(link.key.digest));
    }
    Hold(it->second);
    return SealedPage(this, it->second);
  }
  PageState& state = states_[page.id_.value];
  state = {PageState::Kind::kSealed, /*is_published=*/false, /*holders=*/1, /*last_use=*/++tick_,
           link};
  page.pool_ = nullptr;
  return SealedPage(this, page.id_);
}

void PagePool::SealLeading(BlockTable& table, std::span<const ChainLink> links) {
  const size_t first = table.sealed_.size();
  if (links.size() <= first) return;
  const size_t count = links.size() - first;
  IBID_CHECK(count <= table.open_.size());
  for (size_t i = 0; i < count; ++i) {
    IBID_CHECK(links[first + i].token_count == layout_.block_tokens);
    table.sealed_.push_back(Seal(std::move(table.open_[i]), links[first + i]));
    table.pages_[first + i] = At(table.sealed_.back().id_);
  }
  table.open_.erase(table.open_.begin(), table.open_.begin() + count);
}

SealedPage PagePool::SealTail(BlockTable& table, const ChainLink& link) {
  IBID_CHECK(table.open_.size() == 1 && link.token_count < layout_.block_tokens);
  SealedPage page = Seal(std::move(table.open_.back()), link);
  table.open_.pop_back();
  table.pages_.pop_back();
  return page;
}

std::optional<SealedPage> PagePool::SnapshotTail(const BlockTable& table, const ChainLink& link) {
  IBID_CHECK(table.open_.size() == 1 && link.token_count < layout_.block_tokens);
  std::vector<OpenPage> taken = Take(1);
  if (taken.empty()) return std::nullopt;
  std::memcpy(taken[0].bytes().data(), table.open_.back().bytes().data(), payload_bytes_);
  return Seal(std::move(taken[0]), link);
}

void PagePool::Touch(std::span<const SealedPage> pages) {
  ++tick_;
  for (const SealedPage& page : pages) states_[page.id_.value].last_use = tick_;
}

size_t PagePool::CountOwnPages(const BlockTable& table) const {
  size_t count = table.open_.size();
  for (const SealedPage& page : table.sealed_) count += states_[page.id_.value].holders == 1;
  return count;
}

PagePoolStats PagePool::stats() const {
  return {states_.size(), free_.size(), cached_.size(), evicted_, duplicates_, unequal_duplicates_};
}

PagePool::CachedEntry PagePool::EntryOf(PageId id) const {
  const PageState& state = states_[id.value];
  return {state.last_use, UINT32_MAX - state.link.position, id.value};
}

PageId PagePool::TakeOne() {
  if (free_.empty()) {
    IBID_CHECK(!cached_.empty());
    const PageId victim{std::get<2>(*cached_.begin())};
    cached_.erase(cached_.begin());
    by_key_.erase(states_[victim.value].link.key);
    states_[victim.value] = {};
    ++evicted_;
    free_.push_back(victim);
  }
  const PageId id = free_.back();
  free_.pop_back();
  IBID_CHECK(states_[id.value].kind == PageState::Kind::kFree);
  states_[id.value].kind = PageState::Kind::kOpen;
  return id;
}

void PagePool::FreeOpen(PageId id) {
  IBID_CHECK(states_[id.value].kind == PageState::Kind::kOpen);
  states_[id.value] = {};
  free_.push_back(id);
}

void PagePool::Hold(PageId id) {
  PageState& state = states_[id.value];
  IBID_CHECK(state.kind == PageState::Kind::kSealed);
  if (state.holders++ == 0) IBID_CHECK(cached_.erase(EntryOf(id)) == 1);
}

void PagePool::Release(PageId id) {
  PageState& state = states_[id.value];
  IBID_CHECK(state.kind == PageState::Kind::kSealed && state.holders > 0);
  if (--state.holders == 0) cached_.insert(EntryOf(id));
}

void PagePool::ZeroUnusedTokens(std::byte* page, uint32_t token_count) const {
  const size_t unused = layout_.block_tokens - token_count;
  if (unused == 0) return;
  // Each head's tokens are one tile of block_tokens rows; the scales, if any, are tiles of one f32
  // a token.
  const auto zero_tiles = [&](std::byte* tiles, size_t count, size_t row_bytes) {
    for (size_t i = 0; i < count; ++i) {
      std::memset(tiles + (i * layout_.block_tokens + token_count) * row_bytes, 0,
                  unused * row_bytes);
    }
  };
  const size_t element_bytes = DtypeBytes(layout_.dtype);
  for (uint32_t layer = 0; layer < layout_.layers; ++layer) {
    zero_tiles(page + layout_.KOffset(layer), layout_.kv_heads, layout_.k_dim * element_bytes);
    zero_tiles(page + layout_.VOffset(layer), layout_.kv_heads, layout_.v_dim * element_bytes);
    if (layout_.ScaleBytes() > 0) {
      const size_t tiles = layout_.ScaleBytes() / (layout_.block_tokens * sizeof(float));
      zero_tiles(page + layout_.ScaleOffset(layer), tiles, sizeof(float));
    }
  }
}

}  // namespace ibid
