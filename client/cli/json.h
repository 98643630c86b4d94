// Statistics as JSON, field by field.
#pragma once

#include <nlohmann/json.hpp>

#include "client/client.h"
#include "client/inference_channel.h"

namespace ibid::cli {

nlohmann::ordered_json ToJson(const ServerStats& stats);
nlohmann::ordered_json ToJson(const std::string& address,
                              const absl::StatusOr<InferenceStats>& stats);
nlohmann::ordered_json ToJson(const InferenceUsage& usage);

}  // namespace ibid::cli
