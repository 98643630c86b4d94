// Both ends of shared memory in one process: who gets the arena, what can be done with it, and what
// is left when either end goes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "tests/harness/eventually.h"
#include "transport/limits.h"
#include "transport/shm_attachment.h"
#include "transport/shm_listener.h"

namespace ibid {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);
constexpr uint64_t kIncarnation = 0xabc;
constexpr size_t kArenaBytes = 64 * kPageBytes;

class ShmTest : public ::testing::Test {
 protected:
  void SetUp() override {
    arena_ = *HostMemory::CreateReadableByOthers("arena", kArenaBytes);
    generations_ = *HostMemory::CreateReadableByOthers("generations", 64 * sizeof(uint32_t));
    for (size_t i = 0; i < kArenaBytes; ++i) arena_.begin()[i] = static_cast<std::byte>(i >> 8);
  }

  void Listen(std::vector<uid_t> uids = {geteuid()}) {
    ShmListenerOptions options;
    options.socket = attach_.socket;
    options.uids = std::move(uids);
    options.incarnation = kIncarnation;
    options.arena = &arena_;
    options.generations = &generations_;
    auto listener = ShmListener::Start(options);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }

  void SetGeneration(size_t page, uint32_t generation) {
    reinterpret_cast<std::atomic<uint32_t>*>(generations_.begin())[page].store(generation);
  }

  absl::StatusOr<std::shared_ptr<ShmAttachment>> Attach() { return ShmAttachment::Attach(attach_); }

  // Says `hello` as a client that keeps no rules. Returns what the server answers.
  ShmWelcome Say(absl::string_view hello, std::span<const int> fds) {
    ShmWelcome welcome;
    auto socket = ConnectToShmSocket(attach_.socket);
    EXPECT_TRUE(socket.ok()) << socket.status();
    EXPECT_TRUE(SendShmMessage(socket->get(), hello, fds).ok());
    EXPECT_TRUE(Eventually(kPatience, [&] {
      const auto message = ReceiveShmMessage(
          socket->get(), std::span<char>(reinterpret_cast<char*>(&welcome), sizeof(welcome)));
      return !absl::IsDeadlineExceeded(message.status());
    }));
    return welcome;
  }
  ShmWelcome Say(const ShmHello& hello, std::span<const int> fds) {
    return Say({reinterpret_cast<const char*>(&hello), sizeof(hello)}, fds);
  }

  static size_t OpenDescriptors() {
    size_t count = 0;
    for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/fd"))
      ++count;
    return count;
  }
  // Mappings of memfds of this module.
  static size_t Mappings() {
    std::ifstream maps("/proc/self/maps");
    size_t count = 0;
    for (std::string line; std::getline(maps, line);) {
      count += line.find("memfd:ibid-staging") != std::string::npos ||
               line.find("memfd:arena") != std::string::npos;
    }
    return count;
  }

  HostMemory arena_, generations_;
  ShmAttachOptions attach_{absl::StrCat("@ibid-shm-test-", getpid()), /*session_id=*/7,
                           kIncarnation, /*staging_bytes=*/16 * kPageBytes, kPatience};
  std::unique_ptr<ShmListener> listener_;
};

TEST_F(ShmTest, TheClientReadsTheArenaWhereItLiesAsLongAsTheGenerationHolds) {
  Listen();
  const auto attached = Attach();
  ASSERT_TRUE(attached.ok()) << attached.status();
  SetGeneration(3, 5);
  const ArenaPlace place{3 * kPageBytes, 2 * kPageBytes, 5};
  const auto bytes = (*attached)->BytesAt(place);
  ASSERT_TRUE(bytes.has_value());
  EXPECT_NE(bytes->data(), arena_.begin() + 3 * kPageBytes) << "a mapping of its own";
  EXPECT_EQ(std::memcmp(bytes->data(), arena_.begin() + 3 * kPageBytes, 2 * kPageBytes), 0);
  EXPECT_TRUE((*attached)->IsCurrent(place));
  SetGeneration(3, 6);
  EXPECT_FALSE((*attached)->IsCurrent(place));
}

TEST_F(ShmTest, APlaceOutsideOfTheArenaIsNone) {
  Listen();
  const auto attached = Attach();
  ASSERT_TRUE(attached.ok()) << attached.status();
  const uint64_t all = ~uint64_t{0};
  const ArenaPlace outside[] = {{kArenaBytes, 1, 0}, {0, kArenaBytes + 1, 0},
                                {1, kArenaBytes, 0}, {all, 1, 0},
                                {1, all, 0},         {all, all, 0}};
  for (const ArenaPlace& place : outside) {
    EXPECT_FALSE((*attached)->BytesAt(place).has_value()) << place.offset << " " << place.bytes;
  }
  EXPECT_TRUE((*attached)->BytesAt({0, kArenaBytes, 0}).has_value());
  EXPECT_FALSE((*attached)->IsCurrent({kArenaBytes, 1, 0}));
}

