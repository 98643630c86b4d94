#include "worker/engine/page_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <vector>

namespace ibid {
namespace {

constexpr uint32_t kBlock = 4;

KvLayout SmallLayout() {
  KvLayout layout;
  layout.layers = 2;
  layout.kv_heads = 2;
  layout.k_dim = layout.v_dim = 4;
  layout.block_tokens = kBlock;
  return layout;
}

std::vector<ChainLink> ChainOf(std::vector<uint32_t> tokens, bool with_tail = false) {
  return MakeChain(MakeNamespaceId({}), tokens, kBlock, with_tail);
}

std::vector<uint32_t> Tokens(size_t count, uint32_t first = 0) {
  std::vector<uint32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = first + static_cast<uint32_t>(i);
  return tokens;
}

void Fill(const OpenPage& page, uint8_t with) {
  for (std::byte& byte : page.bytes()) byte = std::byte{with};
}

class PagePoolTest : public testing::Test {
 protected:
  void Start(size_t pages) { pool_ = *PagePool::Create(SmallLayout(), pages); }

  // A table whose blocks are sealed under `chain`, each page filled with its position.
  BlockTable SealedTable(const std::vector<ChainLink>& chain) {
    BlockTable table;
    EXPECT_TRUE(pool_->Extend(table, chain.size() * kBlock));
    for (size_t i = 0; i < table.pages_count(); ++i) {
      std::memset(table.pages()[i], static_cast<int>(i + 1), SmallLayout().PayloadBytes());
    }
    pool_->SealLeading(table, chain);
    return table;
  }
  void Release(BlockTable table) {
    pool_->Touch(table.sealed());
    table = BlockTable();
  }

