#include "cache_server/extent_io.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/host_memory.h"
#include "tests/cache_server/store/store_harness.h"

namespace {
std::atomic<int64_t> g_bytes_of_next_call{-1};  // what the next pwritev does; -1: all
}

// In the place of the system's, for this program.
extern "C" ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) {
  const int64_t bytes_max = g_bytes_of_next_call.exchange(-1);
  std::vector<iovec> some(parts, parts + count);
  for (int64_t left = bytes_max, i = 0; bytes_max >= 0 && i < count; ++i) {
    some[i].iov_len = std::min<size_t>(some[i].iov_len, left);
    left -= static_cast<int64_t>(some[i].iov_len);
  }
  return syscall(SYS_pwritev, fd, some.data(), count, static_cast<long>(offset), 0L);
}

namespace ibid {
namespace {

TEST(ExtentIo, ReadsBackWhatWasWritten) {
  TempDir directory;
  const auto io = MakeFileExtentIo(directory.path());
  ASSERT_TRUE(io->Prepare(3, 8 * kPageBytes).ok());
  HostMemory memory = *HostMemory::CreatePrivate(4 * kPageBytes);
  for (size_t i = 0; i < memory.size(); ++i) memory.begin()[i] = static_cast<std::byte>(i * 7 >> 4);
  const uint64_t checksum = Checksum(memory.view());
  ASSERT_TRUE(io->Write(3, 2 * kPageBytes, memory.view()).ok());
  ASSERT_TRUE(io->Sync(3).ok());
  HostMemory back = *HostMemory::CreatePrivate(4 * kPageBytes);
  ASSERT_TRUE(io->Read(3, 2 * kPageBytes, back.view()).ok());
  EXPECT_EQ(Checksum(back.view()), checksum);
  EXPECT_EQ(*io->List(), std::vector<uint32_t>{3});
}

TEST(ExtentIo, PartsLieOneBehindTheOther) {
  TempDir directory;
  const auto io = MakeFileExtentIo(directory.path());
  constexpr size_t kParts = 600;  // more than one call of the system takes
  ASSERT_TRUE(io->Prepare(0, (kParts + 1) * kPageBytes).ok());
  HostMemory memory = *HostMemory::CreatePrivate(kParts * kPageBytes);
  std::vector<ByteView> parts;
  for (size_t i = 0; i < kParts; ++i) {
    // Backwards in memory, so that no call sees them as one piece.
    const MutableByteView part = memory.view().subspan((kParts - 1 - i) * kPageBytes, kPageBytes);
    std::fill(part.begin(), part.end(), static_cast<std::byte>(i % 251));
    parts.push_back(part);
  }
  // Also when a call of the system does less than it was asked for: none, some parts, or all but a
  // few in the middle of the second call.
  for (const int64_t bytes_of_first_call : {-1, 0, 3 * 4096, 255 * 4096}) {
    HostMemory zeros = *HostMemory::CreatePrivate(kParts * kPageBytes);
    ASSERT_TRUE(io->Write(0, kPageBytes, zeros.view()).ok());
    g_bytes_of_next_call = bytes_of_first_call;
    ASSERT_TRUE(io->WriteParts(0, kPageBytes, parts).ok());
    ASSERT_EQ(g_bytes_of_next_call, -1) << "nothing was written by pwritev";
    HostMemory back = *HostMemory::CreatePrivate(kPageBytes);
    for (size_t i = 0; i < kParts; ++i) {
      ASSERT_TRUE(io->Read(0, (i + 1) * kPageBytes, back.view()).ok());
      ASSERT_EQ(Checksum(back.view()), Checksum(parts[i])) << i << " " << bytes_of_first_call;
    }
  }
}

TEST(ExtentIo, PartsThatDoNotFitAreAnErrorThatSaysWhy) {
  TempDir directory;
  const auto io = MakeFileExtentIo(directory.path());
  ASSERT_TRUE(io->Prepare(0, 8 * kPageBytes).ok());
  HostMemory memory = *HostMemory::CreatePrivate(4 * kPageBytes);
  std::vector<ByteView> parts;
  for (size_t i = 0; i < 4; ++i) parts.push_back(memory.view().subspan(i * kPageBytes, kPageBytes));
  // The system writes what lies below the limit, and then says that the file is too large.
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {6 * kPageBytes, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = io->WriteParts(0, 4 * kPageBytes, parts);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("File too large"), std::string::npos) << status;
  EXPECT_TRUE(io->WriteParts(0, 4 * kPageBytes, parts).ok());
}

TEST(ExtentIo, NamesAreSynced) {
  TempDir directory;
  const auto io = MakeFileExtentIo(directory.path());
  ASSERT_TRUE(io->Prepare(0, kPageBytes).ok());
  EXPECT_TRUE(io->SyncNames().ok());
  EXPECT_TRUE(absl::IsNotFound(SyncDirectory(directory.path() + "/none")));
}

// The flags of this process's open file `path`; nothing when it is not open.
std::optional<int> OpenFlagsOf(const std::string& path) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (std::filesystem::read_symlink(entry.path(), error) != path) continue;
    return fcntl(std::stoi(entry.path().filename()), F_GETFL);
  }
  return std::nullopt;
}

TEST(ExtentIo, FilesAreOpenedForDirectIo) {
  TempDir directory;
  const int probe = open((directory.path() + "/probe").c_str(), O_RDWR | O_CREAT | O_DIRECT, 0600);
  if (probe < 0) GTEST_SKIP() << "the file system of the temporary folder has no O_DIRECT";
  close(probe);
  const auto io = MakeFileExtentIo(directory.path());
  ASSERT_TRUE(io->Prepare(3, 8 * kPageBytes).ok());
  const std::optional<int> flags = OpenFlagsOf(directory.path() + "/000003.ext");
  ASSERT_TRUE(flags.has_value());
  EXPECT_NE(*flags & O_DIRECT, 0);
}

TEST(ExtentIo, PrepareTakesTheRoomFromTheFileSystemAndCutsALongerFile) {
  TempDir directory;
  const auto io = MakeFileExtentIo(directory.path());
  ASSERT_TRUE(io->Prepare(0, 64 * kPageBytes).ok());
  EXPECT_EQ(AllocatedBytesUnder(directory.path()), 64 * kPageBytes);
  ASSERT_TRUE(io->Prepare(0, 16 * kPageBytes).ok());
  EXPECT_EQ(AllocatedBytesUnder(directory.path()), 16 * kPageBytes);
}

TEST(ExtentIo, AMissingFileAndAShortOneAreNotFound) {
  TempDir directory;
  const auto io = MakeFileExtentIo(directory.path());
  HostMemory memory = *HostMemory::CreatePrivate(kPageBytes);
  EXPECT_TRUE(absl::IsNotFound(io->Read(0, 0, memory.view())));
  ASSERT_TRUE(io->Prepare(1, kPageBytes).ok());
  EXPECT_TRUE(absl::IsNotFound(io->Read(1, kPageBytes, memory.view())));
  EXPECT_TRUE(io->Remove(1).ok());
  EXPECT_TRUE(io->Remove(1).ok());
  EXPECT_TRUE(absl::IsNotFound(io->Read(1, 0, memory.view())));
}

}  // namespace
}  // namespace ibid