TEST_F(ShmTest, AWriteToTheArenaFaults) {
  Listen();
  const auto attached = Attach();
  ASSERT_TRUE(attached.ok()) << attached.status();
  auto* const begin = const_cast<std::byte*>((*attached)->BytesAt({0, 1, 0})->data());
  EXPECT_DEATH(*begin = std::byte{1}, "");
  EXPECT_NE(mprotect(begin, kPageBytes, PROT_READ | PROT_WRITE), 0)
      << "what is mapped to be read cannot be made writable";
}

TEST_F(ShmTest, NobodyCanMapTheArenaToWriteOrChangeItsSize) {
  // Not even the process that made it, or whoever opens its file again.
  EXPECT_EQ(mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_SHARED, arena_.fd(), 0),
            MAP_FAILED);
  EXPECT_NE(ftruncate(arena_.fd(), 0), 0);
  EXPECT_LT(pwrite(arena_.fd(), "x", 1, 0), 0);
  const auto fd = arena_.OpenReadOnly();
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_EQ(mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0), MAP_FAILED);
  close(*fd);
}

TEST_F(ShmTest, TheServerSeesTheStagingMemoryUntilTheClientIsGone) {
  Listen();
  auto attached = Attach();
  ASSERT_TRUE(attached.ok()) << attached.status();
  auto staged = (*attached)->Stage(100);
  ASSERT_EQ(staged.bytes.size(), 100u);
  std::memset(staged.bytes.data(), 'x', 100);
  const auto staging = listener_->StagingOf(7);
  ASSERT_NE(staging, nullptr);
  EXPECT_EQ(std::memcmp(staging->begin() + staged.offset, staged.bytes.data(), 100), 0);
  EXPECT_EQ(listener_->StagingOf(8), nullptr);
  staged = {};
  *attached = nullptr;
  EXPECT_TRUE(Eventually(kPatience, [&] { return listener_->StagingOf(7) == nullptr; }));
  EXPECT_EQ(staging->size(), 16 * kPageBytes) << "who still reads it keeps it";
}

TEST_F(ShmTest, AUserThatIsNotAllowedGetsNothingAndIsToldTheFlag) {
  Listen({geteuid() + 1});
  const auto attached = Attach();
  EXPECT_TRUE(absl::IsPermissionDenied(attached.status())) << attached.status();
  EXPECT_THAT(std::string(attached.status().message()), HasSubstr("--shm_uids"));
  EXPECT_EQ(listener_->clients_count(), 0u);
}

TEST_F(ShmTest, AnotherServersSocketIsNotUsed) {
  Listen();
  attach_.incarnation = kIncarnation + 1;
  EXPECT_TRUE(absl::IsUnavailable(Attach().status())) << Attach().status();
  attach_.socket += "-nobody";
  EXPECT_TRUE(absl::IsUnavailable(Attach().status()));
  attach_.socket = std::string(200, 'x');
  EXPECT_TRUE(absl::IsInvalidArgument(Attach().status()));
}

TEST_F(ShmTest, AServerThatSaysNothingIsGivenUp) {
  const auto listening = ListenOnShmSocket(attach_.socket);
  ASSERT_TRUE(listening.ok()) << listening.status();
  attach_.timeout = absl::Milliseconds(50);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Attach().status())) << Attach().status();
}

