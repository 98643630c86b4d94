// ModelConfig: the shape of a model, read from a Hugging Face config.json and range-checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ibid {

enum class Architecture { kGpt2, kLlama };

// How rotary frequencies are stretched beyond the context a model was first trained with.
struct RopeScaling {
  enum class Kind { kNone, kLinear, kLlama3 };
  Kind kind = Kind::kNone;
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double original_context = 8192;  // tokens
};

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  size_t vocab = 0;           // V
  size_t width = 0;           // E
  size_t feed_forward = 0;    // F
  uint32_t layers = 0;        // L
  size_t heads = 0;           // H
  size_t kv_heads = 0;        // G
  size_t head_dim = 0;        // D
  size_t context_tokens = 0;  // the most tokens of a sequence
  float norm_epsilon = 1e-5f;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  size_t sliding_window = 0;  // 0: none
  bool has_attention_bias = false;
  bool has_mlp_bias = false;
  bool has_tied_embeddings = false;
  std::vector<uint32_t> eos_ids;  // may be empty
  std::vector<uint32_t> bos_ids;  // none or one

  // `text` is the content of config.json; `file` is its name in messages.
  // Errors: InvalidArgument that names the file, the field and what is accepted.
  static absl::StatusOr<ModelConfig> Parse(absl::string_view text, absl::string_view file);
  // Errors: NotFound, and those of Parse.
  static absl::StatusOr<ModelConfig> Load(const std::string& path);
};

// Frequencies (D / 2) of rotary embedding, scaled as the config says.
std::vector<float> RopeFrequencies(const ModelConfig& config);

}  // namespace ibid
