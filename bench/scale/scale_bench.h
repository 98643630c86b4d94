// What the cases of store_scale_bench share: how big they are, where their figures go, and the
// blocks that they store.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cache_server/block_store.h"
#include "core/block_key.h"
#include "core/kv_layout.h"

namespace ibid {

struct ScaleOptions {
  bool is_quick = false;  // every case, each in about a second: shows that it works, no figures
  int rounds = 5;
  std::string bin;   // folder of ibid-server
  std::string self;  // this program, to be started as the bare gRPC server
};

struct ScaleFigure {
  enum class Target { kNone, kAtMost, kAtLeast };

  std::string name;
  std::string unit;
  std::vector<double> values;  // one a round; the median counts
  Target kind = Target::kNone;
  double target = 0;

  double Median() const;
  bool is_met() const;
};

class ScaleReport {
 public:
  void Add(ScaleFigure figure);
  bool is_all_met() const;
  nlohmann::json ToJson() const;

 private:
  std::vector<ScaleFigure> figures_;
};

// A layout whose block is `bytes` long, a multiple of 32.
KvLayout SmallLayout(uint32_t bytes);
NamespaceId ScaleNamespace();
// The links of a chain of `count` full blocks; `seed` makes their keys differ from those of other
// chains. The keys are no hashes of tokens: the store takes them as opaque bytes.
std::vector<ChainLink> MakeScaleChain(const NamespaceId& ns, uint32_t seed, uint32_t count);
std::vector<BlockKey> KeysOf(const std::vector<ChainLink>& chain);

// Memory of this process that is not shared: the arena is.
double AnonymousBytes();
double WallSeconds();
double ThreadCpuSeconds();

// The cases. Each prints its figures as it has them.
void RunMemoryCase(const ScaleOptions& options, ScaleReport* report);
void RunIndexCases(const ScaleOptions& options, ScaleReport* report);
void RunRecoveryCase(const ScaleOptions& options, ScaleReport* report);
void RunDiskCase(const ScaleOptions& options, ScaleReport* report);
void RunRpcCase(const ScaleOptions& options, ScaleReport* report);

// Serves the messages of Offer and Publish without a store until SIGTERM; writes
// its port to `port_file`.
int ServeBareGrpc(const std::string& port_file);

}  // namespace ibid
