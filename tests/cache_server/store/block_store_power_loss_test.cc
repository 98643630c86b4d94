// The power fails at every step of a commit in turn: what was written and not synced is gone, of
// the extents and of the directory's log, and nothing works any more. The next start finds every
// block whose durable commit was answered, and each other one right or absent; no room is lost.
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "core/check.h"
#include "core/host_memory.h"
#include "tests/cache_server/store/store_harness.h"

namespace ibid {
namespace {

namespace fs = std::filesystem;

// The files as the device has them, shared by test and store. After `steps_left` more calls the
// power is gone: every call fails, and RestoreLost takes back what was not synced.
struct Power {
  std::mutex mutex;  // of a test: the store's threads call the disk at the same time
  int steps_left = 0;
  bool is_gone = false;
  // What unsynced writes replaced, oldest first: extent, offset, bytes.
  struct Lost {
    uint32_t extent;
    uint64_t offset;
    std::vector<std::byte> before;
  };
  std::vector<Lost> lost;
  std::set<uint32_t> unsynced_names;  // extents whose files were made
  // How much of each file of the directory was synced; of those that this one's RocksDB wrote.
  std::map<std::string, uint64_t> synced_bytes;
  // The tier's directory, and where it is copied to when the power goes: what changes afterwards
  // has not been.
  fs::path directory;
  fs::path directory_then;

  // Of the directory, or of its copy. REQUIRES: mutex is held, or nobody else has this.
  void CutUnsynced(const fs::path& there) const {
    for (const auto& [name, bytes] : synced_bytes) {
      const fs::path file = there / fs::path(name).filename();
      if (fs::exists(file) && bytes < fs::file_size(file)) fs::resize_file(file, bytes);
    }
  }
};

// A file of the directory: a sync that comes without power fails.
class UnsyncedFile final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  UnsyncedFile(std::unique_ptr<rocksdb::FSWritableFile> real, std::string name,
               std::shared_ptr<Power> power)
      : FSWritableFileOwnerWrapper(std::move(real)),
        name_(std::move(name)),
        power_(std::move(power)) {}

  rocksdb::IOStatus Sync(const rocksdb::IOOptions& options,
                         rocksdb::IODebugContext* debug) override {
    return AfterSync(target()->Sync(options, debug));
  }
  rocksdb::IOStatus Fsync(const rocksdb::IOOptions& options,
                          rocksdb::IODebugContext* debug) override {
    return AfterSync(target()->Fsync(options, debug));
  }

 private:
  rocksdb::IOStatus AfterSync(rocksdb::IOStatus status) {
    const std::lock_guard lock(power_->mutex);
    if (power_->is_gone) return rocksdb::IOStatus::IOError("injected: no power");
    if (status.ok()) power_->synced_bytes[name_] = fs::file_size(name_);
    return status;
  }

  const std::string name_;
  const std::shared_ptr<Power> power_;
};

class UnsyncedFiles final : public rocksdb::FileSystemWrapper {
 public:
  explicit UnsyncedFiles(std::shared_ptr<Power> power)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), power_(std::move(power)) {}
  const char* Name() const override { return "UnsyncedFiles"; }

  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* debug) override {
    const rocksdb::IOStatus status = target()->NewWritableFile(name, options, file, debug);
    if (!status.ok()) return status;
    *file = std::make_unique<UnsyncedFile>(std::move(*file), name, power_);
    const std::lock_guard lock(power_->mutex);
    power_->synced_bytes[name] = 0;
    return status;
  }
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override {
    const std::lock_guard lock(power_->mutex);
    const rocksdb::IOStatus status = target()->RenameFile(from, to, options, debug);
    auto bytes = power_->synced_bytes.extract(from);
    power_->synced_bytes.erase(to);
    if (!bytes.empty()) power_->synced_bytes[to] = bytes.mapped();
    return status;
  }

 private:
  const std::shared_ptr<Power> power_;
};

class UnsyncedExtentIo final : public ExtentIo {
 public:
  UnsyncedExtentIo(std::unique_ptr<ExtentIo> real, std::shared_ptr<Power> power)
      : real_(std::move(real)), power_(std::move(power)) {}

