#include "worker/model/model_weights.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/check.h"

namespace ibid {
namespace {

// Reads tensors of one model and packs them.
class Loader {
 public:
  Loader(const ModelConfig& config, const Checkpoint& checkpoint, Backend* backend)
      : c_(config), checkpoint_(checkpoint), backend_(backend) {}

  absl::Status LoadLlama(ModelWeights* w);
  absl::Status LoadGpt2(ModelWeights* w);

 private:
  absl::StatusOr<std::vector<float>> Matrix(const std::string& name, size_t rows, size_t columns) {
    const size_t shape[] = {rows, columns};
    return checkpoint_.Read(name, shape);
  }
  absl::StatusOr<std::vector<float>> Vector(const std::string& name, size_t count) {
    const size_t shape[] = {count};
    return checkpoint_.Read(name, shape);
  }
  absl::StatusOr<std::unique_ptr<PackedWeight>> Pack(const std::vector<float>& values, size_t n,
                                                     size_t k, const std::vector<float>& bias) {
    return backend_->Pack(In{values.data(), n, k, k}, bias);
  }

  // Linear layers `names` below each other as one weight (sum of rows, k); their biases too if
  // `has_bias`.
  absl::StatusOr<std::unique_ptr<PackedWeight>> Stacked(
      const std::vector<std::pair<std::string, size_t>>& names, size_t k, bool has_bias) {
    std::vector<float> values, bias;
    size_t n = 0;
    for (const auto& [name, rows] : names) {
      IBID_ASSIGN_OR_RETURN(const std::vector<float> part, Matrix(name + ".weight", rows, k));
      values.insert(values.end(), part.begin(), part.end());
      if (has_bias) {
        IBID_ASSIGN_OR_RETURN(const std::vector<float> part_bias, Vector(name + ".bias", rows));
        bias.insert(bias.end(), part_bias.begin(), part_bias.end());
      }
      n += rows;
    }
    return Pack(values, n, k, bias);
  }

  // GPT-2 keeps its weights as (inputs, outputs).
  absl::StatusOr<std::unique_ptr<PackedWeight>> Transposed(const std::string& name, size_t n,
                                                           size_t k) {
    IBID_ASSIGN_OR_RETURN(const std::vector<float> from, Matrix(name + ".weight", k, n));
    IBID_ASSIGN_OR_RETURN(const std::vector<float> bias, Vector(name + ".bias", n));
    std::vector<float> to(from.size());
    for (size_t i = 0; i < k; ++i) {
      for (size_t j = 0; j < n; ++j) to[j * k + i] = from[i * n + j];
    }
    return Pack(to, n, k, bias);
  }

  absl::StatusOr<NormWeight> Norm(const std::string& name, NormWeight::Kind kind) {
    NormWeight norm;
    norm.kind = kind;
    norm.epsilon = c_.norm_epsilon;
    IBID_ASSIGN_OR_RETURN(norm.gain, Vector(name + ".weight", c_.width));
    if (kind == NormWeight::Kind::kLayer) {
      IBID_ASSIGN_OR_RETURN(norm.bias, Vector(name + ".bias", c_.width));
    }
    return norm;
  }

  absl::Status Head(const std::string& name, ModelWeights* w) {
    if (c_.has_tied_embeddings) {
      IBID_ASSIGN_OR_RETURN(w->head, Pack(w->embedding, c_.vocab, c_.width, {}));
    } else {
      IBID_ASSIGN_OR_RETURN(w->head, Stacked({{name, c_.vocab}}, c_.width, false));
    }
    return absl::OkStatus();
  }

