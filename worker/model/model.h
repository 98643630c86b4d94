// Model is the weights of one transformer, packed for a backend, and the step that runs rows of
// many sequences through it.
//
// A row's results (its logits, its K and V in the pages) do not depend on the other rows of the
// step, on how the sequence was cut into steps, or on where its pages lie: see
// worker/backend/backend.h.
//
// Thread safety: owned by one thread at a time. Ownership: pages belong to the caller, for the
// duration of the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/kv_layout.h"
#include "worker/backend/backend.h"
#include "worker/backend/cpu_backend.h"
#include "worker/model/model_config.h"

namespace ibid {

struct ModelWeights;

// The most rows of one step: bounds its scratch memory.
inline constexpr size_t kStepTokensMax = 65536;

struct ModelOptions {
  KvDtype kv_dtype = KvDtype::kBf16;  // kF32 or kBf16
  uint32_t block_tokens = 16;
  ComputeDtype compute = ComputeDtype::kAuto;
  size_t threads = 0;         // 0: one per hardware thread
  std::string isa = "auto";   // see CpuBackendOptions
  bool is_reference = false;  // plain loops instead of oneDNN: slow, for tests
  bool computes_digest =
      true;  // false leaves digest() empty and saves a second read of the weights
};

// The rows of one sequence in a step.
struct ForwardSequence {
  std::span<const uint32_t> tokens;  // the new tokens, at least one
  size_t first_position = 0;         // of tokens[0]; all earlier positions are already in the pages
  std::span<std::byte* const> pages;  // block table: covers first_position + tokens.size() tokens
  bool wants_logits = false;          // of the last row
};

class Model {
 public:
  // Reads `directory`: config.json and model.safetensors, or the shards of
  // model.safetensors.index.json. Errors: NotFound (no such file), InvalidArgument (malformed or
  // unsupported; names file, field or tensor, and reason), DataLoss (a file is shorter than its
  // header says).
  static absl::StatusOr<std::unique_ptr<Model>> Load(const std::string& directory,
                                                     const ModelOptions& options);
  ~Model();

  const ModelConfig& config() const { return config_; }
  const KvLayout& layout() const { return layout_; }
  // SHA-256 over config.json and the weight files, hexadecimal: the `model` field of a namespace.
  const std::string& digest() const { return digest_; }
  // The `engine` field of a namespace.
  std::string numerics_id() const { return backend_->NumericsId(); }
  Backend& backend() { return *backend_; }

  // Runs one step: writes K and V of all rows into the pages. `logits` becomes (sequences that want
  // logits, V), row-major, in the order of the sequences. Tokens of the pages beyond the last
  // written one are neither read nor written. Errors: InvalidArgument (a token outside the
  // vocabulary, a position outside the context, too few pages, no tokens, a page shared by two
  // sequences is not detected), ResourceExhausted (kStepTokensMax). No page is touched on an error.
  absl::Status Forward(std::span<const ForwardSequence> sequences, std::vector<float>* logits);

 private:
  struct Step;
  Model();
  absl::Status CheckStep(std::span<const ForwardSequence> sequences) const;
  void PrepareStep(std::span<const ForwardSequence> sequences);
  void KeepLogitRows();
  void Attention(uint32_t layer, bool is_last);
  void FeedForward(uint32_t layer);

  ModelConfig config_;
  KvLayout layout_;
  std::string digest_;
  std::vector<float> rope_frequencies_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<Step> step_;
};

}  // namespace ibid
