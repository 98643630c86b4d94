// Matrix products by oneDNN in row tiles and column panels of fixed shapes, so that every row's
// bits are its own.
//
//   weight (N, K) -> panels of 128 columns, each packed once;
//                    one oneDNN primitive for each (row tile, panel width)
//   y (T, N)      =  row groups (row_tiles.h) x panels: independent calls, each on one thread
//
// The order of each sum is thus fixed by the weight's shape: neither T nor the number of threads
// can change it.
//
// CpuBackend takes these for bf16, where the processor has instructions that plain loops cannot
// match; for f32 it has worker/backend/panel_product.h, which needs no check.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/backend/kernels.h"
#include "worker/backend/work_team.h"

namespace ibid {

// Thread safety: owned by one thread at a time; `team` (not owned) does the work.
class TiledMultiplier {
 public:
  TiledMultiplier(bool is_bf16, const Kernels* kernels, WorkTeam* team);
  ~TiledMultiplier();

  // Packs a weight for Multiply and, the first time for each shape, checks which row tiles agree.
  // Errors: Internal with oneDNN's message.
  absl::StatusOr<std::unique_ptr<PackedWeight>> Pack(In weight, std::span<const float> bias);
  // REQUIRES: `w` came from Pack of this object.
  void Multiply(Out y, In x, const PackedWeight& w);

  // A hash over the bits that the checked products gave: equal on two machines when their products
  // are.
  uint64_t probe() const { return probe_; }
  // Calls of helper threads must not start OpenMP teams of their own.
  static void DisableOpenMpOnThisThread();

 private:
  struct Panel;
  struct Weight;
  struct Runtime;

  void PackPanels(In weight, Weight* packed);
  void CheckTiles(Weight* packed, size_t panel_columns);
  void RunCall(const Weight& w, const Panel& panel, const void* x, float* y, size_t tile,
               size_t thread);

  const bool is_bf16_;
  const Kernels* const kernels_;
  WorkTeam* const team_;
  uint64_t probe_ = 0;
  std::unique_ptr<Runtime> runtime_;
};

}  // namespace ibid
