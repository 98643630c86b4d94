#include "transport/ucx_port.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "tests/harness/eventually.h"
#include "tests/harness/process.h"

namespace ibid {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr absl::Duration kLong = absl::Seconds(30);
constexpr size_t kLargeBytes = size_t{64} << 20;

Bytes Pattern(size_t count, uint32_t seed) {
  Bytes bytes(count);
  for (size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::byte>((i * 2'654'435'761u + seed) >> 13);
  return bytes;
}

// What `done` said.
class Outcome {
 public:
  UcxDone Done() {
    return [this](absl::StatusOr<size_t> result) {
      MutexLock lock(mutex_);
      ++calls_count_;
      result_ = std::move(result);
      changed_.NotifyAll();
    };
  }
  absl::StatusOr<size_t> Wait(absl::Duration timeout = kLong) {
    const SteadyClock clock;
    const absl::Time until = clock.Now() + timeout;
    MutexLock lock(mutex_);
    while (!result_.has_value() && clock.Now() < until)
      changed_.WaitFor(mutex_, until - clock.Now());
    return result_.has_value() ? *result_ : absl::InternalError("the test: done was not called");
  }
  int calls_count() {
    MutexLock lock(mutex_);
    return calls_count_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::optional<absl::StatusOr<size_t>> result_ IBID_GUARDED_BY(mutex_);
  int calls_count_ IBID_GUARDED_BY(mutex_) = 0;
};

std::unique_ptr<UcxPort> MakePort(UcxPortOptions options) {
  auto port = UcxPort::Create(std::move(options));
  EXPECT_TRUE(port.ok()) << port.status();
  return port.ok() ? *std::move(port) : nullptr;
}
std::unique_ptr<UcxPort> Listening() {
  UcxPortOptions options;
  options.listen = "127.0.0.1:0";
  return MakePort(options);
}
std::string AddressOf(const UcxPort& port) { return absl::StrCat("127.0.0.1:", port.port()); }

size_t OpenFileDescriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

class UcxPortTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = Listening();
    client_ = MakePort({});
    auto peer = client_->Connect(AddressOf(*server_), kLong);
    ASSERT_TRUE(peer.ok()) << peer.status();
    peer_ = *peer;
  }

  void ExpectMoves(UcxPort& from, UcxPort& to, uint64_t tag, const Bytes& bytes) {
    Bytes into(bytes.size());
    Outcome sent, received;
    ASSERT_TRUE(to.Receive(peer_, tag, into, kLong, received.Done()).ok());
    ASSERT_TRUE(from.Send(peer_, tag, bytes, nullptr, kLong, sent.Done()).ok());
    const auto received_count = received.Wait(), sent_count = sent.Wait();
    ASSERT_TRUE(received_count.ok()) << received_count.status();
    ASSERT_TRUE(sent_count.ok()) << sent_count.status();
    EXPECT_EQ(*received_count, bytes.size());
    EXPECT_EQ(*sent_count, bytes.size());
    EXPECT_TRUE(into == bytes) << bytes.size();
  }

  std::unique_ptr<UcxPort> server_, client_;
  UcxPeerId peer_{};
};

TEST_F(UcxPortTest, MovesMessagesOfAnySizeBothWays) {
  uint64_t tag = 1;
  for (const size_t count : {size_t{1}, size_t{4096}, size_t{65'536}, size_t{256} << 10,
                             (size_t{256} << 10) + 1, size_t{2} << 20, kLargeBytes}) {
    const Bytes bytes = Pattern(count, static_cast<uint32_t>(count));
    ExpectMoves(*server_, *client_, tag, bytes);
    ExpectMoves(*client_, *server_, tag, bytes);
    ++tag;
  }
}

TEST_F(UcxPortTest, ManyInFlightArriveInAnyOrder) {
  constexpr size_t kCount = 200;
  std::vector<Bytes> sources, targets(kCount);
  for (uint32_t i = 0; i < kCount; ++i)
    sources.push_back(Pattern(i % 2 == 0 ? 700'000 : 30'000, i));
  std::vector<size_t> order(kCount);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 chance(7);
  std::vector<Outcome> sent(kCount), received(kCount);
  std::shuffle(order.begin(), order.end(), chance);
  // A third of the receives come after their messages.
  for (size_t n = 0; n < kCount; ++n) {
    const size_t i = order[n];
    targets[i].resize(sources[i].size());
    if (n % 3 != 0) {
      ASSERT_TRUE(client_->Receive(peer_, i, targets[i], kLong, received[i].Done()).ok());
    }
  }
  std::vector<size_t> send_order = order;
  std::shuffle(send_order.begin(), send_order.end(), chance);
  for (const size_t i : send_order)
    ASSERT_TRUE(server_->Send(peer_, i, sources[i], nullptr, kLong, sent[i].Done()).ok());
  for (size_t n = 0; n < kCount; n += 3) {
    const size_t i = order[n];
    ASSERT_TRUE(client_->Receive(peer_, i, targets[i], kLong, received[i].Done()).ok());
  }
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(received[i].Wait().ok()) << i << " " << received[i].Wait().status();
    ASSERT_TRUE(sent[i].Wait().ok()) << i;
    EXPECT_TRUE(targets[i] == sources[i]) << i;
    EXPECT_EQ(received[i].calls_count(), 1);
  }
}

TEST_F(UcxPortTest, TwoClientsWithEqualTagsDoNotMix) {
  const auto other = MakePort({});
  const auto other_peer = other->Connect(AddressOf(*server_), kLong);
  ASSERT_TRUE(other_peer.ok()) << other_peer.status();
  ASSERT_NE(*other_peer, peer_);
  for (const size_t count : {size_t{1000}, size_t{1} << 20}) {
    const Bytes mine = Pattern(count, 1), others = Pattern(count, 2);
    Bytes into_mine(count), into_others(count);
    Outcome a, b, c, d;
    ASSERT_TRUE(server_->Receive(peer_, count, into_mine, kLong, a.Done()).ok());
    ASSERT_TRUE(server_->Receive(*other_peer, count, into_others, kLong, b.Done()).ok());
    ASSERT_TRUE(other->Send(*other_peer, count, others, nullptr, kLong, c.Done()).ok());
    ASSERT_TRUE(client_->Send(peer_, count, mine, nullptr, kLong, d.Done()).ok());
    ASSERT_TRUE(a.Wait().ok() && b.Wait().ok() && c.Wait().ok() && d.Wait().ok());
    EXPECT_TRUE(into_mine == mine);
    EXPECT_TRUE(into_others == others);
  }
}

TEST_F(UcxPortTest, AnOwnerIsReleasedBeforeDone) {
  const Bytes bytes = Pattern(1 << 20, 3);
  Bytes into(bytes.size());
  auto owner = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = owner;
  Outcome received, sent;
  std::atomic<bool> was_released{false};
  ASSERT_TRUE(client_->Receive(peer_, 1, into, kLong, received.Done()).ok());
  ASSERT_TRUE(server_
                  ->Send(peer_, 1, bytes, std::move(owner), kLong,
                         [&, done = sent.Done()](absl::StatusOr<size_t> result) {
                           was_released = watch.expired();
                           done(std::move(result));
                         })
                  .ok());
  ASSERT_TRUE(sent.Wait().ok());
  EXPECT_TRUE(was_released);
}

TEST_F(UcxPortTest, ALongerMessageIsAnErrorAndOverflowsNothing) {
  for (const size_t count : {size_t{5000}, size_t{3} << 20}) {
    const Bytes bytes = Pattern(count, 4);
    Bytes into(count, std::byte{7});
    Outcome received, sent;
    ASSERT_TRUE(
        client_
            ->Receive(peer_, count, MutableByteView(into).first(count - 1), kLong, received.Done())
            .ok());
    ASSERT_TRUE(server_->Send(peer_, count, bytes, nullptr, kLong, sent.Done()).ok());
    EXPECT_TRUE(absl::IsInvalidArgument(received.Wait().status())) << received.Wait().status();
    // A small message has left before the receiver looks at it.
    if (count > 5000) {
      EXPECT_TRUE(absl::IsInvalidArgument(sent.Wait().status())) << sent.Wait().status();
    }
    EXPECT_EQ(into, Bytes(count, std::byte{7}));
  }
  ExpectMoves(*server_, *client_, 99, Pattern(1 << 20, 5));
}

TEST_F(UcxPortTest, AShorterMessageSaysItsLength) {
  const Bytes bytes = Pattern(1'000'000, 6);
  Bytes into(2'000'000, std::byte{7});
  Outcome received, sent;
  ASSERT_TRUE(client_->Receive(peer_, 1, into, kLong, received.Done()).ok());
  ASSERT_TRUE(server_->Send(peer_, 1, bytes, nullptr, kLong, sent.Done()).ok());
  ASSERT_TRUE(received.Wait().ok());
  EXPECT_EQ(*received.Wait(), bytes.size());
  EXPECT_EQ(into[bytes.size()], std::byte{7});
}

TEST_F(UcxPortTest, AWaitingReceiveEndsByItsDeadlineOrCancelAndThePeerStays) {
  Bytes into(1 << 20, std::byte{7});
  Outcome late, cancelled;
  ASSERT_TRUE(client_->Receive(peer_, 1, into, absl::Milliseconds(50), late.Done()).ok());
  const auto id = client_->Receive(peer_, 2, into, kLong, cancelled.Done());
  ASSERT_TRUE(id.ok());
  client_->Cancel(*id);
  EXPECT_TRUE(absl::IsCancelled(cancelled.Wait().status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.Wait().status()));
  client_->Cancel(*id);  // again: nothing
  // What comes for a cancelled receive is dropped after kUcxArrivalWait and writes nowhere.
  const Bytes bytes = Pattern(1 << 20, 8);
  Outcome sent;
  ASSERT_TRUE(server_->Send(peer_, 2, bytes, nullptr, kLong, sent.Done()).ok());
  EXPECT_FALSE(absl::IsInternal(sent.Wait(absl::Seconds(5)).status())) << "done was not called";
  EXPECT_EQ(into, Bytes(1 << 20, std::byte{7}));
  EXPECT_TRUE(client_->is_connected(peer_));
  ExpectMoves(*server_, *client_, 3, bytes);
  EXPECT_EQ(cancelled.calls_count(), 1);
}

TEST_F(UcxPortTest, ACancelAmidATransferIsAFence) {
  const Bytes bytes = Pattern(kLargeBytes, 9);
  for (int round = 0; round < 5; ++round) {
    const auto peer = client_->Connect(AddressOf(*server_), kLong);
    ASSERT_TRUE(peer.ok()) << peer.status();
    Bytes into(kLargeBytes);
    Outcome received, sent;
    const auto id = client_->Receive(*peer, 1, into, kLong, received.Done());
    ASSERT_TRUE(id.ok());
    ASSERT_TRUE(server_->Send(*peer, 1, bytes, nullptr, kLong, sent.Done()).ok());
    // The first bytes are there: UCX is in the middle of it.
    const volatile std::byte* const first = into.data() + 4096;
    while (*first != bytes[4096] && received.calls_count() == 0) {
    }
    client_->Cancel(*id);
    const auto end = received.Wait();
    std::fill(into.begin(), into.end(), std::byte{7});
    const auto sent_end = sent.Wait();
    EXPECT_FALSE(Eventually(absl::Milliseconds(100),
                            [&] { return into != Bytes(kLargeBytes, std::byte{7}); }));
    if (end.ok()) continue;  // it was too fast for this round
    EXPECT_TRUE(absl::IsCancelled(end.status())) << end.status();
    EXPECT_TRUE(absl::IsUnavailable(sent_end.status())) << sent_end.status();
    EXPECT_FALSE(client_->is_connected(*peer));
  }
  ExpectMoves(*server_, *client_, 2, Pattern(1 << 20, 10));  // the other peer is not touched
}

TEST_F(UcxPortTest, LimitsAreNamed) {
  UcxPortOptions options;
  options.transfers_max = 2;
  options.transfer_bytes_max = 1000;
  options.peers_max = 1;
  const auto small = MakePort(options);
  const auto peer = small->Connect(AddressOf(*server_), kLong);
  ASSERT_TRUE(peer.ok()) << peer.status();
  const auto more = small->Connect(AddressOf(*server_), kLong);
  EXPECT_TRUE(absl::IsResourceExhausted(more.status())) << more.status();
  EXPECT_THAT(std::string(more.status().message()), HasSubstr("peers_max=1"));
  Bytes into(2000);
  Outcome a, b;
  const auto all = MutableByteView(into);
  EXPECT_THAT(small->Receive(*peer, 1, all, kLong, a.Done()).status().ToString(),
              HasSubstr("transfer_bytes_max=1000"));
  const auto first = small->Receive(*peer, 1, all.first(10), kLong, a.Done());
  const auto same = small->Receive(*peer, 1, all.first(10), kLong, b.Done());
  ASSERT_TRUE(first.ok() && same.ok());
  EXPECT_TRUE(absl::IsAlreadyExists(b.Wait().status()));
  Outcome c, d;
  ASSERT_TRUE(small->Receive(*peer, 2, all.first(10), kLong, c.Done()).ok());
  EXPECT_THAT(small->Receive(*peer, 3, all.first(10), kLong, d.Done()).status().ToString(),
              HasSubstr("transfers_max=2"));
  small->Cancel(*first);
  EXPECT_TRUE(absl::IsCancelled(a.Wait().status()));
  EXPECT_TRUE(small->Receive(*peer, 3, all.first(10), kLong, d.Done()).ok());
  small->Disconnect(*peer);
  EXPECT_TRUE(absl::IsUnavailable(c.Wait().status()));
  EXPECT_TRUE(absl::IsUnavailable(d.Wait().status()));
  EXPECT_TRUE(Eventually(kLong, [&] { return small->transfers_count() == 0; }));
  Outcome unknown;
  ASSERT_TRUE(small->Receive(UcxPeerId{5}, 1, all.first(1), kLong, unknown.Done()).ok());
  EXPECT_TRUE(absl::IsNotFound(unknown.Wait().status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(small->Receive(*peer, 1, {}, kLong, unknown.Done()).status()));
}

TEST_F(UcxPortTest, ADeadOrSilentPortFailsInTime) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  socklen_t length = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  const std::string dead = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  const SteadyClock clock;
  absl::Time start = clock.Now();
  absl::Status status = client_->Connect(dead, absl::Seconds(5)).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_LT(clock.Now() - start, absl::Seconds(5));
  ASSERT_EQ(listen(fd, 8), 0);  // now it takes connections and says nothing
  start = clock.Now();
  status = client_->Connect(dead, absl::Milliseconds(300)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_LT(clock.Now() - start, absl::Seconds(2));
  close(fd);
  EXPECT_TRUE(absl::IsInvalidArgument(client_->Connect("nonsense", kLong).status()));
  ExpectMoves(*server_, *client_, 1, Pattern(100, 1));
}

TEST_F(UcxPortTest, RubbishOnTheListeningPortIsDropped) {
  for (int i = 0; i < 20; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server_->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const Bytes bytes = Pattern(200, static_cast<uint32_t>(i));
    EXPECT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), 200);
    close(fd);
  }
  ExpectMoves(*server_, *client_, 1, Pattern(100, 1));
}

TEST_F(UcxPortTest, TwoHundredConnectsLeaveNoFileDescriptors) {
  size_t before = 0;
  for (int i = 0; i < 200; ++i) {
    const auto peer = client_->Connect(AddressOf(*server_), kLong);
    ASSERT_TRUE(peer.ok()) << peer.status();
    client_->Disconnect(*peer);
    ASSERT_TRUE(Eventually(
        kLong, [&] { return client_->peers_count() == 1 && server_->peers_count() == 1; }));
    if (i == 20) before = OpenFileDescriptors();
  }
  EXPECT_LE(OpenFileDescriptors(), before + 4);
}

TEST_F(UcxPortTest, AServerThatIsGoneIsNoticedAndFoundAgain) {
  UcxPortOptions options;
  options.listen = AddressOf(*server_);
  Bytes into(1 << 20);
  Outcome pending;
  ASSERT_TRUE(client_->Receive(peer_, 1, into, kLong, pending.Done()).ok());
  server_.reset();
  // NotFound when the receive begins only after the loss was seen.
  const absl::Status lost = pending.Wait().status();
  EXPECT_TRUE(absl::IsUnavailable(lost) || absl::IsNotFound(lost)) << lost;
  EXPECT_TRUE(Eventually(kLong, [&] { return client_->peers_count() == 0; }));

  absl::StatusOr<std::unique_ptr<UcxPort>> again = absl::UnavailableError("");
  ASSERT_TRUE(Eventually(kLong, [&] {
    again = UcxPort::Create(options);
    return again.ok();
  })) << again.status();
  server_ = *std::move(again);
  const auto peer = client_->Connect(options.listen, kLong);
  ASSERT_TRUE(peer.ok()) << peer.status();
  peer_ = *peer;
  ExpectMoves(*server_, *client_, 1, Pattern(1 << 20, 1));
}

TEST_F(UcxPortTest, RegisteredMemoryWorksAsAnyOther) {
  Bytes arena = Pattern(8 << 20, 2);
  ASSERT_TRUE(server_->Register(arena).ok());
  Bytes into(2 << 20);
  Outcome received, sent;
  ASSERT_TRUE(client_->Receive(peer_, 1, into, kLong, received.Done()).ok());
  const auto block = ByteView(arena).subspan(2 << 20, 2 << 20);
  ASSERT_TRUE(server_->Send(peer_, 1, block, nullptr, kLong, sent.Done()).ok());
  ASSERT_TRUE(received.Wait().ok()) << received.Wait().status();
  EXPECT_TRUE(std::equal(block.begin(), block.end(), into.begin()));
  server_.reset();  // before its registered memory
}

// The process at the other end: this program, told by the environment where to
// connect. It connects, writes its peer id, sends kLargeBytes as tag 1 and says how that ended.
TEST(UcxChild, DISABLED_Run) {
  const std::string address = std::getenv("IBID_UCX_CHILD_ADDRESS");
  const std::string folder = std::getenv("IBID_UCX_CHILD_FOLDER");
  const auto port = MakePort({});
  const auto peer = port->Connect(address, kLong);
  ASSERT_TRUE(peer.ok()) << peer.status();
  const Bytes bytes = Pattern(kLargeBytes, 11);
  std::ofstream(folder + "/new") << static_cast<uint64_t>(*peer);
  Outcome sent;
  ASSERT_TRUE(port->Send(*peer, 1, bytes, nullptr, kLong, sent.Done()).ok());
  // Behind it on the same connection: who has this one has heard of the large one.
  Outcome marked;
  ASSERT_TRUE(port->Send(*peer, 4, ByteView(bytes).first(1), nullptr, kLong, marked.Done()).ok());
  std::filesystem::rename(folder + "/new", folder + "/peer");
  const absl::StatusOr<size_t> end = sent.Wait();
  std::ofstream(folder + "/end") << end.status();
  pause();
}

class UcxChildTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = Listening();
    setenv("IBID_UCX_CHILD_ADDRESS", AddressOf(*server_).c_str(), 1);
    setenv("IBID_UCX_CHILD_FOLDER", folder_.path().c_str(), 1);
    auto child = Process::Start({"/proc/self/exe", "--gtest_also_run_disabled_tests",
                                 "--gtest_filter=UcxChild.DISABLED_Run"},
                                folder_ / "log");
    ASSERT_TRUE(child.ok()) << child.status();
    child_.emplace(std::move(*child));
    uint64_t id = 0;
    ASSERT_TRUE(Eventually(kLong, [&] {
      return absl::SimpleAtoi(ReadWholeFile(folder_ / "peer"), &id);
    })) << ReadWholeFile(folder_ / "log");
    peer_ = UcxPeerId{id};
    Bytes mark(1);
    Outcome marked;
    ASSERT_TRUE(server_->Receive(peer_, 4, mark, kLong, marked.Done()).ok());
    ASSERT_TRUE(marked.Wait().ok()) << marked.Wait().status();
  }