  absl::Status Prepare(uint32_t extent, uint64_t bytes) override {
    IBID_RETURN_IF_ERROR(TakeStep());
    IBID_ASSIGN_OR_RETURN(const std::vector<uint32_t> there, real_->List());
    if (std::find(there.begin(), there.end(), extent) == there.end()) {
      const std::lock_guard lock(power_->mutex);
      power_->unsynced_names.insert(extent);
    }
    return real_->Prepare(extent, bytes);
  }
  absl::Status Write(uint32_t extent, uint64_t offset, ByteView bytes) override {
    IBID_RETURN_IF_ERROR(TakeStep());
    IBID_RETURN_IF_ERROR(Remember(extent, offset, bytes.size()));
    return real_->Write(extent, offset, bytes);
  }
  absl::Status WriteParts(uint32_t extent, uint64_t offset,
                          std::span<const ByteView> parts) override {
    IBID_RETURN_IF_ERROR(TakeStep());
    uint64_t bytes = 0;
    for (const ByteView part : parts) bytes += part.size();
    IBID_RETURN_IF_ERROR(Remember(extent, offset, bytes));
    return real_->WriteParts(extent, offset, parts);
  }
  absl::Status Read(uint32_t extent, uint64_t offset, MutableByteView into) override {
    {
      const std::lock_guard lock(power_->mutex);
      if (power_->is_gone) return absl::UnavailableError("injected: no power");
    }
    return real_->Read(extent, offset, into);
  }
  absl::Status Sync(uint32_t extent) override {
    IBID_RETURN_IF_ERROR(TakeStep());
    const std::lock_guard lock(power_->mutex);
    std::erase_if(power_->lost, [&](const Power::Lost& lost) { return lost.extent == extent; });
    return real_->Sync(extent);
  }
  absl::Status SyncNames() override {
    IBID_RETURN_IF_ERROR(TakeStep());
    const std::lock_guard lock(power_->mutex);
    power_->unsynced_names.clear();
    return real_->SyncNames();
  }
  absl::Status Remove(uint32_t extent) override {
    IBID_RETURN_IF_ERROR(TakeStep());
    {
      const std::lock_guard lock(power_->mutex);
      power_->unsynced_names.erase(extent);
      std::erase_if(power_->lost, [&](const Power::Lost& lost) { return lost.extent == extent; });
    }
    return real_->Remove(extent);
  }
  absl::StatusOr<std::vector<uint32_t>> List() override { return real_->List(); }

 private:
  absl::Status TakeStep() {
    const std::lock_guard lock(power_->mutex);
    if (power_->steps_left > 0 && --power_->steps_left == 0) {
      power_->is_gone = true;
      fs::copy(power_->directory, power_->directory_then, fs::copy_options::recursive);
      power_->CutUnsynced(power_->directory_then);
    }
    return power_->is_gone ? absl::UnavailableError("injected: no power") : absl::OkStatus();
  }

  absl::Status Remember(uint32_t extent, uint64_t offset, uint64_t bytes) {
    auto before = HostMemory::CreatePrivate(bytes);
    IBID_RETURN_IF_ERROR(before.status());
    IBID_RETURN_IF_ERROR(real_->Read(extent, offset, before->view()));
    const std::lock_guard lock(power_->mutex);
    power_->lost.push_back({extent, offset, {before->begin(), before->begin() + bytes}});
    return absl::OkStatus();
  }

  const std::unique_ptr<ExtentIo> real_;
  const std::shared_ptr<Power> power_;
};

class PowerLossTest : public StoreFixture {
 protected:
  static constexpr size_t kDiskBlocks = 24;

  void TearDown() override { store_.reset(); }  // before the env

  // With power for `steps` calls; 0: for ever. REQUIRES: no store is open.
  void OpenWithPower(int steps) {
    power_ = std::make_shared<Power>();
    power_->steps_left = steps;
    BlockStoreOptions options = WithDisk(16, kDiskBlocks, 8);
    power_->directory = options.disk_directory + "/directory";
    power_->directory_then = directory_.path() + "/then";
    options.wrap_extent_io = [power = power_](std::unique_ptr<ExtentIo> real) {
      return std::make_unique<UnsyncedExtentIo>(std::move(real), power);
    };
    env_ = rocksdb::NewCompositeEnv(std::make_shared<UnsyncedFiles>(power_));
    options.directory_env = env_.get();
    options.metrics = metrics_;
    OpenStore(options);
    WaitForRecovery();
  }

