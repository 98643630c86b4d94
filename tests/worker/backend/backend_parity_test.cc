// Every operation of CpuBackend against the plain loops of ReferenceBackend; tolerances are
// relative to values near 1.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "gtest/gtest.h"
#include "tests/worker/backend/random_matrix.h"
#include "worker/backend/cpu_backend.h"
#include "worker/backend/kernels.h"

namespace ibid {
namespace {

using testing::Matrix;

constexpr float kTolerance = 2e-6f;           // one rounding or a short chain of f32
constexpr float kAttentionTolerance = 1e-5f;  // long sums

// Runs for every instruction set that this processor has.
class Parity : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { UseIsa(GetParam()); }

  void UseIsa(const char* isa) {
    if (FindKernels(isa) == nullptr) GTEST_SKIP() << "this processor has no " << isa;
    cpu_ = *MakeCpuBackend({.threads = 2, .isa = isa});
    plain_ = MakeReferenceBackend();
  }

  void CheckAttention(const struct AttentionCase& c);
  void ExpectNear(const Matrix& a, const Matrix& b, float tolerance) {
    for (size_t i = 0; i < a.values().size(); ++i) {
      const float expected = b.values()[i];
      ASSERT_NEAR(a.values()[i], expected, tolerance * (1 + std::fabs(expected))) << "at " << i;
    }
  }

