#include "transport/shm_listener.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/check.h"
#include "core/limit.h"
#include "core/log.h"

namespace ibid {
namespace {

constexpr int64_t kLogPeriodSeconds = 10;
// From a client's connection to its hello.
constexpr absl::Duration kHelloTimeout = absl::Seconds(5);

ShmWelcome RefusalOf(uint64_t incarnation, const absl::Status& why) {
  ShmWelcome welcome;
  welcome.incarnation = incarnation;
  const absl::string_view text = why.message();
  std::memcpy(welcome.refusal, text.data(), std::min(text.size(), kShmTextBytes - 1));
  return welcome;
}

absl::string_view BytesOf(const ShmWelcome& welcome) {
  return {reinterpret_cast<const char*>(&welcome), sizeof(welcome)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShmListener>> ShmListener::Start(ShmListenerOptions options) {
  IBID_ASSIGN_OR_RETURN(const int arena, options.arena->OpenReadOnly());
  OwnedFd arena_fd(arena);
  IBID_ASSIGN_OR_RETURN(const int generations, options.generations->OpenReadOnly());
  OwnedFd generations_fd(generations);
  OwnedFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.is_open()) {
    return absl::UnavailableError(absl::StrCat("shared memory: eventfd: ", std::strerror(errno)));
  }
  IBID_ASSIGN_OR_RETURN(OwnedFd listening, ListenOnShmSocket(options.socket));
  return std::unique_ptr<ShmListener>(new ShmListener(std::move(options), std::move(listening),
                                                      std::move(wake), std::move(arena_fd),
                                                      std::move(generations_fd)));
}

ShmListener::ShmListener(ShmListenerOptions options, OwnedFd listening, OwnedFd wake, OwnedFd arena,
                         OwnedFd generations)
    : options_(std::move(options)),
      listening_(std::move(listening)),
      wake_(std::move(wake)),
      arena_(std::move(arena)),
      generations_(std::move(generations)),
      thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), "ibid-shm");
}

