// Malformed model files: an error that names file, tensor or field, and reason; never a crash.
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/model/tiny_model.h"
#include "worker/model/half_floats.h"
#include "worker/model/safetensors.h"

namespace ibid {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::LlamaConfig;
using testing::LlamaTensors;
using testing::SafetensorsBytes;
using testing::TemporaryFolder;

class ModelFiles : public ::testing::Test {
 protected:
  ModelFiles() {
    shape_.width = 16, shape_.layers = 1, shape_.heads = 2, shape_.kv_heads = 1,
    shape_.feed_forward = 8;
    shape_.vocab = 10;
    tensors_ = LlamaTensors(shape_);
    config_ = LlamaConfig(shape_);
  }

  absl::Status Load() {
    ModelOptions options;
    options.threads = 1;
    options.computes_digest = false;
    return Model::Load(folder_.path(), options).status();
  }
  // The message after writing the config and `bytes` as model.safetensors.
  std::string ErrorOf(const std::string& bytes) {
    folder_.Write("config.json", config_.dump());
    folder_.Write("model.safetensors", bytes);
    const absl::Status status = Load();
    return status.ok() ? "loaded" : status.ToString();
  }
  std::string ConfigError(const std::string& change) {
    json config = config_;
    config.merge_patch(json::parse(change));
    const auto parsed = ModelConfig::Parse(config.dump(), "config.json");
    return parsed.ok() ? "parsed" : std::string(parsed.status().message());
  }

  TemporaryFolder folder_;
  testing::TinyShape shape_;
  testing::Tensors tensors_;
  json config_;
};

// A safetensors file of this header and so many bytes of data.
std::string File(const std::string& header, size_t data_bytes) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  return bytes + header + std::string(data_bytes, '\1');
}

TEST_F(ModelFiles, TheUnchangedModelLoads) {
  EXPECT_EQ(ErrorOf(SafetensorsBytes(tensors_)), "loaded");
}

TEST_F(ModelFiles, EveryTruncationIsAnErrorThatNamesTheFile) {
  const std::string bytes = SafetensorsBytes(tensors_);
  for (size_t length = 0; length < bytes.size(); length += length < 2000 ? 29 : 1009) {
    EXPECT_THAT(ErrorOf(bytes.substr(0, length)), HasSubstr("model.safetensors")) << length;
  }
  EXPECT_THAT(ErrorOf(bytes.substr(0, bytes.size() - 1)),
              AllOf(HasSubstr("DATA_LOSS"), HasSubstr("cut short")));
  EXPECT_THAT(ErrorOf(bytes + "x"), HasSubstr("belong to no tensor"));
}

TEST_F(ModelFiles, AChangedByteOfTheHeaderNeverCrashes) {
  const std::string bytes = SafetensorsBytes(tensors_);
  const size_t header = 8 + bytes.find("}}", 8) - 6;
  for (size_t at = 0; at < header; at += 11) {
    for (const char byte : {'\0', '9', '"', '{', '\xff'}) {
      std::string changed = bytes;
      changed[at] = byte;
      ErrorOf(changed);
    }
  }
}

TEST_F(ModelFiles, AHugeHeaderLengthIsRefusedBeforeMemoryIsTaken) {
  std::string bytes = SafetensorsBytes(tensors_);
  for (int i = 0; i < 8; ++i) bytes[i] = '\xff';
  EXPECT_THAT(ErrorOf(bytes), HasSubstr("the limit is"));
  const uint64_t beyond = bytes.size();
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(beyond >> (8 * i));
  EXPECT_THAT(ErrorOf(bytes), HasSubstr("cut short"));
}

TEST_F(ModelFiles, MalformedHeadersAreNamed) {
  const std::pair<const char*, const char*> headers[] = {
      {"garbage", "no JSON object"},
      {"[]", "no JSON object"},
      {R"({"a": 1})", "'a'"},
      {R"({"a": {"shape": [1], "data_offsets": [0, 4]}})", "no dtype"},
      {R"({"a": {"dtype": "Q4", "shape": [1], "data_offsets": [0, 4]}})", "Q4"},
      {R"({"a": {"dtype": "F32", "data_offsets": [0, 4]}})", "no shape"},
      {R"({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}})", "no count"},
      {R"({"a": {"dtype": "F32", "shape": [4294967296, 4294967296, 2], "data_offsets": [0, 4]}})",
       "64 bits"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}})", "two counts"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}})", "end before"},
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}})", "needs 8 bytes"},
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})", "cut short"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "b": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]}})",
       "overlap"},
      {R"({"a": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]}})", "belong to no tensor"},
      {R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}, "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}})",
       "twice"},
  };
  for (const auto& [header, reason] : headers) {
    EXPECT_THAT(ErrorOf(File(header, 4)), AllOf(HasSubstr("model.safetensors"), HasSubstr(reason)))
        << header;
  }
  EXPECT_THAT(
      ErrorOf(File("{\"a\": " + std::string(100000, '[') + std::string(100000, ']') + "}", 0)),
      HasSubstr("'a'"));
}

