// The project's main invariant at its root: what a token's K, V and logits are depends on the
// tokens before it only. Everything here is compared bit for bit.
#include <cstring>

#include "gtest/gtest.h"
#include "tests/worker/model/tiny_model.h"

namespace ibid {
namespace {

using testing::Pages;
using testing::Prefill;
using testing::RandomTokens;
using testing::TemporaryFolder;
using testing::TinyShape;

struct Case {
  const char* name;
  KvDtype dtype;
  uint32_t block_tokens;
  size_t threads;
  TinyShape shape;
};

TinyShape Windowed() {
  TinyShape shape;
  shape.sliding_window = 21;
  return shape;
}
TinyShape Wide() {
  TinyShape shape;
  shape.vocab = 300;
  shape.width = 384;
  shape.head_dim = 64;
  shape.feed_forward = 500;
  return shape;
}

class BatchInvariance : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    testing::WriteLlama(folder_, GetParam().shape);
    model_ = Load(GetParam().threads);
    ASSERT_NE(model_, nullptr);
  }
  std::unique_ptr<Model> Load(size_t threads) {
    ModelOptions options;
    options.kv_dtype = GetParam().dtype;
    options.block_tokens = GetParam().block_tokens;
    options.threads = threads;
    auto model = Model::Load(folder_.path(), options);
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *std::move(model) : nullptr;
  }
  std::vector<uint32_t> Tokens(size_t count, unsigned seed) {
    return RandomTokens(count, model_->config().vocab, seed);
  }

  TemporaryFolder folder_;
  std::unique_ptr<Model> model_;
};

constexpr size_t kPrompt = 131;

TEST_P(BatchInvariance, ChunkSizesChangeNeitherPagesNorLogits) {
  const auto tokens = Tokens(kPrompt, 1);
  const Pages whole(model_->layout(), kPrompt);
  const std::vector<float> logits = Prefill(*model_, tokens, whole, kPrompt);
  for (const size_t chunk : {1, 2, 5, 16, 33, 97}) {
    const Pages pages(model_->layout(), kPrompt);
    EXPECT_EQ(Prefill(*model_, tokens, pages, chunk), logits) << "chunks of " << chunk;
    EXPECT_EQ(pages.Bytes(), whole.Bytes()) << "chunks of " << chunk;
  }
}

TEST_P(BatchInvariance, SequencesBesideItChangeNothing) {
  const auto tokens = Tokens(kPrompt, 1);
  const Pages alone(model_->layout(), kPrompt);
  const std::vector<float> logits = Prefill(*model_, tokens, alone, kPrompt);
  const size_t vocab = model_->config().vocab;
  for (const size_t others : {1, 3, 9}) {
    const Pages pages(model_->layout(), kPrompt);
    std::vector<std::unique_ptr<Pages>> other_pages;
    std::vector<std::vector<uint32_t>> other_tokens;
    std::vector<ForwardSequence> step;
    for (size_t i = 0; i < others; ++i) {
      other_tokens.push_back(Tokens(1 + 13 * i, static_cast<unsigned>(i + 2)));
      other_pages.push_back(std::make_unique<Pages>(model_->layout(), 200));
      step.push_back({other_tokens.back(), 0, other_pages.back()->table(), i % 2 == 0});
    }
    const size_t place = others / 2;
    step.insert(step.begin() + place, {tokens, 0, pages.table(), true});
    std::vector<float> all;
    ASSERT_TRUE(model_->Forward(step, &all).ok());
    size_t row = 0;
    for (size_t i = 0; i < place; ++i) row += step[i].wants_logits ? 1 : 0;
    EXPECT_EQ(std::memcmp(&all[row * vocab], logits.data(), vocab * 4), 0) << others << " others";
    EXPECT_EQ(pages.Bytes(), alone.Bytes()) << others << " others";
  }
}

// A decode step whose earlier blocks came from elsewhere (copied pages) goes on as if it had
// computed them.
TEST_P(BatchInvariance, CopiedPagesContinueWithTheSameBits) {
  const auto tokens = Tokens(kPrompt, 1);
  const Pages first(model_->layout(), kPrompt + 8);
  std::vector<float> a = Prefill(*model_, tokens, first, kPrompt), b;
  const size_t kept = kPrompt / model_->layout().block_tokens * model_->layout().block_tokens;
  const Pages second(model_->layout(), kPrompt + 8);
  for (size_t i = 0; i < kept / model_->layout().block_tokens; ++i) {
    std::memcpy(second.table()[i], first.table()[i], model_->layout().PayloadBytes());
  }
  if (kept < kPrompt) {
    const ForwardSequence rest = {std::span(tokens).subspan(kept), kept, second.table(), true};
    ASSERT_TRUE(model_->Forward({&rest, 1}, &b).ok());
    EXPECT_EQ(a, b);
  }
  for (uint32_t i = 0; i < 8; ++i) {
    const ForwardSequence on_first = {{&i, 1}, kPrompt + i, first.table(), true};
    const ForwardSequence on_second = {{&i, 1}, kPrompt + i, second.table(), true};
    ASSERT_TRUE(model_->Forward({&on_first, 1}, &a).ok());
    ASSERT_TRUE(model_->Forward({&on_second, 1}, &b).ok());
    ASSERT_EQ(a, b);
  }
  EXPECT_EQ(first.Bytes(), second.Bytes());
}