  void LosePower() {
    {
      const std::lock_guard lock(power_->mutex);
      power_->is_gone = true;
    }
    store_.reset();
    if (fs::exists(power_->directory_then)) {
      fs::remove_all(power_->directory);
      fs::rename(power_->directory_then, power_->directory);
    } else {
      power_->CutUnsynced(power_->directory);
    }
    const auto files = MakeFileExtentIo(options_.disk_directory + "/extents");
    for (auto it = power_->lost.rbegin(); it != power_->lost.rend(); ++it) TakeBack(*files, *it);
    for (const uint32_t extent : power_->unsynced_names) ASSERT_TRUE(files->Remove(extent).ok());
  }

  // Of a write that was not synced, each page reached the device or not: in a quarter of the cases
  // none, else a run of blocks is torn.
  void TakeBack(ExtentIo& files, const Power::Lost& lost) {
    const bool loses_all = random_() % 4 == 0;
    auto before = HostMemory::CreatePrivate(kPageBytes);
    ASSERT_TRUE(before.ok());
    for (size_t at = 0; at < lost.before.size(); at += kPageBytes) {
      if (!loses_all && random_() % 2 == 0) continue;
      std::memcpy(before->begin(), lost.before.data() + at, kPageBytes);
      ASSERT_TRUE(files.Write(lost.extent, lost.offset + at, before->view()).ok());
    }
    if (!loses_all && lost.before.size() > layout_.PayloadBytes()) ++torn_runs_count_;
  }

  // A read lets go of its block a moment after it has answered, and the slot is freed then.
  template <typename Expected>
  bool HasUsedBytes(const Expected& expected) {
    for (int i = 0; i < 100'000; ++i) {
      if (!Flush()) return false;
      if (Disk().used_bytes == expected()) return true;
      std::this_thread::yield();
    }
    return false;
  }

  // Reads everything that may be there; nothing is wrong, and `must_be_there` is.
  void ExpectNothingWrong(const std::vector<ChainLink>& all,
                          const std::set<BlockKey>& must_be_there) {
    for (const ChainLink& link : all) {
      const auto ref = AcquireOne(link.key);
      if (ref.ok()) {
        ASSERT_TRUE(HasRightBytes(*ref, link.key));
      } else {
        ASSERT_TRUE(absl::IsNotFound(ref.status()) || absl::IsDataLoss(ref.status()))
            << ref.status();
        ASSERT_FALSE(must_be_there.contains(link.key))
            << ref.status() << " position " << link.position;
      }
    }
    ASSERT_TRUE(HasUsedBytes([this] { return Disk().blocks * 4096; })) << "no room is lost";
    // All of the room can be had again.
    store_->DropEverything();
    ASSERT_TRUE(HasUsedBytes([] { return uint64_t{0}; }));
    PublishChain(ChainOf(ns_, 77, kDiskBlocks), /*durable=*/true);
    ASSERT_EQ(Disk().blocks, kDiskBlocks);
  }

  MetricsRegistry* metrics_ = nullptr;
  std::shared_ptr<Power> power_;
  std::unique_ptr<rocksdb::Env> env_;
  std::mt19937 random_{11};
  int torn_runs_count_ = 0;
};

TEST_F(PowerLossTest, AtEveryStepOfACommitDurableBlocksStayAndOthersAreRightOrAbsent) {
  bool is_lost = true;
  int step = 1;
  for (; is_lost && step < 500; ++step) {
    SCOPED_TRACE(step);
    OpenWithPower(step);
    // Room for all but the last chains: from there on blocks are evicted, slots written anew.
    std::vector<ChainLink> all;
    std::set<BlockKey> durable;
    for (uint32_t seed = 1; seed <= 5; ++seed) {
      for (const ChainLink& link : ChainOf(ns_, seed, 8)) {
        // In every second chain the last one alone, so that many are written at once.
        const bool is_durable = seed % 2 == 0 ? link.position == 7 : link.position % 3 == 0;
        const absl::Status status = PublishOne(link, is_durable);
        all.push_back(link);
        // The first chains are evicted by the last ones.
        if (is_durable && status.ok() && seed >= 4) durable.insert(link.key);
      }
      (void)store_->FlushToDisk(absl::ZeroDuration());
    }
    {
      const std::lock_guard lock(power_->mutex);
      is_lost = power_->is_gone;
    }
    LosePower();
    if (HasFatalFailure()) return;
    OpenWithPower(0);
    ExpectNothingWrong(all, durable);
    if (HasFatalFailure()) return;
    store_.reset();
    fs::remove_all(options_.disk_directory);
  }
  EXPECT_GT(step, 30) << "the power failed at hardly any step";
  EXPECT_FALSE(is_lost) << "at the last step all had power";
  EXPECT_GT(torn_runs_count_, 0) << "no write of several blocks was torn";
}

