// The weights of one model, packed for a backend. Private to Model.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/model/model_config.h"
#include "worker/model/safetensors.h"

namespace ibid {

struct LayerWeights {
  NormWeight attention_norm;
  std::unique_ptr<PackedWeight> qkv;  // ((H + 2 G) D, E): queries, keys, values
  std::unique_ptr<PackedWeight> out;  // (E, H D)
  NormWeight feed_forward_norm;
  std::unique_ptr<PackedWeight> up;    // Llama: gate, then up (2 F, E); GPT-2: (F, E)
  std::unique_ptr<PackedWeight> down;  // (E, F)
};

struct ModelWeights {
  std::vector<float> embedding;           // (V, E)
  std::vector<float> position_embedding;  // (context, E); GPT-2 only
  std::vector<LayerWeights> layers;
  NormWeight final_norm;
  std::unique_ptr<PackedWeight> head;  // (V, E)
};

// Errors: InvalidArgument (a tensor is missing or has another shape or dtype), DataLoss, Internal
// (packing failed).
absl::StatusOr<std::unique_ptr<ModelWeights>> LoadWeights(const ModelConfig& config,
                                                          const Checkpoint& checkpoint,
                                                          Backend* backend);

}  // namespace ibid
