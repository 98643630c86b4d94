#include "worker/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "worker/tokenizer/text_file.h"

namespace ibid {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kSupported = "GPT2LMHeadModel, LlamaForCausalLM, MistralForCausalLM";
constexpr size_t kConfigBytesMax = size_t{1} << 20;

// For messages. Nested values are not spelled out: a hostile file could nest them deeper than the
// stack is.
std::string Shown(const Json& value) {
  return value.is_structured() ? std::string(value.type_name()) : value.dump();
}

// Reads fields of one JSON object with their ranges; remembers the first error.
class Fields {
 public:
  Fields(const Json& json, absl::string_view file, absl::string_view prefix = "")
      : json_(json), file_(file), prefix_(prefix) {}

  // A count in [min, max]; without the field: `absent`, or an error if that is 0 and min is not.
  size_t Count(const char* name, size_t min, size_t max, size_t absent = 0) {
    const Json* value = Find(name);
    if (value == nullptr) {
      if (absent >= min) return absent;
      Fail(name, "is missing");
      return min;
    }
    if (!value->is_number_unsigned())
      return Fail(name, absl::StrCat("is ", Shown(*value), ", no count")), min;
    const uint64_t count = value->get<uint64_t>();
    if (count < min || count > max) {
      return Fail(name, absl::StrCat("is ", count, ", outside ", min, " to ", max)), min;
    }
    return count;
  }

  double Number(const char* name, double min, double max, double absent) {
    const Json* value = Find(name);
    if (value == nullptr) return absent;
    if (!value->is_number())
      return Fail(name, absl::StrCat("is ", Shown(*value), ", no number")), absent;
    const double number = value->get<double>();
    if (!(number >= min && number <= max)) {
      return Fail(name, absl::StrCat("is ", number, ", outside ", min, " to ", max)), absent;
    }
    return number;
  }

  bool Flag(const char* name, bool absent) {
    const Json* value = Find(name);
    if (value == nullptr) return absent;
    if (!value->is_boolean())
      return Fail(name, absl::StrCat("is ", Shown(*value), ", neither true nor false")), absent;
    return value->get<bool>();
  }

  std::string Text(const char* name, const char* absent) {
    const Json* value = Find(name);
    if (value == nullptr) return absent;
    if (!value->is_string())
      return Fail(name, absl::StrCat("is ", Shown(*value), ", no text")), absent;
    return value->get<std::string>();
  }

  // One id or a list of them, each below `vocab`.
  std::vector<uint32_t> Ids(const char* name, size_t vocab) {
    const Json* value = Find(name);
    if (value == nullptr) return {};
    std::vector<uint32_t> ids;
    const size_t count = value->is_array() ? value->size() : 1;
    for (size_t i = 0; i < count; ++i) {
      const Json& id = value->is_array() ? (*value)[i] : *value;
      if (!id.is_number_unsigned() || id.get<uint64_t>() >= vocab) {
        return Fail(name, absl::StrCat("holds ", Shown(id), ", no token id below ", vocab)), ids;
      }
      ids.push_back(id.get<uint32_t>());
    }
    return ids;
  }

  // Null where the field is absent or null.
  const Json* Find(const char* name) const {
    const auto found = json_.find(name);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  void Fail(absl::string_view name, absl::string_view reason) {
    if (status_.ok())
      status_ = absl::InvalidArgumentError(absl::StrCat(file_, ": ", prefix_, name, " ", reason));
  }
  void Adopt(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }
  const absl::Status& status() const { return status_; }
  absl::string_view file() const { return file_; }

 private:
  const Json& json_;
  const absl::string_view file_, prefix_;
  absl::Status status_;
};

absl::StatusOr<std::string> ArchitectureName(const Json& json, absl::string_view file) {
  const auto list = json.find("architectures");
  if (list != json.end() && list->is_array() && !list->empty()) {
    if (list->size() == 1 && (*list)[0].is_string()) return (*list)[0].get<std::string>();
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": architectures is ", Shown(*list), ", not one name"));
  }
  const auto type = json.find("model_type");
  if (type == json.end() || !type->is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": has neither architectures nor model_type"));
  }
  const std::string name = type->get<std::string>();
  if (name == "gpt2") return std::string("GPT2LMHeadModel");
  if (name == "llama") return std::string("LlamaForCausalLM");
  if (name == "mistral") return std::string("MistralForCausalLM");
  return name;
}