  const ModelConfig& c_;
  const Checkpoint& checkpoint_;
  Backend* const backend_;
};

absl::Status Loader::LoadLlama(ModelWeights* w) {
  const size_t q_rows = c_.heads * c_.head_dim, kv_rows = c_.kv_heads * c_.head_dim;
  constexpr auto kRms = NormWeight::Kind::kRms;
  IBID_ASSIGN_OR_RETURN(w->embedding, Matrix("model.embed_tokens.weight", c_.vocab, c_.width));
  for (uint32_t i = 0; i < c_.layers; ++i) {
    const std::string at = absl::StrCat("model.layers.", i, ".");
    LayerWeights layer;
    IBID_ASSIGN_OR_RETURN(layer.attention_norm, Norm(at + "input_layernorm", kRms));
    IBID_ASSIGN_OR_RETURN(layer.qkv, Stacked({{at + "self_attn.q_proj", q_rows},
                                              {at + "self_attn.k_proj", kv_rows},
                                              {at + "self_attn.v_proj", kv_rows}},
                                             c_.width, c_.has_attention_bias));
    IBID_ASSIGN_OR_RETURN(
        layer.out, Stacked({{at + "self_attn.o_proj", c_.width}}, q_rows, c_.has_attention_bias));
    IBID_ASSIGN_OR_RETURN(layer.feed_forward_norm, Norm(at + "post_attention_layernorm", kRms));
    IBID_ASSIGN_OR_RETURN(layer.up, Stacked({{at + "mlp.gate_proj", c_.feed_forward},
                                             {at + "mlp.up_proj", c_.feed_forward}},
                                            c_.width, c_.has_mlp_bias));
    IBID_ASSIGN_OR_RETURN(
        layer.down, Stacked({{at + "mlp.down_proj", c_.width}}, c_.feed_forward, c_.has_mlp_bias));
    w->layers.push_back(std::move(layer));
  }
  IBID_ASSIGN_OR_RETURN(w->final_norm, Norm("model.norm", kRms));
  return Head("lm_head", w);
}

absl::Status Loader::LoadGpt2(ModelWeights* w) {
  constexpr auto kLayer = NormWeight::Kind::kLayer;
  // Older checkpoints name the tensors of the bare model.
  const std::string root = checkpoint_.Contains("wte.weight") ? "" : "transformer.";
  IBID_ASSIGN_OR_RETURN(w->embedding, Matrix(root + "wte.weight", c_.vocab, c_.width));
  IBID_ASSIGN_OR_RETURN(w->position_embedding,
                        Matrix(root + "wpe.weight", c_.context_tokens, c_.width));
  for (uint32_t i = 0; i < c_.layers; ++i) {
    const std::string at = absl::StrCat(root, "h.", i, ".");
    LayerWeights layer;
    IBID_ASSIGN_OR_RETURN(layer.attention_norm, Norm(at + "ln_1", kLayer));
    IBID_ASSIGN_OR_RETURN(layer.qkv, Transposed(at + "attn.c_attn", 3 * c_.width, c_.width));
    IBID_ASSIGN_OR_RETURN(layer.out, Transposed(at + "attn.c_proj", c_.width, c_.width));
    IBID_ASSIGN_OR_RETURN(layer.feed_forward_norm, Norm(at + "ln_2", kLayer));
    IBID_ASSIGN_OR_RETURN(layer.up, Transposed(at + "mlp.c_fc", c_.feed_forward, c_.width));
    IBID_ASSIGN_OR_RETURN(layer.down, Transposed(at + "mlp.c_proj", c_.width, c_.feed_forward));
    w->layers.push_back(std::move(layer));
  }
  IBID_ASSIGN_OR_RETURN(w->final_norm, Norm(root + "ln_f", kLayer));
  return Head("lm_head", w);
}

// The layer that `name` is a part of: the number in model.layers.N. or h.N.
std::optional<uint64_t> LayerOf(absl::string_view name) {
  absl::ConsumePrefix(&name, "model.");
  absl::ConsumePrefix(&name, "transformer.");
  if (!absl::ConsumePrefix(&name, "layers.") && !absl::ConsumePrefix(&name, "h.")) {
    return std::nullopt;
  }
  uint64_t layer = 0;
  const absl::string_view digits = name.substr(0, name.find('.'));
  return absl::SimpleAtoi(digits, &layer) ? std::optional(layer) : std::nullopt;
}

// A config of fewer layers than the file has would be another model, which nobody trained.
absl::Status CheckLayers(const ModelConfig& config, const Checkpoint& checkpoint) {
  for (const std::string& name : checkpoint.Names()) {
    const std::optional<uint64_t> layer = LayerOf(name);
    if (layer.has_value() && *layer >= config.layers) {
      return absl::InvalidArgumentError(absl::StrCat("tensor '", name, "' is of layer ", *layer,
                                                     ", but config.json says that there are ",
                                                     config.layers, " layers"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelWeights>> LoadWeights(const ModelConfig& config,
                                                          const Checkpoint& checkpoint,
                                                          Backend* backend) {
  IBID_RETURN_IF_ERROR(CheckLayers(config, checkpoint));
  auto weights = std::make_unique<ModelWeights>();
  Loader loader(config, checkpoint, backend);
  IBID_RETURN_IF_ERROR(config.architecture == Architecture::kGpt2
                           ? loader.LoadGpt2(weights.get())
                           : loader.LoadLlama(weights.get()));
  return weights;
}

}  // namespace ibid