  std::unique_ptr<PagePool> pool_;
};

TEST_F(PagePoolTest, RefusesALayoutOrSizeThatCannotBe) {
  EXPECT_FALSE(PagePool::Create(SmallLayout(), 0).ok());
  EXPECT_FALSE(PagePool::Create(KvLayout{}, 4).ok());
}

TEST_F(PagePoolTest, ExtendsAllOrNothing) {
  Start(3);
  BlockTable table;
  EXPECT_FALSE(pool_->Extend(table, 4 * kBlock));
  EXPECT_EQ(table.pages_count(), 0u);
  EXPECT_EQ(pool_->available_count(), 3u);
  EXPECT_TRUE(pool_->Extend(table, 2 * kBlock + 1));
  EXPECT_EQ(table.pages_count(), 3u);
  EXPECT_TRUE(pool_->Extend(table, 3 * kBlock));  // there is room already
  EXPECT_EQ(pool_->available_count(), 0u);
  Release(std::move(table));
  EXPECT_EQ(pool_->stats().free, 3u);
}

TEST_F(PagePoolTest, SealedPagesStayMatchableAfterTheirSequenceUntilReused) {
  Start(4);
  const auto chain = ChainOf(Tokens(3 * kBlock));
  EXPECT_TRUE(pool_->Match(chain).empty());
  Release(SealedTable(chain));
  EXPECT_EQ(pool_->stats().cached, 3u);
  EXPECT_EQ(pool_->available_count(), 4u);
  {
    const auto found = pool_->Match(chain);
    ASSERT_EQ(found.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(found[i].payload()[0], std::byte(i + 1));
      EXPECT_EQ(found[i].link().key, chain[i].key);
    }
    EXPECT_EQ(pool_->available_count(), 1u);
  }
  EXPECT_EQ(pool_->Match(ChainOf(Tokens(3 * kBlock, 100))).size(), 0u);
  auto taken = pool_->Take(4);  // evicts all
  EXPECT_EQ(taken.size(), 4u);
  EXPECT_TRUE(pool_->Match(chain).empty());
  EXPECT_EQ(pool_->stats().evicted, 3u);
}

TEST_F(PagePoolTest, EndsOfPrefixesLeaveFirst) {
  Start(5);
  const auto chain = ChainOf(Tokens(5 * kBlock));
  Release(SealedTable(chain));
  for (size_t left = 5; left > 0; --left) {
    EXPECT_EQ(pool_->Match(chain).size(), left);
    auto taken = pool_->Take(5 - left + 1);
    EXPECT_EQ(pool_->stats().cached, left - 1);
  }
}

TEST_F(PagePoolTest, TheLeastRecentlyUsedPrefixLeavesFirst) {
  Start(4);
  const auto old = ChainOf(Tokens(2 * kBlock)), young = ChainOf(Tokens(2 * kBlock, 50));
  Release(SealedTable(old));
  Release(SealedTable(young));
  EXPECT_EQ(pool_->Match(old).size(), 2u);  // used: now the younger one
  auto taken = pool_->Take(2);
  EXPECT_EQ(pool_->Match(old).size(), 2u);
  EXPECT_EQ(pool_->Match(young).size(), 0u);
}

// A late publication holds only the end of a chain that its sequence has left: the beginning must
// not leave before it.
TEST_F(PagePoolTest, AnEndThatIsHeldLongerStillLeavesBeforeItsBeginning) {
  Start(2);
  const auto chain = ChainOf(Tokens(2 * kBlock));
  BlockTable table = SealedTable(chain);
  std::vector<SealedPage> published = {table.sealed()[1]};
  Release(std::move(table));
  published.clear();
  auto taken = pool_->Take(1);
  EXPECT_EQ(pool_->Match(chain).size(), 1u);
}

TEST_F(PagePoolTest, SharedPagesCountAsOwnOnlyForTheirLastHolder) {
  Start(6);
  const auto chain = ChainOf(Tokens(2 * kBlock));
  BlockTable first = SealedTable(chain);
  EXPECT_EQ(pool_->CountOwnPages(first), 2u);
  BlockTable second = pool_->MakeTable(pool_->Match(chain), {});
  ASSERT_TRUE(pool_->Extend(second, 3 * kBlock));
  EXPECT_EQ(pool_->CountOwnPages(first), 0u);
  EXPECT_EQ(pool_->CountOwnPages(second), 1u);
  EXPECT_EQ(second.pages()[0], first.pages()[0]);
  first = BlockTable();
  EXPECT_EQ(pool_->CountOwnPages(second), 3u);
  EXPECT_EQ(pool_->available_count(), 3u);
}

TEST_F(PagePoolTest, ADuplicateBecomesThePageThatIsThere) {
  Start(4);
  const auto chain = ChainOf(Tokens(2 * kBlock));
  const BlockTable first = SealedTable(chain);
  const BlockTable second = SealedTable(chain);
  EXPECT_EQ(second.pages()[1], first.pages()[1]);
  EXPECT_EQ(pool_->available_count(), 2u);
  EXPECT_EQ(pool_->stats().duplicates, 2u);
  EXPECT_EQ(pool_->stats().unequal_duplicates, 0u);
}

TEST_F(PagePoolTest, ADuplicateWithOtherBytesIsCounted) {
  Start(2);
  const auto chain = ChainOf(Tokens(kBlock));
  const BlockTable first = SealedTable(chain);
  auto other = pool_->Take(1);
  Fill(other[0], 0x77);
  const SealedPage sealed = pool_->Seal(std::move(other[0]), chain[0]);
  EXPECT_EQ(sealed.payload()[0], std::byte{1});
  EXPECT_EQ(pool_->stats().unequal_duplicates, 1u);
}

TEST_F(PagePoolTest, SealLeadingKeepsThePagesThatStillGrow) {
  Start(3);
  const auto chain = ChainOf(Tokens(2 * kBlock));
  BlockTable table;
  ASSERT_TRUE(pool_->Extend(table, 2 * kBlock + 1));
  std::byte* const last = table.pages()[2];
  pool_->SealLeading(table, std::span(chain).first(1));
  EXPECT_EQ(table.sealed().size(), 1u);
  pool_->SealLeading(table, chain);
  EXPECT_EQ(table.sealed().size(), 2u);
  EXPECT_EQ(table.open_count(), 1u);
  EXPECT_EQ(table.pages()[2], last);
}

// docs/formats.md: the unused tokens of a tail block are zero.
TEST_F(PagePoolTest, ATailBlocksUnusedTokensAreZero) {
  Start(3);
  const auto chain = ChainOf(Tokens(kBlock + 3), /*with_tail=*/true);
  BlockTable table;
  ASSERT_TRUE(pool_->Extend(table, kBlock + 3));
  for (std::byte* page : table.pages()) std::memset(page, 0xAB, SmallLayout().PayloadBytes());
  pool_->SealLeading(table, std::span(chain).first(1));

  const auto snapshot = pool_->SnapshotTail(table, chain[1]);
  ASSERT_TRUE(snapshot.has_value());
  const size_t row = 4 * sizeof(float);
  for (size_t at = 0; at < snapshot->payload().size(); ++at) {
    const bool is_used = at / row % kBlock < 3;
    ASSERT_EQ(snapshot->payload()[at], std::byte(is_used ? 0xAB : 0)) << at;
  }
  EXPECT_EQ(table.pages()[1][3 * row], std::byte{0xAB});  // the page that grows is untouched
  const SealedPage tail = pool_->SealTail(table, chain[1]);
  EXPECT_EQ(tail.payload().data(), snapshot->payload().data());  // the same block
  EXPECT_EQ(pool_->stats().unequal_duplicates, 0u);
  EXPECT_EQ(table.pages_count(), 1u);
  EXPECT_EQ(pool_->Match(chain).size(), 2u);
}

TEST_F(PagePoolTest, SnapshotAndCopyGiveNothingWithoutAPage) {
  Start(2);
  const auto chain = ChainOf(Tokens(kBlock + 1), /*with_tail=*/true);
  BlockTable table;
  ASSERT_TRUE(pool_->Extend(table, kBlock + 1));
  pool_->SealLeading(table, std::span(chain).first(1));
  EXPECT_FALSE(pool_->SnapshotTail(table, chain[1]).has_value());
  EXPECT_FALSE(pool_->CopyToOpen(table.sealed()[0]).has_value());
}

TEST_F(PagePoolTest, RemembersWhatIsPublishedUntilThePageIsReused) {
  Start(1);
  const auto chain = ChainOf(Tokens(kBlock));
  {
    const BlockTable table = SealedTable(chain);
    EXPECT_FALSE(pool_->is_published(table.sealed()[0]));
    pool_->MarkPublished(table.sealed()[0]);
  }
  EXPECT_TRUE(pool_->is_published(pool_->Match(chain)[0]));
  pool_->Take(1);
  const BlockTable again = SealedTable(chain);
  EXPECT_FALSE(pool_->is_published(again.sealed()[0]));
}

TEST_F(PagePoolTest, HandlesMayMoveAndBeAssigned) {
  Start(2);
  auto pages = pool_->Take(2);
  OpenPage moved = std::move(pages[0]);
  pages[1] = std::move(moved);  // frees what was in pages[1], at the latest with `moved`
  { const OpenPage gone = std::move(moved); }
  EXPECT_EQ(pool_->available_count(), 1u);
  SealedPage sealed = pool_->Seal(std::move(pages[1]), ChainOf(Tokens(kBlock))[0]);
  SealedPage copy = sealed;
  sealed = copy;
  EXPECT_EQ(pool_->available_count(), 1u);
}

// Random use against a count of what is held: no page is lost, freed twice or shared while written.
TEST_F(PagePoolTest, KeepsItsCountsUnderRandomUse) {
  std::mt19937 random(11);
  Start(24);
  std::vector<BlockTable> tables;
  std::vector<std::vector<ChainLink>> chains;
  for (uint32_t family = 0; family < 4; ++family)
    chains.push_back(ChainOf(Tokens(6 * kBlock, family * 1'000)));
  std::vector<SealedPage> held;
  for (int round = 0; round < 5'000; ++round) {
    switch (random() % 5) {
      case 0:
      case 1: {  // a sequence: match, extend, seal a part
        if (tables.size() >= 8) break;
        const auto& chain = chains[random() % chains.size()];
        BlockTable table = pool_->MakeTable(pool_->Match(chain), {});
        if (!pool_->Extend(table, chain.size() * kBlock)) break;
        for (size_t i = table.sealed().size(); i < table.pages_count(); ++i) {
          std::memset(table.pages()[i], static_cast<int>(i + 1), SmallLayout().PayloadBytes());
        }
        pool_->SealLeading(table, std::span(chain).first(random() % (chain.size() + 1)));
        tables.push_back(std::move(table));
        break;
      }
      case 2:
        if (!tables.empty()) {
          std::swap(tables[random() % tables.size()], tables.back());
          Release(std::move(tables.back()));
          tables.pop_back();
        }
        break;
      case 3:
        if (!tables.empty() && !tables.back().sealed().empty() && held.size() < 4)
          held.push_back(tables.back().sealed().back());
        break;
      case 4:
        if (!held.empty()) held.erase(held.begin() + random() % held.size());
        break;
    }
    std::map<const std::byte*, int> writers, users;
    for (const BlockTable& table : tables) {
      for (size_t i = 0; i < table.pages_count(); ++i) {
        if (i >= table.sealed().size()) ++writers[table.pages()[i]];
        ++users[table.pages()[i]];
      }
    }
    for (const SealedPage& page : held) ++users[page.payload().data()];
    for (const auto& [page, count] : writers) ASSERT_EQ(users[page], 1);
    ASSERT_EQ(users.size() + pool_->available_count(), 24u) << round;
  }
  EXPECT_EQ(pool_->stats().unequal_duplicates, 0u);
}

using PagePoolDeathTest = PagePoolTest;

TEST_F(PagePoolDeathTest, EndingBeforeItsHandlesIsAProgrammersError) {
  Start(1);
  auto pages = pool_->Take(1);
  EXPECT_DEATH(pool_.reset(), "still held");
}

}  // namespace
}  // namespace ibid
