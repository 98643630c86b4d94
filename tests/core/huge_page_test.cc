#include "core/huge_page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "core/chunked_array.h"

namespace ibid {
namespace {

bool IsAligned(const void* address, size_t to) {
  return reinterpret_cast<uintptr_t>(address) % to == 0;
}

TEST(HugePage, IsAlignedAndZeroed) {
  for (int i = 0; i < 8; ++i) {
    const HugePage page = MakeHugePage();
    EXPECT_TRUE(IsAligned(page.get(), kHugePageBytes));
    for (size_t at = 0; at < kHugePageBytes; at += 4096) ASSERT_EQ(page.get()[at], std::byte{0});
    std::memset(page.get(), 0xFF, kHugePageBytes);  // all of it is there
  }
}

TEST(HugePagePieces, NeverOverlapThroughAnyComingAndGoing) {
  HugePagePieces pieces;
  std::mt19937 random(3);
  struct Piece {
    std::byte* begin;
    size_t bytes;
    std::byte mark;
  };
  std::vector<Piece> held;
  for (int step = 0; step < 3'000; ++step) {
    if (held.size() > 40 || (!held.empty() && random() % 2 == 0)) {
      std::swap(held[random() % held.size()], held.back());
      const Piece& piece = held.back();
      for (size_t at = 0; at < piece.bytes; at += 512) ASSERT_EQ(piece.begin[at], piece.mark);
      pieces.Free(piece.begin, piece.bytes);
      held.pop_back();
    } else {
      // Whole pages, halves and so on down to what is not cut from a page at all.
      const size_t bytes = kHugePageBytes >> (random() % 8);
      Piece piece{pieces.Allocate(bytes), bytes, static_cast<std::byte>(random())};
      ASSERT_TRUE(IsAligned(piece.begin, 64));
      for (size_t at = 0; at < bytes; at += 512) piece.begin[at] = piece.mark;
      held.push_back(piece);
    }
  }
  for (const Piece& piece : held) pieces.Free(piece.begin, piece.bytes);
}

TEST(HugePagePieces, AFreedPageServesAnotherSize) {
  HugePagePieces pieces;
  std::byte* const first = pieces.Allocate(kHugePageBytes / 2);
  std::byte* const second = pieces.Allocate(kHugePageBytes / 2);
  pieces.Free(first, kHugePageBytes / 2);
  pieces.Free(second, kHugePageBytes / 2);
  std::byte* const whole = pieces.Allocate(kHugePageBytes);
  EXPECT_EQ(whole, std::min(first, second));
  pieces.Free(whole, kHugePageBytes);
}

TEST(ChunkedArray, KeepsElementsWhereTheyAreAndValueInitialised) {
  struct Element {
    uint32_t word = 7;
    uint64_t other = 8;
  };
  ChunkedArray<Element> array;
  array.EnsureSize(1);
  Element* const first = &array[0];
  first->word = 9;
  array.EnsureSize(1'000'000);
  EXPECT_GE(array.size(), 1'000'000u);
  EXPECT_EQ(&array[0], first);
  EXPECT_EQ(array[0].word, 9u);
  for (size_t i = 1; i < array.size(); ++i) {
    ASSERT_EQ(array[i].word, 7u);
    ASSERT_EQ(array[i].other, 8u);
  }
}

}  // namespace
}  // namespace ibid