// Blocks of another size need a whole extent: durable blocks are moved out of it.
TEST_F(PowerLossTest, DurableBlocksThatAreMovedStayAtEveryStep) {
  const NamespaceId large = NamespaceOf("large");
  const KvLayout large_layout = LayoutOfPages(8);
  std::vector<ChainLink> small;
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    for (const ChainLink& link : ChainOf(ns_, seed, 4)) small.push_back(link);
  }
  std::set<BlockKey> survivors;
  bool is_lost = true;
  int step = 0;  // at first with power for ever: to see which blocks are not evicted
  for (; is_lost && step < 500; ++step) {
    SCOPED_TRACE(step);
    MetricsRegistry metrics;
    metrics_ = &metrics;
    OpenWithPower(step);
    ASSERT_TRUE(store_->OpenNamespace(large, large_layout).ok());
    std::set<BlockKey> durable;
    for (const ChainLink& link : small) {
      if (PublishOne(link, /*durable=*/true).ok()) durable.insert(link.key);
    }
    for (uint32_t seed = 1; seed <= 2; ++seed) {
      (void)Publish(*store_, session_, large, ChainOf(large, seed, 1)[0]);
      (void)store_->FlushToDisk(absl::Seconds(step == 0 ? 60 : 0));
    }
    if (step == 0) {
      EXPECT_EQ(SerializeMetrics(metrics).find("ibid_store_moved_blocks_total 0\n"),
                std::string::npos)
          << "blocks were moved";
      store_->RunMaintenance();
      for (const ChainLink& link : small) {
        if (Matched({link}) == 1) survivors.insert(link.key);
      }
      ASSERT_GT(survivors.size(), 2u);
    } else {
      (void)Flush();
      const std::lock_guard lock(power_->mutex);
      is_lost = power_->is_gone;
    }
    LosePower();
    if (HasFatalFailure()) return;
    metrics_ = nullptr;
    OpenWithPower(0);
    for (const ChainLink& link : small) {
      const auto ref = AcquireOne(link.key);
      if (ref.ok()) {
        EXPECT_TRUE(HasRightBytes(*ref, link.key));
      } else {
        EXPECT_FALSE(survivors.contains(link.key) && durable.contains(link.key)) << ref.status();
      }
    }
    store_.reset();
    fs::remove_all(options_.disk_directory);
  }
  EXPECT_GT(step, 30) << "the power failed at hardly any step";
  EXPECT_FALSE(is_lost) << "at the last step all had power";
}

// The directory's log may lose its end too, while the extents keep what was written.
TEST_F(PowerLossTest, ADirectoryOlderThanItsExtentsGivesNoWrongBlock) {
  OpenWithPower(0);
  const auto first = ChainOf(ns_, 1, 8);
  PublishChain(first, /*durable=*/true);
  store_.reset();
  const std::string directory = options_.disk_directory + "/directory";
  fs::copy(directory, directory_.path() + "/older", fs::copy_options::recursive);
  OpenWithPower(0);
  std::vector<ChainLink> all = first;
  for (uint32_t seed = 2; seed <= 6; ++seed) {
    const auto chain = ChainOf(ns_, seed, 8);
    PublishChain(chain);
    ASSERT_TRUE(Flush());
    all.insert(all.end(), chain.begin(), chain.end());
  }
  store_.reset();
  fs::remove_all(directory);
  fs::rename(directory_.path() + "/older", directory);
  OpenWithPower(0);
  // Some of the first chain's slots hold other blocks by now: those are found out.
  ExpectNothingWrong(all, {});
}

}  // namespace
}  // namespace ibid
