// The step, in rows:  x (T, E) -> for each layer: norm, qkv, rope, K and V into pages, attention
// over pages, out projection, residual, norm, feed-forward, residual -> final norm and logits of
// the rows that were asked for.
//
// Rows do not mix but through attention, which reads pages. So in the last layer all but the rows
// that want logits stop once their K and V are written, and the feed-forward part runs in pieces of
// rows: neither changes a bit.
#include "worker/model/model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/sha256.h"
#include "worker/model/model_weights.h"
#include "worker/model/safetensors.h"
#include "worker/tokenizer/text_file.h"

namespace ibid {
namespace {

constexpr size_t kConfigBytesMax = size_t{1} << 20;
// Rows of one piece of the feed-forward part: its (rows, 2 F) stays near the processor.
constexpr size_t kFeedForwardRows = 384;

// Memory that grows and is used again by the next step.
class Rows {
 public:
  Out Get(size_t rows, size_t columns) {
    if (values_.size() < rows * columns) values_.resize(rows * columns);
    return {values_.data(), rows, columns, columns};
  }

 private:
  std::vector<float> values_;
};

Out Piece(Out rows, size_t first, size_t count) {
  return {rows.row(first), count, rows.columns, rows.stride};
}

}  // namespace

struct Model::Step {
  size_t rows = 0;  // that are still computed
  std::vector<uint32_t> tokens, positions;
  std::vector<TokenSlot> slots;
  std::vector<AttentionSequence> sequences;
  std::vector<size_t> logit_rows;
  RopeAngles angles;
  Rows x, normed, qkv, attended, delta, wide, active;
};

Model::Model() = default;
Model::~Model() = default;

absl::StatusOr<std::unique_ptr<Model>> Model::Load(const std::string& directory,
                                                   const ModelOptions& options) {
  const std::string config_path = absl::StrCat(directory, "/config.json");
  IBID_ASSIGN_OR_RETURN(const std::string config_text, ReadTextFile(config_path, kConfigBytesMax));
  auto model = std::unique_ptr<Model>(new Model);
  IBID_ASSIGN_OR_RETURN(model->config_, ModelConfig::Parse(config_text, config_path));
  const ModelConfig& config = model->config_;
  if (options.kv_dtype != KvDtype::kF32 && options.kv_dtype != KvDtype::kBf16) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV dtype ", DtypeName(options.kv_dtype),
                     " is not supported by the CPU backend; use f32 or bf16"));
  }
  model->layout_ = {.layers = config.layers,
                    .kv_heads = static_cast<uint32_t>(config.kv_heads),
                    .k_dim = static_cast<uint32_t>(config.head_dim),
                    .v_dim = static_cast<uint32_t>(config.head_dim),
                    .dtype = options.kv_dtype,
                    .block_tokens = options.block_tokens};
  IBID_RETURN_IF_ERROR(model->layout_.Validate());
  IBID_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(directory));
  if (options.is_reference) {
    model->backend_ = MakeReferenceBackend();
  } else {
    const TensorInfo* embedding =
        checkpoint->Find(config.architecture == Architecture::kLlama ? "model.embed_tokens.weight"
                                                                     : "transformer.wte.weight");
    const CpuBackendOptions cpu = {options.compute,
                                   embedding != nullptr && embedding->dtype == TensorDtype::kBf16,
                                   options.threads, options.isa};
    IBID_ASSIGN_OR_RETURN(model->backend_, MakeCpuBackend(cpu));
  }
  IBID_ASSIGN_OR_RETURN(model->weights_, LoadWeights(config, *checkpoint, model->backend_.get()));
  if (options.computes_digest) {
    Sha256 hash;
    hash.Add("ibid.model.v1").AddU32(static_cast<uint32_t>(config_text.size())).Add(config_text);
    IBID_RETURN_IF_ERROR(checkpoint->AddTo(hash));
    model->digest_ = DigestToHex(hash.Finish());
  }
  if (config.architecture == Architecture::kLlama)
    model->rope_frequencies_ = RopeFrequencies(config);
  model->step_ = std::make_unique<Step>();
  return model;
}

