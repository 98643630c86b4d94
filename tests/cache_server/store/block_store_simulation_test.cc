// Thousands of random calls from one thread, with a manual clock, against a model that knows what
// must hold at each step. Prints the seed of a failure; `--seed N` replays it, `--steps N` sets its
// length, `--seeds N` the number of seeds of each test.
#include <cstdio>
#include <string>

#include "absl/strings/numbers.h"
#include "tests/cache_server/store/block_store_simulation.h"

namespace ibid {
namespace {

uint32_t g_seed = 0;   // 0: the fixed set
uint32_t g_seeds = 0;  // 0: as many as the test says
int g_steps = 1500;

void RunSeeds(SimulatedTiers tiers, uint32_t seeds_count) {
  const uint32_t first = g_seed != 0 ? g_seed : 1;
  const uint32_t last = g_seed != 0 ? g_seed : g_seeds != 0 ? g_seeds : seeds_count;
  for (uint32_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("--seed " + std::to_string(seed));
    std::printf("seed %u\n", seed);
    std::fflush(stdout);
    Simulation(seed, tiers).Run(g_steps);
    if (::testing::Test::HasFailure()) {
      std::printf("the failing seed is %u: replay with --seed %u\n", seed, seed);
      return;
    }
  }
}

TEST(BlockStoreSimulation, HostTierKeepsItsPromises) { RunSeeds({}, 30); }
TEST(BlockStoreSimulation, BothTiersKeepTheirPromisesWithAFaultyDisk) {
  RunSeeds({.has_disk = true}, 9);
}
TEST(BlockStoreSimulation, GpuAndHostTierKeepTheirPromises) { RunSeeds({.has_gpu = true}, 12); }
TEST(BlockStoreSimulation, ThreeTiersKeepTheirPromisesWithAFaultyDisk) {
  RunSeeds({.has_disk = true, .has_gpu = true}, 9);
}

}  // namespace
}  // namespace ibid

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i + 1 < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--seed") (void)absl::SimpleAtoi(argv[i + 1], &ibid::g_seed);
    if (flag == "--seeds") (void)absl::SimpleAtoi(argv[i + 1], &ibid::g_seeds);
    if (flag == "--steps") (void)absl::SimpleAtoi(argv[i + 1], &ibid::g_steps);
  }
  return RUN_ALL_TESTS();
}
