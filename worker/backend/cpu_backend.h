// The two CPU backends: CpuBackend for work, ReferenceBackend (plain loops) for tests.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/backend/backend.h"

namespace ibid {

// What matrix products multiply. kAuto: bf16 where weights are bf16 and the processor has
// instructions for it, else f32.
enum class ComputeDtype { kAuto, kF32, kBf16 };

// Accepts auto, f32, bf16. Errors: InvalidArgument.
absl::StatusOr<ComputeDtype> ParseComputeDtype(absl::string_view name);

struct CpuBackendOptions {
  ComputeDtype compute = ComputeDtype::kF32;
  bool has_bf16_weights = false;  // what kAuto decides by
  size_t threads = 0;             // 0: one per hardware thread
  // auto (the best there is), sse2, avx2 or avx512. Workers on different processors share KV blocks
  // only if they compute the same bits: give them all the lesser one.
  std::string isa = "auto";
};

// Errors: InvalidArgument (kBf16 on a processor without bf16 products; an isa that it has not; more
// threads than kBackendThreadsMax).
absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const CpuBackendOptions& options);

inline constexpr size_t kBackendThreadsMax = 256;

// Each operation as its formula, one thread.
std::unique_ptr<Backend> MakeReferenceBackend();

}  // namespace ibid