absl::Status Model::CheckStep(std::span<const ForwardSequence> sequences) const {
  size_t rows = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const ForwardSequence& s = sequences[i];
    const auto fail = [i](auto... text) {
      return absl::InvalidArgumentError(absl::StrCat("step, sequence ", i, ": ", text...));
    };
    if (s.tokens.empty()) return fail("no tokens");
    if (s.tokens.size() > config_.context_tokens ||
        s.first_position > config_.context_tokens - s.tokens.size()) {
      return fail(s.tokens.size(), " tokens from position ", s.first_position,
                  " on exceed the context of ", config_.context_tokens);
    }
    const size_t end = s.first_position + s.tokens.size();
    const size_t blocks = (end + layout_.block_tokens - 1) / layout_.block_tokens;
    if (s.pages.size() < blocks)
      return fail(s.pages.size(), " pages for ", end, " tokens, which need ", blocks);
    for (size_t b = 0; b < blocks; ++b) {
      if (s.pages[b] == nullptr) return fail("page ", b, " is null");
    }
    for (const uint32_t token : s.tokens) {
      if (token >= config_.vocab)
        return fail("token ", token, " is outside the vocabulary of ", config_.vocab);
    }
    rows += s.tokens.size();
    if (rows > kStepTokensMax) {
      return absl::ResourceExhaustedError(
          absl::StrCat("step of more than kStepTokensMax = ", kStepTokensMax, " rows"));
    }
  }
  return absl::OkStatus();
}