  TempFolder folder_;
  std::unique_ptr<UcxPort> server_;
  std::optional<Process> child_;
  UcxPeerId peer_{};
};

TEST_F(UcxChildTest, WhatAStoppedSenderSendsLaterWritesNothing) {
  kill(child_->pid(), SIGSTOP);
  Bytes into(kLargeBytes, std::byte{7});
  Outcome received;
  const auto id = server_->Receive(peer_, 1, into, absl::Milliseconds(200), received.Done());
  ASSERT_TRUE(id.ok());
  const absl::Status end = received.Wait().status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(end)) << end;
  std::fill(into.begin(), into.end(), std::byte{7});
  kill(child_->pid(), SIGCONT);
  ASSERT_TRUE(Eventually(kLong, [&] { return !ReadWholeFile(folder_ / "end").empty(); }));
  EXPECT_THAT(ReadWholeFile(folder_ / "end"), HasSubstr("UNAVAILABLE"));
  EXPECT_EQ(into, Bytes(kLargeBytes, std::byte{7}));
}

TEST_F(UcxChildTest, AKilledPeerEndsAllItsTransfersAndNobodyElses) {
  const auto other = MakePort({});
  const auto other_peer = other->Connect(AddressOf(*server_), kLong);
  ASSERT_TRUE(other_peer.ok());
  kill(child_->pid(), SIGSTOP);
  const Bytes bytes = Pattern(kLargeBytes, 1);
  Bytes into(kLargeBytes), waiting(1000);
  Outcome active, unmatched, sending;
  ASSERT_TRUE(server_->Receive(peer_, 1, into, kLong, active.Done()).ok());
  ASSERT_TRUE(server_->Receive(peer_, 2, waiting, kLong, unmatched.Done()).ok());
  ASSERT_TRUE(server_->Send(peer_, 3, bytes, nullptr, kLong, sending.Done()).ok());
  child_->Kill9();
  for (Outcome* outcome : {&active, &unmatched, &sending}) {
    const absl::Status end = outcome->Wait(absl::Seconds(10)).status();
    EXPECT_TRUE(absl::IsUnavailable(end)) << end;
  }
  EXPECT_TRUE(Eventually(kLong, [&] { return server_->peers_count() == 1; }));
  Outcome sent, received;
  ASSERT_TRUE(other->Receive(*other_peer, 1, into, kLong, received.Done()).ok());
  ASSERT_TRUE(server_->Send(*other_peer, 1, bytes, nullptr, kLong, sent.Done()).ok());
  ASSERT_TRUE(received.Wait().ok());
  EXPECT_TRUE(into == bytes);
}

TEST_F(UcxChildTest, AKilledPeerWhoseMessageNobodyTookIsForgotten) {
  child_->Kill9();
  EXPECT_TRUE(Eventually(kLong, [&] { return server_->peers_count() == 0; }));
}

}  // namespace
}  // namespace ibid