TEST_F(ModelFiles, AMissingTensorIsNamed) {
  for (const auto& [name, tensor] : LlamaTensors(shape_)) {
    testing::Tensors some = tensors_;
    some.erase(name);
    EXPECT_THAT(ErrorOf(SafetensorsBytes(some)), AllOf(HasSubstr(name), HasSubstr("missing")))
        << name;
  }
}

TEST_F(ModelFiles, ALayerBeyondTheConfigIsNamed) {
  shape_.layers = 3;
  const std::string three = SafetensorsBytes(LlamaTensors(shape_));
  config_["num_hidden_layers"] = 3;
  EXPECT_EQ(ErrorOf(three), "loaded");
  config_["num_hidden_layers"] = 2;
  EXPECT_THAT(ErrorOf(three),
              AllOf(HasSubstr("model.layers.2.input_layernorm.weight"), HasSubstr("2 layers")));
}

TEST_F(ModelFiles, APipeIsRefusedAndNotWaitedFor) {
  ASSERT_EQ(ErrorOf(SafetensorsBytes(tensors_)), "loaded");
  for (const char* name : {"model.safetensors", "config.json"}) {
    std::filesystem::remove(folder_.File(name));
    ASSERT_EQ(mkfifo(folder_.File(name).c_str(), 0600), 0);
    EXPECT_THAT(std::string(Load().message()),
                AllOf(HasSubstr(name), HasSubstr("no regular file")));
  }
}

TEST_F(ModelFiles, AWrongShapeIsNamedWithBothShapes) {
  for (const auto& [name, tensor] : LlamaTensors(shape_)) {
    testing::Tensors some = tensors_;
    some[name] = {{3, 5}, std::vector<float>(15)};
    EXPECT_THAT(ErrorOf(SafetensorsBytes(some)), AllOf(HasSubstr(name), HasSubstr("[3, 5]")))
        << name;
  }
}

TEST_F(ModelFiles, AWrongDtypeIsNamed) {
  std::string bytes = SafetensorsBytes(tensors_);
  bytes.replace(bytes.find("F32"), 3, "I32");
  EXPECT_THAT(ErrorOf(bytes), AllOf(HasSubstr("I32"), HasSubstr("supported are F32")));
}

TEST_F(ModelFiles, ShardsAreCheckedAgainstTheirIndex) {
  testing::Tensors first, second;
  json map;
  for (const auto& [name, tensor] : tensors_) {
    const bool is_first = first.size() < 4;
    (is_first ? first : second)[name] = tensor;
    map[name] = is_first ? "a.safetensors" : "b.safetensors";
  }
  folder_.Write("config.json", config_.dump());
  folder_.Write("a.safetensors", SafetensorsBytes(first));
  folder_.Write("b.safetensors", SafetensorsBytes(second));
  const auto error = [&](json index) {
    folder_.Write("model.safetensors.index.json", index.dump());
    const absl::Status status = Load();
    return status.ok() ? std::string("loaded") : std::string(status.message());
  };
  EXPECT_EQ(error({{"weight_map", map}}), "loaded");
  EXPECT_THAT(error(json::object()), HasSubstr("weight_map"));
  EXPECT_THAT(error({{"weight_map", {{"x", 1}}}}), HasSubstr("'x'"));
  EXPECT_THAT(error({{"weight_map", {{"x", "../secret"}}}}), HasSubstr("../secret"));
  EXPECT_THAT(error({{"weight_map", {{"x", "c.safetensors"}}}}), HasSubstr("c.safetensors"));
  json wrong = map;
  wrong["model.norm.weight"] =
      map["model.norm.weight"] == "a.safetensors" ? "b.safetensors" : "a.safetensors";
  EXPECT_THAT(error({{"weight_map", wrong}}), HasSubstr("model.norm.weight"));
  folder_.Write("b.safetensors", SafetensorsBytes(tensors_));
  EXPECT_THAT(error({{"weight_map", map}}), HasSubstr("too"));
}

TEST_F(ModelFiles, MissingFilesAreNamed) {
  EXPECT_THAT(std::string(Load().message()), HasSubstr("config.json"));
  folder_.Write("config.json", config_.dump());
  EXPECT_THAT(std::string(Load().message()), HasSubstr("model.safetensors"));
  EXPECT_EQ(Load().code(), absl::StatusCode::kNotFound);
}

TEST_F(ModelFiles, TheDigestCoversConfigAndWeights) {
  ASSERT_EQ(ErrorOf(SafetensorsBytes(tensors_)), "loaded");
  const auto digest = [&] { return (*Model::Load(folder_.path(), {}))->digest(); };
  const std::string first = digest();
  EXPECT_EQ(first.size(), 64u);
  EXPECT_EQ(digest(), first);
  tensors_["model.norm.weight"].second[0] += 1;
  ASSERT_EQ(ErrorOf(SafetensorsBytes(tensors_)), "loaded");
  const std::string second = digest();
  EXPECT_NE(second, first);
  config_["rope_theta"] = 20000;
  ASSERT_EQ(ErrorOf(SafetensorsBytes(tensors_)), "loaded");
  EXPECT_NE(digest(), second);
}

