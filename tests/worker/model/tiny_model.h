// Small models with random weights in temporary folders, and sequences of pages to run them on.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "worker/model/model.h"

namespace ibid::testing {

// A folder that is removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string path = ::testing::TempDir() + "/ibid_model_XXXXXX";
    if (mkdtemp(path.data()) == nullptr) std::abort();
    path_ = path;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  void Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(File(name), std::ios::binary) << bytes;
  }

 private:
  std::string path_;
};

inline std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// f32 tensors by name -> the bytes of a safetensors file.
using Tensors = std::map<std::string, std::pair<std::vector<size_t>, std::vector<float>>>;
inline std::string SafetensorsBytes(const Tensors& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor.second.data()), tensor.second.size() * 4);
    header[name] = {
        {"dtype", "F32"}, {"shape", tensor.first}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(text.size() >> (8 * i));
  return bytes + text + data;
}

struct TinyShape {
  size_t vocab = 64, width = 48, layers = 2, heads = 6, kv_heads = 2, head_dim = 8,
         feed_forward = 40;
  size_t context = 512, sliding_window = 0;
};

inline nlohmann::json LlamaConfig(const TinyShape& s) {
  nlohmann::json config = {
      {"architectures", {s.sliding_window > 0 ? "MistralForCausalLM" : "LlamaForCausalLM"}},
      {"vocab_size", s.vocab},
      {"hidden_size", s.width},
      {"num_hidden_layers", s.layers},
      {"num_attention_heads", s.heads},
      {"num_key_value_heads", s.kv_heads},
      {"head_dim", s.head_dim},
      {"intermediate_size", s.feed_forward},
      {"max_position_embeddings", s.context},
      {"tie_word_embeddings", true}};
  if (s.sliding_window > 0) config["sliding_window"] = s.sliding_window;
  return config;
}

inline Tensors LlamaTensors(const TinyShape& s, unsigned seed = 1) {
  std::mt19937 chance(seed);
  std::normal_distribution<float> normal;
  Tensors tensors;
  const auto add = [&](const std::string& name, std::vector<size_t> shape) {
    size_t count = 1;
    for (const size_t dimension : shape) count *= dimension;
    std::vector<float> values(count);
    const float spread =
        shape.size() == 1 ? 0.1f : 2.0f / std::sqrt(static_cast<float>(shape.back()));
    for (float& value : values) value = normal(chance) * spread + (shape.size() == 1 ? 1.0f : 0.0f);
    tensors[name] = {std::move(shape), std::move(values)};
  };
  add("model.embed_tokens.weight", {s.vocab, s.width});
  add("model.norm.weight", {s.width});
  for (size_t i = 0; i < s.layers; ++i) {
    const std::string at = "model.layers." + std::to_string(i) + ".";
    add(at + "input_layernorm.weight", {s.width});
    add(at + "post_attention_layernorm.weight", {s.width});
    add(at + "self_attn.q_proj.weight", {s.heads * s.head_dim, s.width});
    add(at + "self_attn.k_proj.weight", {s.kv_heads * s.head_dim, s.width});
    add(at + "self_attn.v_proj.weight", {s.kv_heads * s.head_dim, s.width});
    add(at + "self_attn.o_proj.weight", {s.width, s.heads * s.head_dim});
    add(at + "mlp.gate_proj.weight", {s.feed_forward, s.width});
    add(at + "mlp.up_proj.weight", {s.feed_forward, s.width});
    add(at + "mlp.down_proj.weight", {s.width, s.feed_forward});
  }
  return tensors;
}

inline void WriteLlama(const TemporaryFolder& folder, const TinyShape& shape) {
  folder.Write("config.json", LlamaConfig(shape).dump());
  folder.Write("model.safetensors", SafetensorsBytes(LlamaTensors(shape)));
}

// One sequence's pages, filled with bytes that attention must not read: NaN in every dtype.
class Pages {
 public:
  Pages(const KvLayout& layout, size_t tokens) : bytes_(layout.PayloadBytes()) {
    for (size_t i = 0; i * layout.block_tokens < tokens; ++i) {
      memory_.push_back(std::make_unique<std::byte[]>(bytes_));
      std::fill_n(memory_.back().get(), bytes_, std::byte{0xff});
      table_.push_back(memory_.back().get());
    }
  }
  std::span<std::byte* const> table() const { return table_; }
  std::string Bytes() const {
    std::string all;
    for (const std::byte* page : table_) all.append(reinterpret_cast<const char*>(page), bytes_);
    return all;
  }

 private:
  const size_t bytes_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<std::byte*> table_;
};

inline std::vector<uint32_t> RandomTokens(size_t count, size_t vocab, unsigned seed) {
  std::mt19937 chance(seed);
  std::vector<uint32_t> tokens(count);
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(chance() % vocab);
  return tokens;
}

// Logits of the last row after `tokens`, `chunk` rows a step; all other steps ask for none.
inline std::vector<float> Prefill(Model& model, const std::vector<uint32_t>& tokens,
                                  const Pages& pages, size_t chunk) {
  std::vector<float> logits;
  for (size_t first = 0; first < tokens.size(); first += chunk) {
    const size_t count = std::min(chunk, tokens.size() - first);
    const ForwardSequence sequence = {std::span(tokens).subspan(first, count), first, pages.table(),
                                      first + count == tokens.size()};
    const absl::Status status = model.Forward({&sequence, 1}, &logits);
    EXPECT_TRUE(status.ok()) << status;
  }
  return logits;
}

inline std::vector<uint32_t> Greedy(Model& model, std::vector<uint32_t> tokens, size_t count) {
  const Pages pages(model.layout(), tokens.size() + count);
  std::vector<float> logits = Prefill(model, tokens, pages, tokens.size());
  std::vector<uint32_t> result;
  while (true) {
    result.push_back(
        static_cast<uint32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    if (result.size() == count) return result;
    const ForwardSequence sequence = {
        {&result.back(), 1}, tokens.size() + result.size() - 1, pages.table(), true};
    const absl::Status status = model.Forward({&sequence, 1}, &logits);
    EXPECT_TRUE(status.ok()) << status;
  }
}

}  // namespace ibid::testing