TEST_P(BatchInvariance, TheNumberOfThreadsChangesNothing) {
  const auto tokens = Tokens(kPrompt, 1);
  const Pages pages(model_->layout(), kPrompt);
  const std::vector<float> logits = Prefill(*model_, tokens, pages, kPrompt);
  for (const size_t threads : {1, 2, 3, 7}) {
    const std::unique_ptr<Model> other = Load(threads);
    ASSERT_NE(other, nullptr);
    const Pages other_pages(other->layout(), kPrompt);
    EXPECT_EQ(Prefill(*other, tokens, other_pages, 50), logits) << threads << " threads";
    EXPECT_EQ(other_pages.Bytes(), pages.Bytes()) << threads << " threads";
    EXPECT_EQ(other->numerics_id(), model_->numerics_id());
  }
}

TEST_P(BatchInvariance, LogitsOfEveryPositionAreThoseOfTheStepThatAskedForThem) {
  const auto tokens = Tokens(40, 1);
  const Pages stepwise(model_->layout(), 40);
  for (size_t i = 0; i < 40; ++i) {
    const ForwardSequence one = {{&tokens[i], 1}, i, stepwise.table(), true};
    std::vector<float> a;
    ASSERT_TRUE(model_->Forward({&one, 1}, &a).ok());
    const std::vector<uint32_t> start(tokens.begin(), tokens.begin() + i + 1);
    ASSERT_EQ(a, Prefill(*model_, start, Pages(model_->layout(), 40), 40)) << "position " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, BatchInvariance,
                         ::testing::Values(Case{"Bf16", KvDtype::kBf16, 16, 2, {}},
                                           Case{"F32", KvDtype::kF32, 16, 2, {}},
                                           Case{"SmallBlocks", KvDtype::kBf16, 4, 2, {}},
                                           Case{"LargeBlocks", KvDtype::kF32, 40, 1, {}},
                                           Case{"Windowed", KvDtype::kBf16, 16, 2, Windowed()},
                                           Case{"Wide", KvDtype::kBf16, 16, 2, Wide()}),
                         [](const auto& info) { return std::string(info.param.name); });

// The plain loops and the fast ones are the same model.
TEST(Equivalence, ReferenceForwardAgreesWithTheFastOne) {
  TemporaryFolder folder;
  testing::WriteLlama(folder, {});
  for (const KvDtype dtype : {KvDtype::kF32, KvDtype::kBf16}) {
    ModelOptions options;
    options.kv_dtype = dtype;
    const auto fast = Model::Load(folder.path(), options);
    options.is_reference = true;
    const auto plain = Model::Load(folder.path(), options);
    ASSERT_TRUE(fast.ok() && plain.ok()) << fast.status() << plain.status();
    EXPECT_EQ((*fast)->digest(), (*plain)->digest());
    EXPECT_NE((*fast)->numerics_id(), (*plain)->numerics_id());
    const auto tokens = RandomTokens(70, 64, 4);
    const auto a = Prefill(**fast, tokens, Pages((*fast)->layout(), 70), 70);
    const auto b = Prefill(**plain, tokens, Pages((*plain)->layout(), 70), 70);
    // A K that rounds the other way to bf16 is 2^-8 off, so bf16 pages agree only so far.
    const float tolerance = dtype == KvDtype::kF32 ? 2e-4f : 5e-2f;
    for (size_t v = 0; v < a.size(); ++v) ASSERT_NEAR(a[v], b[v], tolerance * (1 + std::abs(b[v])));
  }
}

TEST(ForwardErrors, AStepThatCannotRunSaysWhyAndTouchesNoPage) {
  TemporaryFolder folder;
  testing::WriteLlama(folder, {});
  const auto loaded = Model::Load(folder.path(), {});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  Model& model = **loaded;
  const Pages pages(model.layout(), 32);
  const std::string before = pages.Bytes();
  const std::vector<uint32_t> good(20, 1), bad = {1, 64};
  std::vector<float> logits;
  const auto error = [&](ForwardSequence s) {
    return std::string(model.Forward({&s, 1}, &logits).message());
  };
  EXPECT_NE(error({bad, 0, pages.table(), true}).find("token 64"), std::string::npos);
  EXPECT_NE(error({{}, 0, pages.table(), true}).find("no tokens"), std::string::npos);
  EXPECT_NE(error({good, 20, pages.table(), true}).find("pages"), std::string::npos);
  EXPECT_NE(error({good, 500, pages.table(), true}).find("context"), std::string::npos);
  EXPECT_NE(error({good, SIZE_MAX - 3, pages.table(), true}).find("context"), std::string::npos);
  const std::vector<std::byte*> holes = {pages.table()[0], nullptr};
  EXPECT_NE(error({good, 0, holes, true}).find("null"), std::string::npos);
  EXPECT_EQ(pages.Bytes(), before);
  EXPECT_TRUE(model.Forward({}, &logits).ok());
  EXPECT_TRUE(logits.empty());
}

}  // namespace
}  // namespace ibid