TEST_F(ModelFiles, FieldsOutOfRangeAreNamed) {
  const std::pair<const char*, const char*> changes[] = {
      {R"({"architectures": ["FalconForCausalLM"]})", "FalconForCausalLM"},
      {R"({"architectures": ["FalconForCausalLM"]})", "LlamaForCausalLM"},
      {R"({"architectures": ["a", "b"]})", "architectures"},
      {R"({"architectures": null})", "model_type"},
      {R"({"vocab_size": null})", "vocab_size is missing"},
      {R"({"vocab_size": 0})", "vocab_size"},
      {R"({"vocab_size": -5})", "vocab_size"},
      {R"({"vocab_size": 1e3})", "vocab_size"},
      {R"({"vocab_size": "10"})", "vocab_size"},
      {R"({"hidden_size": 99999999999})", "hidden_size"},
      {R"({"num_hidden_layers": 0})", "num_hidden_layers"},
      {R"({"num_attention_heads": 3, "num_key_value_heads": 2})", "num_key_value_heads"},
      {R"({"num_key_value_heads": 4})", "num_key_value_heads"},
      {R"({"head_dim": null, "hidden_size": 15})", "num_attention_heads"},
      {R"({"head_dim": 7})", "head_dim"},
      {R"({"intermediate_size": []})", "intermediate_size"},
      {R"({"rms_norm_eps": 0})", "rms_norm_eps"},
      {R"({"rms_norm_eps": "small"})", "rms_norm_eps"},
      {R"({"rope_theta": -1})", "rope_theta"},
      {R"({"rope_scaling": 3})", "rope_scaling"},
      {R"({"rope_scaling": {"type": "yarn", "factor": 2}})", "yarn"},
      {R"({"rope_scaling": {"type": "linear"}})", "factor"},
      {R"({"rope_scaling": {"type": "linear", "factor": 0.5}})", "factor"},
      {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1}})",
       "high_freq_factor"},
      {R"({"rope_parameters": {"rope_type": "dynamic"}})", "dynamic"},
      {R"({"tie_word_embeddings": 1})", "tie_word_embeddings"},
      {R"({"hidden_act": "gelu"})", "gelu"},
      {R"({"eos_token_id": 10})", "eos_token_id"},
      {R"({"eos_token_id": [1, "x"]})", "eos_token_id"},
      {R"({"quantization_config": {"bits": 4}})", "quantization_config"},
      {R"({"architectures": ["MistralForCausalLM"], "sliding_window": "x"})", "sliding_window"},
      {R"({"architectures": ["GPT2LMHeadModel"]})", "n_embd"},
      {R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 10, "n_layer": 1, "n_head": 3, "n_positions": 8})",
       "n_head"},
      {R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 9, "n_layer": 1, "n_head": 3, "n_positions": 8,
          "activation_function": "relu"})",
       "relu"},
  };
  for (const auto& [change, field] : changes) {
    EXPECT_THAT(ConfigError(change), AllOf(HasSubstr("config.json"), HasSubstr(field))) << change;
  }
}

TEST_F(ModelFiles, NumbersThatAreNoJsonAreRefused) {
  for (const char* number : {"NaN", "Infinity", "1e999", "0x10", "01"}) {
    std::string text = config_.dump();
    text.insert(1, "\"rms_norm_eps\": " + std::string(number) + ", ");
    EXPECT_FALSE(ModelConfig::Parse(text, "config.json").ok()) << number;
  }
  const std::string deep =
      "{\"vocab_size\": " + std::string(300000, '[') + std::string(300000, ']') + "}";
  EXPECT_FALSE(ModelConfig::Parse(deep, "config.json").ok());
}

TEST_F(ModelFiles, BothFormsOfRopeSettingsAreRead) {
  json config = config_;
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 20000.0}};
  EXPECT_EQ(ModelConfig::Parse(config.dump(), "c")->rope_theta, 20000.0);
  config = config_;
  config["rope_theta"] = 500000;
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 8},
                            {"low_freq_factor", 1},
                            {"high_freq_factor", 4},
                            {"original_max_position_embeddings", 8192}};
  const ModelConfig parsed = *ModelConfig::Parse(config.dump(), "c");
  EXPECT_EQ(parsed.rope_theta, 500000.0);
  EXPECT_EQ(parsed.rope_scaling.kind, RopeScaling::Kind::kLlama3);
}

TEST(HalfFloats, WidenExactly) {
  EXPECT_EQ(FloatOfF16(0x3c00), 1.0f);
  EXPECT_EQ(FloatOfF16(0xc000), -2.0f);
  EXPECT_EQ(FloatOfF16(0x7bff), 65504.0f);
  EXPECT_EQ(FloatOfF16(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(FloatOfF16(0x8001), -std::ldexp(1.0f, -24));
  EXPECT_EQ(FloatOfF16(0x0400), std::ldexp(1.0f, -14));
  EXPECT_EQ(FloatOfF16(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(FloatOfF16(0x7e00)));
  EXPECT_TRUE(std::signbit(FloatOfF16(0x8000)));
  EXPECT_EQ(FloatOfBf16(0x3f80), 1.0f);
}

}  // namespace
}  // namespace ibid