void ParseRopeScaling(const Json& json, absl::string_view name, Fields* outer,
                      ModelConfig* config) {
  if (!json.is_object()) return outer->Fail(name, "is no object");
  const std::string prefix = absl::StrCat(name, ".");
  Fields fields(json, outer->file(), prefix);
  config->rope_theta = fields.Number("rope_theta", 1, 1e12, config->rope_theta);
  RopeScaling& scaling = config->rope_scaling;
  const std::string type = fields.Text("rope_type", fields.Text("type", "default").c_str());
  if (type == "linear") {
    scaling.kind = RopeScaling::Kind::kLinear;
  } else if (type == "llama3") {
    scaling.kind = RopeScaling::Kind::kLlama3;
  } else if (type != "default") {
    fields.Fail("rope_type",
                absl::StrCat("is '", type, "'; supported are default, linear and llama3"));
  }
  if (scaling.kind != RopeScaling::Kind::kNone) {
    if (fields.Find("factor") == nullptr) fields.Fail("factor", "is missing");
    scaling.factor = fields.Number("factor", 1, 1e6, 1);
  }
  if (scaling.kind == RopeScaling::Kind::kLlama3) {
    scaling.low_freq_factor = fields.Number("low_freq_factor", 1e-3, 1e6, 1);
    scaling.high_freq_factor = fields.Number("high_freq_factor", 1e-3, 1e6, 4);
    scaling.original_context = fields.Number("original_max_position_embeddings", 1, 1e9, 8192);
    if (scaling.high_freq_factor <= scaling.low_freq_factor) {
      fields.Fail("high_freq_factor", "is not above low_freq_factor");
    }
  }
  outer->Adopt(fields.status());
}

void ParseGpt2(Fields* f, ModelConfig* c) {
  c->architecture = Architecture::kGpt2;
  c->vocab = f->Count("vocab_size", 1, 1 << 22);
  c->width = f->Count("n_embd", 1, 1 << 17);
  c->layers = static_cast<uint32_t>(f->Count("n_layer", 1, 1024));
  c->heads = c->kv_heads = f->Count("n_head", 1, 1024);
  c->feed_forward = f->Count("n_inner", 1, 1 << 20, 4 * c->width);
  c->context_tokens = f->Count("n_positions", 1, 1 << 24);
  c->norm_epsilon = static_cast<float>(f->Number("layer_norm_epsilon", 1e-12, 1, 1e-5));
  c->has_attention_bias = c->has_mlp_bias = true;
  c->has_tied_embeddings = f->Flag("tie_word_embeddings", true);
  const std::string activation = f->Text("activation_function", "gelu_new");
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    f->Fail("activation_function", absl::StrCat("is '", activation, "'; supported is gelu_new"));
  }
  if (!f->Flag("scale_attn_weights", true))
    f->Fail("scale_attn_weights", "is false, which is not supported");
  if (f->Flag("scale_attn_by_inverse_layer_idx", false)) {
    f->Fail("scale_attn_by_inverse_layer_idx", "is true, which is not supported");
  }
  if (f->Flag("add_cross_attention", false))
    f->Fail("add_cross_attention", "is true, which is not supported");
  if (c->width % c->heads != 0) {
    f->Fail("n_embd",
            absl::StrCat("is ", c->width, ", no multiple of n_head, which is ", c->heads));
  }
  c->head_dim = c->width / c->heads;
}

