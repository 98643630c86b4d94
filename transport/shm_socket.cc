#include "transport/shm_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace ibid {
namespace {

constexpr size_t kFdsMax = 4;
constexpr int kBacklog = 64;

struct SocketAddress {
  sockaddr_un address{};
  socklen_t bytes = 0;
};

absl::StatusOr<SocketAddress> AddressOf(const std::string& name) {
  SocketAddress result;
  result.address.sun_family = AF_UNIX;
  if (name.empty() || name.size() >= sizeof(result.address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("shared memory: a socket's name has 1 to ",
                                                   sizeof(result.address.sun_path) - 1,
                                                   " bytes, not ", name.size()));
  }
  std::memcpy(result.address.sun_path, name.data(), name.size());
  if (name[0] == '@') result.address.sun_path[0] = '\0';
  result.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  return result;
}

absl::Status SocketError(absl::string_view call, const std::string& name) {
  return absl::UnavailableError(
      absl::StrCat("shared memory: ", call, " ", name, ": ", std::strerror(errno)));
}

absl::StatusOr<OwnedFd> MakeSocket(const std::string& name) {
  OwnedFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.is_open()) return SocketError("socket for", name);
  return fd;
}

const sockaddr* Generic(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr*>(&address.address);
}

}  // namespace

OwnedFd& OwnedFd::operator=(OwnedFd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

OwnedFd::~OwnedFd() {
  if (fd_ >= 0) close(fd_);
}

int OwnedFd::Release() { return std::exchange(fd_, -1); }

absl::StatusOr<OwnedFd> ListenOnShmSocket(const std::string& name) {
  IBID_ASSIGN_OR_RETURN(const SocketAddress address, AddressOf(name));
  IBID_ASSIGN_OR_RETURN(OwnedFd fd, MakeSocket(name));
  // A file that a killed server left is nobody's if nobody answers there.
  if (name[0] != '@' && absl::IsUnavailable(ConnectToShmSocket(name).status())) {
    unlink(name.c_str());
  }
  if (bind(fd.get(), Generic(address), address.bytes) != 0) return SocketError("bind of", name);
  if (listen(fd.get(), kBacklog) != 0) return SocketError("listen on", name);
  return fd;
}

absl::StatusOr<OwnedFd> ConnectToShmSocket(const std::string& name) {
  IBID_ASSIGN_OR_RETURN(const SocketAddress address, AddressOf(name));
  IBID_ASSIGN_OR_RETURN(OwnedFd fd, MakeSocket(name));
  if (connect(fd.get(), Generic(address), address.bytes) != 0) {
    return SocketError("connect to", name);
  }
  return fd;
}

absl::Status SendShmMessage(int socket, absl::string_view message, std::span<const int> fds) {
  IBID_CHECK(fds.size() <= kFdsMax) << fds.size();
  iovec piece{const_cast<char*>(message.data()), message.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kFdsMax * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
  }
  const ssize_t sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == static_cast<ssize_t>(message.size())) return absl::OkStatus();
  return SocketError("send", "of a message");
}

absl::StatusOr<ShmMessage> ReceiveShmMessage(int socket, std::span<char> message) {
  iovec piece{message.data(), message.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kFdsMax * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  const ssize_t received = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (received < 0) {
    if (errno == EAGAIN || errno == EINTR) return absl::DeadlineExceededError("no message yet");
    return SocketError("receive", "of a message");
  }
  ShmMessage result;
  result.bytes = static_cast<size_t>(received);
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      result.fds.emplace_back(fd);
    }
  }
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return absl::InvalidArgumentError("shared memory: a message is longer than any of its kind");
  }
  return result;
}

}  // namespace ibid
