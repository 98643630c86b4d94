// A restart with a million blocks on disk, and the disk tier beside direct I/O of the same threads
// on the same file system.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "bench/scale/scale_bench.h"
#include "cache_server/disk_directory.h"
#include "cache_server/extent_io.h"
#include "core/check.h"
#include "core/host_memory.h"
#include "tests/harness/process.h"

namespace ibid {
namespace {

constexpr uint64_t kExtentBytes = uint64_t{64} << 20;

// ---- Recovery

constexpr uint32_t kRecoveredChain = 1'000;
constexpr uint32_t kSmallBytes = 4'096;

// A disk directory as a server leaves it that stored `chains_count` chains of blocks full of zeros:
// what a preallocated file gives for free.
void MakeDiskDirectory(const std::string& path, const NamespaceId& ns, uint32_t chains_count) {
  std::filesystem::create_directories(path + "/extents");
  const auto directory = DiskDirectory::Open(path + "/directory", kExtentBytes);
  IBID_CHECK(directory.ok()) << directory.status();
  const uint32_t slots_per_extent = kExtentBytes / kPageBytes;
  const std::vector<std::byte> zeros(kSmallBytes);
  const uint64_t checksum = Checksum(zeros);
  uint32_t slot = 0;
  for (uint32_t seed = 0; seed < chains_count; ++seed) {
    DiskDirectory::Change change;
    if (seed == 0) change.put_namespaces.push_back({1, ns, SmallLayout(kSmallBytes).ToString()});
    for (const ChainLink& link : MakeScaleChain(ns, seed, kRecoveredChain)) {
      change.put_blocks.push_back({1, link.key, slot / slots_per_extent, slot % slots_per_extent,
                                   kSmallBytes, checksum, link.parent, link.token_count,
                                   link.position});
      ++slot;
    }
    IBID_CHECK((*directory)->Apply(change, /*is_synced=*/false).ok());
  }
  const auto io = MakeFileExtentIo(path + "/extents");
  for (uint32_t extent = 0; extent * slots_per_extent < slot; ++extent) {
    IBID_CHECK(io->Prepare(extent, kExtentBytes).ok());
  }
}

absl::StatusOr<BlockRef> AcquireNow(BlockStore& store, const NamespaceId& ns, const BlockKey& key) {
  std::promise<absl::StatusOr<BlockRef>> promise;
  store.Acquire(ns, key, [&](absl::StatusOr<BlockRef> ref) { promise.set_value(std::move(ref)); });
  return promise.get_future().get();
}

// Asks for random blocks, which are all there, until recovery is over.
struct ServedMeanwhile {
  double first_s = 0;
  double longest_s = 0;
  uint64_t blocks = 0;
};
ServedMeanwhile ServeUntilRecovered(BlockStore& store, const NamespaceId& ns, uint32_t chains_count,
                                    double begin) {
  std::mt19937 random(1);
  ServedMeanwhile served;
  do {
    const auto chain = MakeScaleChain(ns, static_cast<uint32_t>(random() % chains_count), 32);
    const double asked = WallSeconds();
    const auto match = store.Match({}, ns, KeysOf(chain), {});
    IBID_CHECK(match.ok() && match->matched_count == chain.size()) << match->matched_count;
    const auto ref = AcquireNow(store, ns, chain[random() % chain.size()].key);
    IBID_CHECK(ref.ok()) << ref.status();
    const double now = WallSeconds();
    if (served.blocks++ == 0) served.first_s = now - begin;
    served.longest_s = std::max(served.longest_s, now - asked);
    // Some traffic, not as much as a core can make.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } while (store.stats().is_recovering);
  return served;
}

// ---- Direct I/O

struct IoBench {
  int threads_count;
  uint64_t blocks_count;
  uint64_t block_bytes;
};

// Runs `each` for every block number on the threads, and returns GB/s.
template <typename Each>
double RunThreads(const IoBench& bench, const Each& each) {
  std::atomic<uint64_t> next{0};
  std::vector<std::thread> threads;
  const double begin = WallSeconds();
  for (int i = 0; i < bench.threads_count; ++i) {
    threads.emplace_back([&, i] {
      for (uint64_t block = next++; block < bench.blocks_count; block = next++) each(i, block);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return static_cast<double>(bench.blocks_count * bench.block_bytes) / 1e9 /
         (WallSeconds() - begin);
}

// A preallocated file, written and read with O_DIRECT from and to warm memory.
class DirectFile {
 public:
  DirectFile(const std::string& path, const IoBench& bench, MutableByteView memory)
      : path_(path), bench_(bench), memory_(memory) {
    fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600);
    IBID_CHECK(fd_ >= 0) << path;
    IBID_CHECK(fallocate(fd_, 0, 0, static_cast<off_t>(memory_.size())) == 0);
  }
  ~DirectFile() {
    close(fd_);
    unlink(path_.c_str());
  }
  double Write() {
    return RunThreads(bench_, [this](int, uint64_t block) {
      IBID_CHECK(pwrite(fd_, At(block), bench_.block_bytes, OffsetOf(block)) ==
                 static_cast<ssize_t>(bench_.block_bytes));
    });
  }
  double Read() {
    return RunThreads(bench_, [this](int, uint64_t block) {
      IBID_CHECK(pread(fd_, At(block), bench_.block_bytes, OffsetOf(block)) ==
                 static_cast<ssize_t>(bench_.block_bytes));
    });
  }

 private:
  std::byte* At(uint64_t block) const { return memory_.data() + block * bench_.block_bytes; }
  off_t OffsetOf(uint64_t block) const { return static_cast<off_t>(block * bench_.block_bytes); }

  const std::string path_;
  const IoBench bench_;
  const MutableByteView memory_;
  int fd_ = -1;
};

// What this process caused to be written to storage.
uint64_t DeviceWriteBytes() {
  std::ifstream io("/proc/self/io");
  for (std::string word; io >> word;) {
    uint64_t bytes = 0;
    if (word == "write_bytes:" && io >> bytes) return bytes;
  }
  return 0;
}

// ---- The disk tier

class DiskBench {
 public:
  DiskBench(const std::string& path, const IoBench& bench, int rounds) : bench_(bench) {
    store_options_.host_bytes_max = (bench.blocks_count + 8) * bench.block_bytes;
    store_options_.disk_directory = path;
    store_options_.disk_bytes_max =
        (bench.blocks_count * static_cast<uint64_t>(rounds + 1) + 64) * bench.block_bytes +
        store_options_.disk_directory_bytes_reserve;
    store_options_.extent_bytes = kExtentBytes;
    store_options_.io_threads_count = static_cast<uint32_t>(bench.threads_count);
    Open();
  }

  // Ends what is being written, and starts with nothing in memory.
  void Reopen() {
    store_.reset();
    Open();
    while (store_->stats().is_recovering) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void Close() { store_.reset(); }

  double Write(uint32_t seed) {
    const auto chain = MakeScaleChain(ns_, seed, static_cast<uint32_t>(bench_.blocks_count));
    std::vector<Reservation> room;
    for (const ChainLink& link : chain) {
      auto reservation = store_->Reserve(session_, ns_, link);
      IBID_CHECK(reservation.ok()) << reservation.status();
      memset(reservation->payload().data(), static_cast<int>(link.position) + 1,
             reservation->payload().size());
      room.push_back(*std::move(reservation));
    }
    std::vector<uint64_t> checksums;
    for (const Reservation& each : room) checksums.push_back(Checksum(each.payload()));
    const double begin = WallSeconds();
    for (size_t i = 0; i < room.size(); ++i) {
      std::move(room[i]).Commit(checksums[i], checksums[i], false, [](const absl::Status& status) {
        IBID_CHECK(status.ok()) << status;
      });
    }
    IBID_CHECK(store_->FlushToDisk(absl::Seconds(120)));
    return GigabytesPerSecond(begin);
  }

  double Read(uint32_t seed) {
    const auto chain = MakeScaleChain(ns_, seed, static_cast<uint32_t>(bench_.blocks_count));
    std::atomic<uint64_t> left{chain.size()};
    std::promise<void> done;
    const double begin = WallSeconds();
    for (const ChainLink& link : chain) {
      store_->Acquire(ns_, link.key, [&](const absl::StatusOr<BlockRef>& ref) {
        IBID_CHECK(ref.ok()) << ref.status();
        IBID_CHECK(ref->tier() == "disk") << ref->tier();
        if (--left == 0) done.set_value();
      });
    }
    done.get_future().wait();
    return GigabytesPerSecond(begin);
  }

 private:
  void Open() {
    auto store = BlockStore::Open(store_options_);
    IBID_CHECK(store.ok()) << store.status();
    store_ = *std::move(store);
    IBID_CHECK(
        store_->OpenNamespace(ns_, SmallLayout(static_cast<uint32_t>(bench_.block_bytes))).ok());
    session_ = *store_->OpenSession("bench");
  }
  double GigabytesPerSecond(double begin) const {
    return static_cast<double>(bench_.blocks_count * bench_.block_bytes) / 1e9 /
           (WallSeconds() - begin);
  }

  const IoBench bench_;
  BlockStoreOptions store_options_;
  const NamespaceId ns_ = ScaleNamespace();
  std::unique_ptr<BlockStore> store_;
  SessionId session_;
};

std::vector<double> Ratios(const std::vector<double>& of, const std::vector<double>& to) {
  std::vector<double> ratios;
  for (size_t i = 0; i < of.size(); ++i) ratios.push_back(of[i] / to[i]);
  return ratios;
}

}  // namespace

void RunRecoveryCase(const ScaleOptions& options, ScaleReport* report) {
  using Target = ScaleFigure::Target;
  const uint32_t chains_count = options.is_quick ? 20 : 1'000;
  const NamespaceId ns = ScaleNamespace();
  const TempFolder folder("ibid-scale-bench");
  MakeDiskDirectory(folder / "disk", ns, chains_count);
  std::vector<double> seconds, first_ms, longest_ms;
  for (int i = 0; i < options.rounds; ++i) {
    BlockStoreOptions store_options;
    store_options.host_bytes_max = uint64_t{256} << 20;
    store_options.disk_directory = folder / "disk";
    store_options.disk_bytes_max =
        (chains_count * kRecoveredChain * kPageBytes / kExtentBytes + 1) * kExtentBytes +
        (uint64_t{1} << 30);  // the directory of a million blocks outgrows its reserve
    store_options.extent_bytes = kExtentBytes;
    const double begin = WallSeconds();
    auto store = BlockStore::Open(store_options);
    IBID_CHECK(store.ok()) << store.status();
    const ServedMeanwhile served = ServeUntilRecovered(**store, ns, chains_count, begin);
    seconds.push_back(WallSeconds() - begin);
    first_ms.push_back(served.first_s * 1e3);
    longest_ms.push_back(served.longest_s * 1e3);
    const uint64_t blocks = (*store)->stats().tiers[1].blocks;
    IBID_CHECK(blocks == uint64_t{chains_count} * kRecoveredChain) << blocks;
  }
  const std::string name = absl::StrCat("recovery of ", chains_count * kRecoveredChain, " blocks");
  report->Add({absl::StrCat(name, ", serving"), "s", seconds, Target::kAtMost, 5});
  report->Add({absl::StrCat(name, ", first block served"), "ms", first_ms, Target::kAtMost, 1'000});
  report->Add({absl::StrCat(name, ", slowest match and fetch"), "ms", longest_ms});
}

// What was written in turn is read in turn, each once: so both sides find the caches below the file
// system in the same state.
void RunDiskCase(const ScaleOptions& options, ScaleReport* report) {
  using Target = ScaleFigure::Target;
  const IoBench bench{4, options.is_quick ? 8u : 256u, uint64_t{2} << 20};
  const TempFolder folder("ibid-scale-bench");
  ScaleFigure direct_write{"direct write, 4 threads, 2 MiB", "GB/s", {}};
  ScaleFigure direct_read{"direct read, 4 threads, 2 MiB", "GB/s", {}};
  ScaleFigure tier_write{"disk tier, write, 2 MiB blocks", "GB/s", {}};
  ScaleFigure tier_read{"disk tier, read, 2 MiB blocks", "GB/s", {}};
  HostMemory memory = *HostMemory::CreatePrivate(bench.blocks_count * bench.block_bytes);
  memset(memory.begin(), 1, memory.size());
  std::vector<std::unique_ptr<DirectFile>> files;
  DiskBench tier(folder / "disk", bench, options.rounds);
  (void)tier.Write(1'000);  // warms the arena
  uint64_t written = 0;
  for (int i = 0; i < options.rounds; ++i) {
    files.push_back(
        std::make_unique<DirectFile>(folder / absl::StrCat("direct", i), bench, memory.view()));
    direct_write.values.push_back(files.back()->Write());
    const uint64_t before = DeviceWriteBytes();
    tier_write.values.push_back(tier.Write(static_cast<uint32_t>(i)));
    written += DeviceWriteBytes() - before;
  }
  const uint64_t before_close = DeviceWriteBytes();
  tier.Close();
  written += DeviceWriteBytes() - before_close;
  tier.Reopen();
  (void)tier.Read(1'000);
  for (int i = 0; i < options.rounds; ++i) {
    direct_read.values.push_back(files[static_cast<size_t>(i)]->Read());
    tier_read.values.push_back(tier.Read(static_cast<uint32_t>(i)));
  }
  for (const ScaleFigure& figure : {direct_write, tier_write, direct_read, tier_read}) {
    report->Add(figure);
  }
  report->Add({"disk tier to direct, write", "ratio",
               Ratios(tier_write.values, direct_write.values), Target::kAtLeast, 0.8});
  report->Add({"disk tier to direct, read", "ratio", Ratios(tier_read.values, direct_read.values),
               Target::kAtLeast, 0.8});
  const double payload =
      static_cast<double>(bench.blocks_count * bench.block_bytes) * options.rounds;
  report->Add({"write amplification of the disk tier",
               "ratio",
               {static_cast<double>(written) / payload},
               Target::kAtMost,
               1.05});
}

}  // namespace ibid