  std::unique_ptr<Backend> cpu_, plain_;
};

TEST_P(Parity, EmbedGathersRowsAndAddsPositions) {
  const Matrix table(50, 33, 1), positions(20, 33, 2);
  const std::vector<uint32_t> tokens = {49, 0, 7, 7}, places = {0, 1, 19, 3};
  Matrix a(4, 33), b(4, 33);
  cpu_->Embed(a, tokens, table, places, positions);
  plain_->Embed(b, tokens, table, places, positions);
  EXPECT_EQ(a.values(), b.values());
  cpu_->Embed(a, tokens, table, {}, {});
  EXPECT_EQ(a.values()[0], table.values()[49 * 33]);
}

TEST_P(Parity, NormsOfEveryWidth) {
  for (size_t width = 1; width < 70; ++width) {
    NormWeight rms{NormWeight::Kind::kRms, Matrix(1, width, 2).values(), {}, 1e-5f};
    NormWeight layer{NormWeight::Kind::kLayer, Matrix(1, width, 3).values(),
                     Matrix(1, width, 4).values(), 1e-5f};
    const Matrix x(40, width, 5);
    Matrix a(40, width), b(40, width);
    for (const NormWeight& w : {rms, layer}) {
      cpu_->Norm(a, x, w);
      plain_->Norm(b, x, w);
      // Of two values or one the difference to the mean is all rounding.
      ExpectNear(a, b, w.kind == NormWeight::Kind::kLayer ? 2e-4f : kTolerance);
    }
  }
}

TEST_P(Parity, RopeRotatesEachHead) {
  for (const size_t half : {1, 3, 4, 8, 20, 32}) {
    RopeAngles angles{Matrix(9, half, 1).values(), Matrix(9, half, 2).values(), half};
    Matrix a(9, 5 * 2 * half, 3);
    Matrix b = a;
    cpu_->Rope(a, 5, angles);
    plain_->Rope(b, 5, angles);
    ExpectNear(a, b, kTolerance);
  }
}

TEST_P(Parity, ActivationsOverTheWholeRange) {
  Matrix x(4, 2 * 333, 1, 6.0f);
  x.values()[0] = -200;
  x.values()[1] = 200;
  x.values()[2] = 0;
  Matrix a(4, 333), b(4, 333);
  cpu_->Activate(a, x, Activation::kSwiGlu);
  plain_->Activate(b, x, Activation::kSwiGlu);
  ExpectNear(a, b, kTolerance);
  Matrix c(4, 666), d(4, 666);
  cpu_->Activate(c, x, Activation::kGeluTanh);
  plain_->Activate(d, x, Activation::kGeluTanh);
  ExpectNear(c, d, kTolerance);
}

TEST_P(Parity, AddResidualAndMatMul) {
  Matrix a(70, 21, 1);
  Matrix b = a;
  const Matrix delta(70, 21, 2);
  cpu_->AddResidual(a, delta);
  plain_->AddResidual(b, delta);
  EXPECT_EQ(a.values(), b.values());
  const Matrix weight(50, 21, 3), bias(1, 50, 4);
  Matrix c(70, 50), d(70, 50);
  cpu_->MatMul(c, a, **cpu_->Pack(weight, bias.values()));
  plain_->MatMul(d, a, **plain_->Pack(weight, bias.values()));
  ExpectNear(c, d, kAttentionTolerance);
}

TEST_P(Parity, CopyPagesCopiesWholePages) {
  std::vector<std::byte> from(100, std::byte{7}), to(100);
  const std::pair<const std::byte*, std::byte*> copy(from.data(), to.data());
  cpu_->CopyPages({&copy, 1}, 100);
  EXPECT_EQ(from, to);
}

// Pages of one sequence in shuffled order in one region, with bytes in between that nobody may
// touch.
struct PageRegion {
  PageRegion(const KvLayout& layout, size_t blocks, unsigned seed)
      : stride(layout.PayloadBytes() + 64) {
    bytes.assign(stride * blocks, std::byte{0xff});  // NaN in f32 and bf16
    std::vector<size_t> order(blocks);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    for (const size_t place : order) table.push_back(bytes.data() + place * stride);
  }
  size_t stride;
  std::vector<std::byte> bytes;
  std::vector<std::byte*> table;
};

std::vector<TokenSlot> SlotsOf(const PageRegion& region, const KvLayout& layout, size_t first,
                               size_t count) {
  std::vector<TokenSlot> slots;
  for (size_t p = first; p < first + count; ++p) {
    slots.push_back({region.table[p / layout.block_tokens], p % layout.block_tokens});
  }
  return slots;
}

struct AttentionCase {
  KvDtype dtype;
  uint32_t block_tokens, kv_heads, dim;
  size_t heads, tokens, window;
};

const AttentionCase kAttentionCases[] = {
    {KvDtype::kF32, 16, 2, 64, 6, 100, 0},  {KvDtype::kBf16, 16, 2, 64, 6, 100, 0},
    {KvDtype::kBf16, 16, 1, 128, 8, 70, 0}, {KvDtype::kF32, 16, 4, 8, 8, 150, 0},
    {KvDtype::kBf16, 16, 3, 10, 3, 40, 0},  {KvDtype::kF32, 64, 2, 20, 4, 130, 0},
    {KvDtype::kBf16, 1, 2, 16, 2, 35, 0},   {KvDtype::kF32, 5, 2, 16, 2, 35, 0},
    {KvDtype::kF32, 24, 2, 6, 2, 90, 0},    {KvDtype::kBf16, 16, 2, 16, 4, 100, 8},
    {KvDtype::kF32, 16, 2, 16, 4, 100, 33}, {KvDtype::kF32, 16, 2, 16, 4, 1, 1}};

void Parity::CheckAttention(const AttentionCase& c) {
  const KvLayout layout = {.layers = 2,
                           .kv_heads = c.kv_heads,
                           .k_dim = c.dim,
                           .v_dim = c.dim,
                           .dtype = c.dtype,
                           .block_tokens = c.block_tokens};
  const size_t blocks = (c.tokens + c.block_tokens - 1) / c.block_tokens;
  PageRegion a_region(layout, blocks, 1), b_region(layout, blocks, 1);
  const Matrix k(c.tokens, c.kv_heads * c.dim, 1), v(c.tokens, c.kv_heads * c.dim, 2),
      q(c.tokens, c.heads * c.dim, 3);
  cpu_->WriteKv(k, v, SlotsOf(a_region, layout, 0, c.tokens), layout, 1);
  plain_->WriteKv(k, v, SlotsOf(b_region, layout, 0, c.tokens), layout, 1);
  ASSERT_EQ(a_region.bytes, b_region.bytes);

  Matrix a(c.tokens, c.heads * c.dim), b(c.tokens, c.heads * c.dim);
  const AttentionSequence whole_a = {0, c.tokens, 0, a_region.table},
                          whole_b = {0, c.tokens, 0, b_region.table};
  const float scale = 1 / std::sqrt(static_cast<float>(c.dim));
  cpu_->PagedAttention(a, q, {{&whole_a, 1}, c.heads, scale, c.window}, layout, 1);
  plain_->PagedAttention(b, q, {{&whole_b, 1}, c.heads, scale, c.window}, layout, 1);
  ExpectNear(a, b, kAttentionTolerance);

  // Any cut into runs of rows gives the same bits.
  for (const size_t run : {1, 2, 3, 5, 17}) {
    Matrix cut(c.tokens, c.heads * c.dim);
    std::vector<AttentionSequence> sequences;
    for (size_t r = 0; r < c.tokens; r += run) {
      sequences.push_back({r, std::min(run, c.tokens - r), r, a_region.table});
    }
    cpu_->PagedAttention(cut, q, {sequences, c.heads, scale, c.window}, layout, 1);
    ASSERT_EQ(std::memcmp(cut.values().data(), a.values().data(), a.values().size() * 4), 0)
        << "runs of " << run;
  }
}

TEST_P(Parity, PagesAndAttentionAreThoseOfThePlainLoopsAndTheSameForAnyRunsOfRows) {
  for (const AttentionCase& c : kAttentionCases) CheckAttention(c);
}

TEST_P(Parity, Bf16RoundsToNearestEvenAndKeepsNanAndInfinity) {
  const KvLayout layout = {.layers = 1,
                           .kv_heads = 1,
                           .k_dim = 8,
                           .v_dim = 8,
                           .dtype = KvDtype::kBf16,
                           .block_tokens = 1};
  const auto bits = [](uint32_t b) {
    float value;
    std::memcpy(&value, &b, 4);
    return value;
  };
  Matrix k(1, 8);
  k.values() = {bits(0x3f808000),
                bits(0x3f818000),
                bits(0x3f808001),
                bits(0x7fffffff),
                bits(0x7f800001),
                -std::numeric_limits<float>::infinity(),
                std::numeric_limits<float>::max(),
                -0.0f};
  const uint16_t expected[] = {0x3f80, 0x3f82, 0x3f81, 0x7fff, 0x7fc0, 0xff80, 0x7f80, 0x8000};
  std::vector<std::byte> page(layout.PayloadBytes());
  const TokenSlot slot = {page.data(), 0};
  cpu_->WriteKv(k, k, {&slot, 1}, layout, 0);
  EXPECT_EQ(std::memcmp(page.data(), expected, sizeof expected), 0);
}

// Scores far apart and all equal: the online softmax must neither overflow nor lose its sum.
TEST_P(Parity, SoftmaxOfExtremeScores) {
  const KvLayout layout = {.layers = 1,
                           .kv_heads = 1,
                           .k_dim = 8,
                           .v_dim = 8,
                           .dtype = KvDtype::kF32,
                           .block_tokens = 16};
  for (const float size : {0.0f, 1e-30f, 30.0f, 1e4f, 1e15f}) {
    Matrix k(60, 8, 1, size), v(60, 8, 2), q(60, 8, 3, size == 0 ? 1 : size);
    PageRegion region(layout, 4, 1);
    cpu_->WriteKv(k, v, SlotsOf(region, layout, 0, 60), layout, 0);
    const AttentionSequence s = {0, 60, 0, region.table};
    Matrix a(60, 8), b(60, 8);
    cpu_->PagedAttention(a, q, {{&s, 1}, 1, 1.0f, 0}, layout, 0);
    plain_->PagedAttention(b, q, {{&s, 1}, 1, 1.0f, 0}, layout, 0);
    for (const float value : a.values()) ASSERT_TRUE(std::isfinite(value)) << size;
    if (size <= 1) ExpectNear(a, b, kAttentionTolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, Parity, ::testing::Values("sse2", "avx2", "avx512"),
                         [](const auto& info) { return std::string(info.param); });

TEST(CpuBackendOptionsTest, UnknownOrImpossibleSettingsAreRefused) {
  EXPECT_FALSE(ParseComputeDtype("f64").ok());
  EXPECT_EQ(*ParseComputeDtype("bf16"), ComputeDtype::kBf16);
  EXPECT_EQ(MakeCpuBackend({.threads = kBackendThreadsMax + 1}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(MakeCpuBackend({.isa = "neon"}).ok());
  EXPECT_NE((*MakeCpuBackend({.isa = "sse2"}))->NumericsId().find("isa=sse2"), std::string::npos);
  EXPECT_EQ((*MakeCpuBackend({.threads = 1}))->NumericsId(),
            (*MakeCpuBackend({.threads = 2}))->NumericsId());
}

}  // namespace
}  // namespace ibid