TEST_F(ShmTest, ClientsThatKeepNoRulesAreRefusedAndHarmNobody) {
  Listen();
  const auto good = Attach();
  ASSERT_TRUE(good.ok()) << good.status();
  const HostMemory sealed = *HostMemory::CreateForPeer("ibid-staging", kPageBytes);
  const int can_shrink = memfd_create("can-shrink", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(can_shrink, kPageBytes), 0);
  const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  ShmHello hello;
  hello.session_id = 9;
  hello.staging_bytes = kPageBytes;
  const auto refusal = [](const ShmWelcome& welcome) { return std::string(welcome.refusal); };
  EXPECT_THAT(refusal(Say("hi", {})), HasSubstr("not a hello"));
  EXPECT_THAT(refusal(Say(std::string(10'000, 'x'), {})), "") << "hung up";
  EXPECT_THAT(refusal(Say(hello, {})), HasSubstr("one descriptor"));
  const int fds[] = {sealed.fd(), sealed.fd()};
  EXPECT_THAT(refusal(Say(hello, fds)), HasSubstr("one descriptor"));
  // It would kill the server that reads it after it was cut short.
  EXPECT_THAT(refusal(Say(hello, {&can_shrink, 1})), HasSubstr("cannot shrink"));
  EXPECT_THAT(refusal(Say(hello, {&file, 1})), HasSubstr("cannot shrink"));
  hello.staging_bytes = 2 * kPageBytes;
  EXPECT_THAT(refusal(Say(hello, {fds, 1})), HasSubstr("cannot shrink")) << "smaller than it says";
  hello.staging_bytes = kShmStagingBytesMax + 1;
  EXPECT_THAT(refusal(Say(hello, {fds, 1})), HasSubstr("kShmStagingBytesMax"));
  hello.staging_bytes = kPageBytes;
  hello.session_id = 7;
  EXPECT_THAT(refusal(Say(hello, {fds, 1})), HasSubstr("another client has named this session"));
  hello.magic += 1;
  EXPECT_THAT(refusal(Say(hello, {fds, 1})), HasSubstr("not a hello"));
  close(can_shrink);
  close(file);
  EXPECT_EQ(listener_->clients_count(), 1u);
  EXPECT_NE(listener_->StagingOf(7), nullptr);
}

TEST_F(ShmTest, TheClientsMappingOutlivesTheServer) {
  Listen();
  const auto attached = Attach();
  ASSERT_TRUE(attached.ok()) << attached.status();
  listener_ = nullptr;
  const std::vector<std::byte> expected(arena_.begin(), arena_.begin() + kArenaBytes);
  arena_ = HostMemory();
  const auto bytes = (*attached)->BytesAt({0, kArenaBytes, 0});
  EXPECT_EQ(std::memcmp(bytes->data(), expected.data(), kArenaBytes), 0);
  EXPECT_NE((*attached)->Stage(kPageBytes).owner, nullptr);
}

TEST_F(ShmTest, AThousandConnectsLeaveNothingBehind) {
  Listen();
  { ASSERT_TRUE(Attach().ok()); }
  ASSERT_TRUE(Eventually(kPatience, [&] { return listener_->clients_count() == 0; }));
  const size_t descriptors = OpenDescriptors(), mappings = Mappings();
  for (int i = 0; i < 1'000; ++i) {
    attach_.session_id = 100 + static_cast<uint64_t>(i);
    const auto attached = Attach();
    ASSERT_TRUE(attached.ok()) << i << " " << attached.status();
  }
  EXPECT_TRUE(Eventually(kPatience,
                         [&] {
                           return listener_->clients_count() == 0 &&
                                  OpenDescriptors() == descriptors && Mappings() == mappings;
                         }))
      << OpenDescriptors() << " descriptors, " << descriptors << " before; " << Mappings()
      << " mappings, " << mappings << " before";
}

TEST_F(ShmTest, WithoutDescriptorsAttachingFailsAndWorksAgainAfterwards) {
  Listen();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = OpenDescriptors() + 2;  // the directory's own is closed again
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  attach_.timeout = absl::Milliseconds(300);
  const auto failed = Attach();
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(failed.ok());
  attach_.timeout = kPatience;
  EXPECT_TRUE(Eventually(kPatience, [&] { return Attach().ok(); }));
}

TEST_F(ShmTest, ASocketFileOfAKilledServerIsReplacedAndOneOfALivingServerIsNot) {
  const std::string path = absl::StrCat(testing::TempDir(), "/ibid-shm-", getpid(), ".sock");
  attach_.socket = path;
  { ASSERT_TRUE(ListenOnShmSocket(path).ok()); }  // leaves its file
  Listen();
  EXPECT_TRUE(Attach().ok());
  EXPECT_TRUE(absl::IsUnavailable(ListenOnShmSocket(path).status()));
  listener_ = nullptr;
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(ShmTest, PiecesOfTheStagingMemoryNeverOverlapAndAllComeBack) {
  Listen();
  const auto attached = Attach();
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ((*attached)->Stage(17 * kPageBytes).owner, nullptr) << "larger than all";
  EXPECT_EQ((*attached)->Stage(0).owner, nullptr);
  std::mt19937 random(1);
  std::vector<ShmAttachment::Staged> held;
  int full_count = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (random() % 2 == 0 || held.empty()) {
      auto staged = (*attached)->Stage(1 + random() % (4 * kPageBytes));
      if (staged.owner == nullptr) {
        ++full_count;
      } else {
        for (const auto& other : held) {
          const bool is_apart = other.bytes.data() + other.bytes.size() <= staged.bytes.data() ||
                                staged.bytes.data() + staged.bytes.size() <= other.bytes.data();
          ASSERT_TRUE(is_apart) << step;
        }
        held.push_back(std::move(staged));
      }
    } else {
      std::swap(held[random() % held.size()], held.back());
      held.pop_back();
    }
  }
  EXPECT_GT(full_count, 0);
  held.clear();
  EXPECT_NE((*attached)->Stage(16 * kPageBytes).owner, nullptr);
}

}  // namespace
}  // namespace ibid
