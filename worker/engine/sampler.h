// Which token comes next: pure functions of the logits, the parameters and the token's place in the
// output. So a request that is preempted, retried or split between workers samples the same tokens.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "worker/engine/request.h"

namespace ibid {

// The Philox 4x32 generator with ten rounds (Salmon et al., "Parallel random numbers: as easy as 1,
// 2, 3", SC'11): random words as a pure function of counter and key.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Uniform in [0, 1), for the output token `output_index` (from 0) of a request with this seed.
double UniformForToken(uint64_t seed, uint64_t output_index);

// Errors: InvalidArgument that names the parameter.
absl::Status ValidateSampling(const SamplingParams& params);

// The next token. Ties go to the lowest id; a logit that is not a number is never taken.
// The order of restrictions: temperature, then top_k, then top_p over what is left.
// REQUIRES: logits is not empty; ValidateSampling is OK.
uint32_t SampleToken(std::span<const float> logits, const SamplingParams& params,
                     uint64_t output_index);

}  // namespace ibid