void Model::PrepareStep(std::span<const ForwardSequence> sequences) {
  Step& step = *step_;
  step.tokens.clear();
  step.positions.clear();
  step.slots.clear();
  step.sequences.clear();
  step.logit_rows.clear();
  for (const ForwardSequence& s : sequences) {
    step.sequences.push_back({step.tokens.size(), s.tokens.size(), s.first_position, s.pages});
    for (size_t i = 0; i < s.tokens.size(); ++i) {
      const size_t position = s.first_position + i;
      step.tokens.push_back(s.tokens[i]);
      step.positions.push_back(static_cast<uint32_t>(position));
      step.slots.push_back(
          {s.pages[position / layout_.block_tokens], position % layout_.block_tokens});
    }
    if (s.wants_logits) step.logit_rows.push_back(step.tokens.size() - 1);
  }
  step.rows = step.tokens.size();
  const size_t half = rope_frequencies_.size();
  step.angles.half_dim = half;
  step.angles.cosine.resize(step.rows * half);
  step.angles.sine.resize(step.rows * half);
  for (size_t t = 0; t < step.rows; ++t) {
    for (size_t i = 0; i < half; ++i) {
      // The angle is rounded to f32, as the models' training code does; the functions are taken in
      // f64, so that their rounded values do not depend on which variant the C library picks for
      // the processor.
      const double angle = static_cast<float>(step.positions[t]) * rope_frequencies_[i];
      step.angles.cosine[t * half + i] = static_cast<float>(std::cos(angle));
      step.angles.sine[t * half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

// Keeps of x and of the queries only the rows that want logits.
void Model::KeepLogitRows() {
  Step& step = *step_;
  const size_t qkv_columns = (config_.heads + 2 * config_.kv_heads) * config_.head_dim;
  const Out x = step.x.Get(step.rows, config_.width), qkv = step.qkv.Get(step.rows, qkv_columns);
  std::vector<AttentionSequence> kept;
  for (const AttentionSequence& s : step.sequences) {
    const size_t row = s.first_row + s.rows - 1, to = kept.size();
    if (to == step.logit_rows.size() || step.logit_rows[to] != row) continue;
    std::copy(x.row(row), x.row(row) + x.columns, x.row(to));
    std::copy(qkv.row(row), qkv.row(row) + qkv.columns, qkv.row(to));
    kept.push_back({to, 1, s.first_position + s.rows - 1, s.pages});
  }
  step.sequences = std::move(kept);
  step.rows = step.sequences.size();
}

void Model::Attention(uint32_t layer, bool is_last) {
  Step& step = *step_;
  const LayerWeights& w = weights_->layers[layer];
  const size_t q_columns = config_.heads * config_.head_dim,
               kv_columns = config_.kv_heads * config_.head_dim;
  const Out normed = step.normed.Get(step.rows, config_.width);
  Out qkv = step.qkv.Get(step.rows, q_columns + 2 * kv_columns);
  backend_->Norm(normed, step.x.Get(step.rows, config_.width), w.attention_norm);
  backend_->MatMul(qkv, normed, *w.qkv);
  if (!rope_frequencies_.empty()) {
    backend_->Rope(qkv.Columns(0, q_columns + kv_columns), config_.heads + config_.kv_heads,
                   step.angles);
  }
  backend_->WriteKv(qkv.Columns(q_columns, kv_columns),
                    qkv.Columns(q_columns + kv_columns, kv_columns), step.slots, layout_, layer);
  if (is_last) KeepLogitRows();
  if (step.rows == 0) return;
  qkv = step.qkv.Get(step.rows, q_columns + 2 * kv_columns);
  const Out attended = step.attended.Get(step.rows, q_columns);
  const AttentionBatch batch = {step.sequences, config_.heads,
                                1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                                config_.sliding_window};
  backend_->PagedAttention(attended, qkv.Columns(0, q_columns), batch, layout_, layer);
  const Out delta = step.delta.Get(step.rows, config_.width);
  backend_->MatMul(delta, attended, *w.out);
  backend_->AddResidual(step.x.Get(step.rows, config_.width), delta);
}

void Model::FeedForward(uint32_t layer) {
  Step& step = *step_;
  const LayerWeights& w = weights_->layers[layer];
  const bool is_gated = config_.architecture == Architecture::kLlama;
  const Out all = step.x.Get(step.rows, config_.width);
  for (size_t first = 0; first < step.rows; first += kFeedForwardRows) {
    const size_t rows = std::min(kFeedForwardRows, step.rows - first);
    const Out x = Piece(all, first, rows);
    const Out normed = step.normed.Get(rows, config_.width);
    const Out wide = step.wide.Get(rows, w.up->n());
    const Out active = step.active.Get(rows, config_.feed_forward);
    const Out delta = step.delta.Get(rows, config_.width);
    backend_->Norm(normed, x, w.feed_forward_norm);
    backend_->MatMul(wide, normed, *w.up);
    backend_->Activate(active, wide, is_gated ? Activation::kSwiGlu : Activation::kGeluTanh);
    backend_->MatMul(delta, active, *w.down);
    backend_->AddResidual(x, delta);
  }
}

absl::Status Model::Forward(std::span<const ForwardSequence> sequences,
                            std::vector<float>* logits) {
  logits->clear();
  IBID_RETURN_IF_ERROR(CheckStep(sequences));
  if (sequences.empty()) return absl::OkStatus();
  PrepareStep(sequences);
  Step& step = *step_;
  const In table = {weights_->embedding.data(), config_.vocab, config_.width, config_.width};
  const In position_table = {weights_->position_embedding.data(), config_.context_tokens,
                             config_.width, config_.width};
  const bool has_positions = config_.architecture == Architecture::kGpt2;
  backend_->Embed(
      step.x.Get(step.rows, config_.width), step.tokens, table,
      has_positions ? std::span<const uint32_t>(step.positions) : std::span<const uint32_t>(),
      position_table);
  for (uint32_t layer = 0; layer < config_.layers; ++layer) {
    Attention(layer, layer + 1 == config_.layers);
    FeedForward(layer);
  }
  if (step.rows == 0) return absl::OkStatus();
  const Out x = step.x.Get(step.rows, config_.width);
  const Out normed = step.normed.Get(step.rows, config_.width);
  backend_->Norm(normed, x, weights_->final_norm);
  logits->resize(step.rows * config_.vocab);
  backend_->MatMul({logits->data(), step.rows, config_.vocab, config_.vocab}, normed,
                   *weights_->head);
  return absl::OkStatus();
}

}  // namespace ibid