ShmListener::~ShmListener() {
  is_stopping_.store(true);
  const uint64_t one = 1;
  IBID_CHECK(write(wake_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.join();
  if (options_.socket[0] != '@') unlink(options_.socket.c_str());
}

std::shared_ptr<const HostMemory> ShmListener::StagingOf(uint64_t session_id) const {
  MutexLock lock(mutex_);
  const auto found = stagings_.find(session_id);
  return found == stagings_.end() ? nullptr : found->second;
}

size_t ShmListener::clients_count() const {
  MutexLock lock(mutex_);
  return stagings_.size();
}

void ShmListener::Run() {
  std::vector<pollfd> waited;
  while (true) {
    waited = {{wake_.get(), POLLIN, 0}, {listening_.get(), POLLIN, 0}};
    bool is_hello_due = false;
    for (const Peer& peer : peers_) {
      waited.push_back({peer.socket.get(), POLLIN, 0});
      is_hello_due |= peer.session_id == 0;
    }
    const int timeout_ms =
        is_hello_due ? static_cast<int>(absl::ToInt64Milliseconds(kHelloTimeout)) : -1;
    (void)poll(waited.data(), waited.size(), timeout_ms);
    if (is_stopping_.load()) return;
    const absl::Time now = absl::Now();
    size_t kept = 0;
    for (size_t i = 0; i < peers_.size(); ++i) {
      Peer& peer = peers_[i];
      const bool is_late = peer.session_id == 0 && now >= peer.hello_until;
      if ((waited[i + 2].revents != 0 && !Serve(peer)) || is_late) {
        Forget(peer);
        continue;
      }
      if (kept != i) peers_[kept] = std::move(peer);
      ++kept;
    }
    peers_.resize(kept);
    if (waited[1].revents != 0) Accept();
  }
}

void ShmListener::Accept() {
  OwnedFd socket(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.is_open()) {
    if (errno == EAGAIN || errno == EINTR) return;
    IBID_LOG_EVERY(kLogPeriodSeconds, warn, "shared memory: accept: {}", std::strerror(errno));
    // Out of descriptors: the connection stays queued and poll would return at once, for ever.
    pollfd wake{wake_.get(), POLLIN, 0};
    (void)poll(&wake, 1, /*timeout=*/100);
    return;
  }
  if (peers_.size() >= kShmClientsMax) {
    const absl::Status full =
        LimitReached("shared memory: too many clients", "kShmClientsMax", kShmClientsMax);
    const ShmWelcome refusal = RefusalOf(options_.incarnation, full);
    (void)SendShmMessage(socket.get(), BytesOf(refusal), {});
    return;
  }
  peers_.push_back(Peer{std::move(socket), 0, absl::Now() + kHelloTimeout});
}

bool ShmListener::Serve(Peer& peer) {
  ShmHello hello;
  absl::StatusOr<ShmMessage> message = ReceiveShmMessage(
      peer.socket.get(), std::span<char>(reinterpret_cast<char*>(&hello), sizeof(hello)));
  if (absl::IsDeadlineExceeded(message.status())) return true;
  if (!message.ok() || message->bytes == 0 || peer.session_id != 0) return false;
  absl::Status status = absl::InvalidArgumentError("shared memory: not a hello of this version");
  if (message->bytes == sizeof(hello) && hello.magic == kShmMagic && hello.session_id != 0) {
    status = Welcome(peer, hello, *std::move(message));
  }
  if (status.ok()) return true;
  IBID_LOG_EVERY(kLogPeriodSeconds, warn, "{}", status.message());
  const ShmWelcome refusal = RefusalOf(options_.incarnation, status);
  (void)SendShmMessage(peer.socket.get(), BytesOf(refusal), {});
  return false;
}

absl::Status ShmListener::CheckUser(const Peer& peer) const {
  ucred credentials{};
  socklen_t bytes = sizeof(credentials);
  if (getsockopt(peer.socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
    return absl::UnavailableError(
        absl::StrCat("shared memory: credentials: ", std::strerror(errno)));
  }
  if (std::find(options_.uids.begin(), options_.uids.end(), credentials.uid) !=
      options_.uids.end()) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat("shared memory: user ", credentials.uid,
                   " may not map the arena; allow it with the server's --shm_uids"));
}

absl::Status ShmListener::Welcome(Peer& peer, const ShmHello& hello, ShmMessage message) {
  IBID_RETURN_IF_ERROR(CheckUser(peer));
  if (message.fds.size() != 1) {
    return absl::InvalidArgumentError("shared memory: a hello carries one descriptor");
  }
  if (hello.staging_bytes > kShmStagingBytesMax) {
    return LimitReached(
        absl::StrCat("shared memory: ", hello.staging_bytes, " bytes of staging memory"),
        "kShmStagingBytesMax", kShmStagingBytesMax);
  }
  IBID_ASSIGN_OR_RETURN(HostMemory mapped,
                        HostMemory::MapOfPeer(message.fds.front().Release(), hello.staging_bytes));
  auto staging = std::make_shared<const HostMemory>(std::move(mapped));
  {
    MutexLock lock(mutex_);
    if (!stagings_.emplace(hello.session_id, std::move(staging)).second) {
      return absl::AlreadyExistsError("shared memory: another client has named this session");
    }
  }
  peer.session_id = hello.session_id;
  ShmWelcome welcome;
  welcome.incarnation = options_.incarnation;
  welcome.arena_bytes = options_.arena->size();
  const int fds[] = {arena_.get(), generations_.get()};
  return SendShmMessage(peer.socket.get(), BytesOf(welcome), fds);
}

void ShmListener::Forget(const Peer& peer) {
  std::shared_ptr<const HostMemory> staging;  // unmapped after the lock is released
  MutexLock lock(mutex_);
  if (peer.session_id == 0) return;
  const auto found = stagings_.find(peer.session_id);
  if (found == stagings_.end()) return;
  staging = std::move(found->second);
  stagings_.erase(found);
}

}  // namespace ibid