void ParseLlama(Fields* f, ModelConfig* c) {
  c->architecture = Architecture::kLlama;
  c->vocab = f->Count("vocab_size", 1, 1 << 22);
  c->width = f->Count("hidden_size", 1, 1 << 17);
  c->layers = static_cast<uint32_t>(f->Count("num_hidden_layers", 1, 1024));
  c->heads = f->Count("num_attention_heads", 1, 1024);
  c->kv_heads = f->Count("num_key_value_heads", 1, 1024, c->heads);
  c->feed_forward = f->Count("intermediate_size", 1, 1 << 20);
  c->context_tokens = f->Count("max_position_embeddings", 1, 1 << 24, 2048);
  c->norm_epsilon = static_cast<float>(f->Number("rms_norm_eps", 1e-12, 1, 1e-6));
  c->has_attention_bias = f->Flag("attention_bias", false);
  c->has_mlp_bias = f->Flag("mlp_bias", false);
  c->has_tied_embeddings = f->Flag("tie_word_embeddings", false);
  c->rope_theta = f->Number("rope_theta", 1, 1e12, 10000);
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    if (const Json* scaling = f->Find(name)) ParseRopeScaling(*scaling, name, f, c);
  }
  const std::string activation = f->Text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    f->Fail("hidden_act", absl::StrCat("is '", activation, "'; supported is silu"));
  }
  if (f->Find("head_dim") == nullptr && c->width % c->heads != 0) {
    f->Fail(
        "hidden_size",
        absl::StrCat("is ", c->width, ", no multiple of num_attention_heads, which is ", c->heads));
  }
  c->head_dim = f->Count("head_dim", 1, 4096, std::max<size_t>(1, c->width / c->heads));
  if (c->heads % c->kv_heads != 0) {
    f->Fail("num_attention_heads",
            absl::StrCat("is ", c->heads, ", no multiple of num_key_value_heads, which is ",
                         c->kv_heads));
  }
  if (c->head_dim % 2 != 0)
    f->Fail("head_dim", absl::StrCat("is ", c->head_dim, ": rotary embedding needs pairs"));
}

}  // namespace

absl::StatusOr<ModelConfig> ModelConfig::Parse(absl::string_view text, absl::string_view file) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    return absl::InvalidArgumentError(absl::StrCat(file, ": is no JSON object"));
  IBID_ASSIGN_OR_RETURN(const std::string name, ArchitectureName(json, file));
  ModelConfig config;
  Fields fields(json, file);
  for (const char* quantization : {"quantization", "quantization_config"}) {
    if (fields.Find(quantization) != nullptr)
      fields.Fail(quantization, "is set: quantised weights are not supported");
  }
  if (name == "GPT2LMHeadModel") {
    ParseGpt2(&fields, &config);
  } else if (name == "LlamaForCausalLM" || name == "MistralForCausalLM") {
    ParseLlama(&fields, &config);
    if (name == "MistralForCausalLM")
      config.sliding_window = fields.Count("sliding_window", 0, 1 << 24, 0);
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        file, ": architecture '", name, "' is not supported; supported are ", kSupported));
  }
  config.eos_ids = fields.Ids("eos_token_id", config.vocab);
  config.bos_ids = fields.Ids("bos_token_id", config.vocab);
  IBID_RETURN_IF_ERROR(fields.status());
  return config;
}

absl::StatusOr<ModelConfig> ModelConfig::Load(const std::string& path) {
  IBID_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kConfigBytesMax));
  return Parse(text, path);
}

// Llama 3's rule: frequencies whose wavelength is long against the original context are divided by
// `factor`, short ones kept, those between interpolated (the reference is rope_scaling of type
// llama3 in Hugging Face transformers).
std::vector<float> RopeFrequencies(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  std::vector<float> frequencies(config.head_dim / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.head_dim);
    const float plain = 1.0f / static_cast<float>(std::pow(config.rope_theta, double{exponent}));
    frequencies[i] = plain;
    if (scaling.kind == RopeScaling::Kind::kLinear)
      frequencies[i] = static_cast<float>(plain / scaling.factor);
    if (scaling.kind != RopeScaling::Kind::kLlama3) continue;
    const double turns =
        scaling.original_context * plain / (2 * std::numbers::pi);  // in the original context
    if (turns < scaling.low_freq_factor) {
      frequencies[i] = static_cast<float>(plain / scaling.factor);
    } else if (turns < scaling.high_freq_factor) {
      const double smooth =
          (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
      frequencies[i] = static_cast<float>((1 - smooth) * plain / scaling.factor + smooth * plain);
    }
  }
  return frequencies;
}

}  // namespace ibid
