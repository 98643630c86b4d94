// Matrix products in f32 whose every element is one chain of fused sums: batch-invariant by
// construction, on any processor and any number of threads. Weights that are bf16 values are kept
// as such and widened on the way, which halves what a decode step must read and changes no bit.
//
//   weight (N, K) -> N / 16 panels [K][16], one after another: a panel is read as one stream
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "worker/backend/backend.h"
#include "worker/backend/kernels.h"
#include "worker/backend/work_team.h"

namespace ibid {

// Thread safety: owned by one thread at a time; `team` (not owned) does the work.
class PanelMultiplier {
 public:
  PanelMultiplier(const Kernels* kernels, WorkTeam* team)
      : kernels_(kernels), team_(team), scratch_(team->threads()) {}

  std::unique_ptr<PackedWeight> Pack(In weight, std::span<const float> bias);
  // REQUIRES: `w` came from Pack.
  void Multiply(Out y, In x, const PackedWeight& w);

 private:
  const Kernels* const kernels_;
  WorkTeam* const team_;
  std::vector<std::vector<float>> scratch_;  // a widened panel, one a thread
};

}  // namespace ibid
