// failures 34: kill -9 at any instant. A child publishes, reads, drops and is killed; a parent
// opens what is left. Every block whose durable commit was answered is there with its bytes; every
// other is right or absent; no room is lost.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <random>
#include <set>
#include <thread>
#include <tuple>

#include "tests/cache_server/store/store_harness.h"

namespace ibid {
namespace {

constexpr size_t kBlocksPerChain = 8;

// Room on disk for all that a child can publish, or for less than that.
constexpr uint32_t kWideBlocks = 32'768;
constexpr uint32_t kNarrowBlocks = 256;

BlockStoreOptions CrashOptions(const std::string& directory, uint32_t disk_blocks) {
  BlockStoreOptions options;
  options.host_bytes_max = 64 * 4096;
  options.extent_bytes = 32 * 4096;
  options.disk_directory = directory;
  options.disk_bytes_max = disk_blocks * uint64_t{4096} + options.disk_directory_bytes_reserve;
  return options;
}

// Publishes chains from `first_seed` on, every block durably, until it is killed; tells each chain
// that is done.
[[noreturn]] void PublishUntilKilled(const std::string& directory, uint32_t disk_blocks,
                                     uint32_t first_seed, int report_fd) {
  auto store = BlockStore::Open(CrashOptions(directory, disk_blocks));
  if (!store.ok()) _exit(2);
  const NamespaceId ns = NamespaceOf("crash");
  if (!(*store)->OpenNamespace(ns, LayoutOfPages(1)).ok()) _exit(3);
  const SessionId session = *(*store)->OpenSession("child");
  for (uint32_t seed = first_seed;; ++seed) {
    (void)(*store)->KeepAlive(session, true);
    const auto chain = ChainOf(ns, seed, kBlocksPerChain);
    bool is_durable = true;
    for (const ChainLink& link : chain)
      is_durable &= Publish(**store, session, ns, link, seed % 3 != 0).ok();
    if (seed % 3 == 0 || !is_durable) continue;
    if (write(report_fd, &seed, sizeof(seed)) != sizeof(seed)) _exit(4);
  }
}

struct RoundResult {
  std::set<uint32_t> durable;
  int present_blocks = 0;
};

// By seed and blocks that fit on disk.
class CrashTest : public ::testing::TestWithParam<std::tuple<uint32_t, uint32_t>> {};

TEST_P(CrashTest, EveryDurableBlockIsThereAfterKillMinusNine) {
  const auto [seed_of_run, disk_blocks] = GetParam();
  std::mt19937 random(seed_of_run);
  TempDir temp;
  const std::string directory = temp.path() + "/tier";
  std::set<uint32_t> durable;
  uint32_t first_seed = 1;
  for (int round = 0; round < 4; ++round) {
    int report[2];
    ASSERT_EQ(pipe(report), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(report[0]);
      PublishUntilKilled(directory, disk_blocks, first_seed, report[1]);
    }
    close(report[1]);
    // The first report shows that it is at work; then any instant is as good as another.
    uint32_t seed = 0;
    ASSERT_EQ(read(report[0], &seed, sizeof(seed)), static_cast<ssize_t>(sizeof(seed)));
    durable.insert(seed);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself: " << WEXITSTATUS(status);
    while (read(report[0], &seed, sizeof(seed)) == static_cast<ssize_t>(sizeof(seed)))
      durable.insert(seed);
    close(report[0]);

    auto store = BlockStore::Open(CrashOptions(directory, disk_blocks));
    ASSERT_TRUE(store.ok()) << store.status();
    const NamespaceId ns = NamespaceOf("crash");
    ASSERT_TRUE((*store)->OpenNamespace(ns, LayoutOfPages(1)).ok());
    while ((*store)->stats().is_recovering) std::this_thread::yield();
    const uint32_t last_seed = *durable.rbegin() + 3;
    uint64_t present = 0;
    for (uint32_t each = 1; each <= last_seed; ++each) {
      const auto chain = ChainOf(ns, each, kBlocksPerChain);
      for (const ChainLink& link : chain) {
        const auto ref = AcquireNow(**store, ns, link.key);
        if (ref.ok()) {
          ++present;
          ASSERT_TRUE(HasRightBytes(*ref, link.key));
        } else {
          ASSERT_TRUE(absl::IsNotFound(ref.status())) << ref.status() << ": kill -9 tears nothing";
        }
        // Where there was room for all, nothing was evicted.
        ASSERT_TRUE(disk_blocks == kNarrowBlocks || !durable.contains(each) || ref.ok())
            << "seed " << seed_of_run << " round " << round << " chain " << each << " position "
            << link.position << ": " << ref.status();
      }
    }
    const BlockTierStats disk = TierOf((*store)->stats(), "disk");
    EXPECT_EQ(disk.used_bytes, disk.blocks * 4096) << "no room is lost";
    EXPECT_LE(disk.used_bytes, disk_blocks * uint64_t{4096});
    EXPECT_EQ((*store)->stats().corrupt_blocks, 0u);
    EXPECT_GT(present, 0u);
    first_seed = last_seed + 1;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, CrashTest,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::Values(kWideBlocks, kNarrowBlocks)));

}  // namespace
}  // namespace ibid
