// Matrix products: right, and the same bits for a row whatever is beside it.
#include <cmath>
#include <cstring>
#include <functional>

#include "gtest/gtest.h"
#include "tests/worker/backend/random_matrix.h"
#include "worker/backend/kernels.h"
#include "worker/backend/panel_product.h"
#include "worker/backend/row_tiles.h"
#include "worker/backend/tiled_product.h"
#include "worker/backend/work_team.h"

namespace ibid {
namespace {

using testing::Matrix;

struct Shape {
  size_t n, k;
};
const Shape kShapes[] = {{1, 1}, {16, 8}, {17, 5}, {96, 64}, {130, 384}, {40, 1024}, {344, 64}};
const size_t kRowCounts[] = {1, 2, 3, 5, 6, 7, 11, 12, 13, 16, 33, 97, 128, 200};

float Exact(In x, size_t t, In w, size_t n, const std::vector<float>& bias) {
  double sum = bias.empty() ? 0 : bias[n];
  for (size_t k = 0; k < x.columns; ++k) sum += double{x.row(t)[k]} * w.row(n)[k];
  return static_cast<float>(sum);
}

bool Same(const float* a, const float* b, size_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

template <typename Multiplier>
void CheckRows(Multiplier& multiplier, const PackedWeight& w, In weight,
               const std::vector<float>& bias) {
  const Matrix x(200, w.k(), 3);
  Matrix all(200, w.n());
  multiplier.Multiply(all, x, w);
  for (const size_t t : {0, 1, 63, 199}) {
    for (size_t n = 0; n < w.n(); ++n) {
      const float expected = Exact(x, t, weight, n, bias);
      ASSERT_NEAR(Out(all).row(t)[n], expected, 1e-4f + 1e-5f * std::fabs(expected))
          << "row " << t << " column " << n;
    }
  }
  for (const size_t rows : kRowCounts) {
    for (const size_t first : {size_t{0}, (200 - rows) / 2, 200 - rows}) {
      Matrix some(rows, w.n());
      multiplier.Multiply(some, x.Rows(first, rows), w);
      ASSERT_TRUE(Same(some.values().data(), Out(all).row(first), rows * w.n()))
          << rows << " rows from " << first << ", N=" << w.n() << " K=" << w.k();
    }
  }
}

class Threads : public ::testing::TestWithParam<size_t> {};

TEST_P(Threads, PanelProductsAreRightAndBatchInvariant) {
  const Kernels& kernels = KernelsOfThisProcessor();
  WorkTeam team(GetParam(), TiledMultiplier::DisableOpenMpOnThisThread);
  PanelMultiplier multiplier(&kernels, &team);
  for (const auto& [n, k] : kShapes) {
    const Matrix weight(n, k, 1, 0.3f);
    const Matrix bias(1, n, 2);
    CheckRows(multiplier, *multiplier.Pack(weight, {}), weight, {});
    CheckRows(multiplier, *multiplier.Pack(weight, bias.values()), weight, bias.values());
  }
}

TEST_P(Threads, TiledProductsByOneDnnAreRightAndBatchInvariant) {
  const Kernels& kernels = KernelsOfThisProcessor();
  WorkTeam team(GetParam(), TiledMultiplier::DisableOpenMpOnThisThread);
  TiledMultiplier multiplier(/*is_bf16=*/false, &kernels, &team);
  for (const auto& [n, k] : kShapes) {
    const Matrix weight(n, k, 1, 0.3f);
    const Matrix bias(1, n, 2);
    const auto packed = multiplier.Pack(weight, bias.values());
    ASSERT_TRUE(packed.ok()) << packed.status();
    CheckRows(multiplier, **packed, weight, bias.values());
  }
}

INSTANTIATE_TEST_SUITE_P(OneTwoFive, Threads, ::testing::Values(1, 2, 5));

std::vector<const Kernels*> RunnableKernels() {
  std::vector<const Kernels*> kernels;
  for (const char* isa : {"sse2", "avx2", "avx512"}) {
    if (FindKernels(isa) != nullptr) kernels.push_back(FindKernels(isa));
  }
  return kernels;
}

// What panel_kernel.h promises: the bits of the plain loop, hence of any instruction set with fused
// sums.
TEST(PanelKernel, EveryElementIsOneChainOfFusedSums) {
  for (const Kernels* kernels : RunnableKernels()) {
    WorkTeam team(1, [] {});
    PanelMultiplier multiplier(kernels, &team);
    const Matrix weight(37, 129, 1), x(14, 129, 2);
    Matrix y(14, 37);
    multiplier.Multiply(y, x, *multiplier.Pack(weight, {}));
    for (size_t t = 0; t < 14; ++t) {
      for (size_t n = 0; n < 37; ++n) {
        float sum = 0;
        for (size_t k = 0; k < 129; ++k) {
          const float a = In(x).row(t)[k], b = In(weight).row(n)[k];
          if (kernels == &kKernelsSse2) {
            const volatile float product = a * b;
            sum += product;
          } else {
            sum = std::fma(a, b, sum);
          }
        }
        ASSERT_EQ(Out(y).row(t)[n], sum) << kernels->isa;
      }
    }
  }
}

TEST(PanelKernel, WeightsThatAreBf16GiveTheSameBitsWhenKeptNarrow) {
  WorkTeam team(2, [] {});
  PanelMultiplier multiplier(&KernelsOfThisProcessor(), &team);
  Matrix weight(40, 64, 1);
  for (float& value : weight.values()) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bits &= 0xffff0000u;
    std::memcpy(&value, &bits, 4);
  }
  Matrix wide = weight;
  // One more value that is no bf16, multiplied by zero in all rows, keeps the second weight in f32.
  wide.values()[63] = 1.0f + 1e-6f;
  weight.values()[63] = 1.0f;
  Matrix x(50, 64, 2);
  for (size_t t = 0; t < 50; ++t) x.values()[t * 64 + 63] = 0;
  for (const size_t rows : {1, 5, 50}) {
    Matrix a(rows, 40), b(rows, 40);
    multiplier.Multiply(a, x.Rows(0, rows), *multiplier.Pack(weight, {}));
    multiplier.Multiply(b, x.Rows(0, rows), *multiplier.Pack(wide, {}));
    ASSERT_TRUE(Same(a.values().data(), b.values().data(), rows * 40));
  }
}

// A product whose bits depend on the tile and on the place in it, as told.
void FakeProduct(size_t tile, size_t shift, float* y, size_t columns,
                 const std::function<float(size_t, size_t)>& error) {
  for (size_t r = 0; r < kRowTileMax; ++r) {
    for (size_t c = 0; c < columns; ++c)
      y[r * columns + c] = static_cast<float>(r + c) + error(tile, (r + shift) % tile);
  }
}

std::vector<size_t> Choose(const std::function<float(size_t tile, size_t place)>& error) {
  return ChooseRowTiles(kRowTiles, 4, [&](size_t tile, size_t shift, float* y) {
    FakeProduct(tile, shift, y, 4, error);
  });
}

TEST(RowTiles, AllTilesAreUsedWhenTheirBitsAgree) {
  EXPECT_EQ(Choose([](size_t, size_t) { return 0.0f; }), (std::vector<size_t>{6, 48, 192}));
}

TEST(RowTiles, ATileThatDiffersAtOnePlaceIsLeftOut) {
  EXPECT_EQ(
      Choose([](size_t tile, size_t place) { return tile == 48 && place == 47 ? 1e-3f : 0.0f; }),
      (std::vector<size_t>{6, 192}));
}

TEST(RowTiles, SingleRowsRemainWhenTheSmallestTileDependsOnThePlace) {
  EXPECT_EQ(
      Choose([](size_t tile, size_t place) { return tile == 6 && place == 5 ? 1e-3f : 0.0f; }),
      (std::vector<size_t>{1}));
}

TEST(RowTiles, GroupsCoverAllRowsOnceAndOnlyTheLastIsPadded) {
  for (size_t rows = 1; rows < 900; ++rows) {
    for (const size_t wanted : {1, 4, 100}) {
      size_t next = 0;
      const std::vector<RowGroup> groups = CutRows(rows, kRowTiles, wanted);
      for (const RowGroup& group : groups) {
        ASSERT_EQ(group.first, next);
        ASSERT_TRUE(group.rows == group.tile || &group == &groups.back());
        next += group.rows;
      }
      ASSERT_EQ(next, rows);
    }
  }
}

}  // namespace
}  // namespace ibid
