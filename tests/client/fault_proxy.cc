#include "tests/client/fault_proxy.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/check.h"

namespace ibid {
namespace {

constexpr size_t kHeldBytesMax = 256 << 10;  // a direction

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

void SetNonBlocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

}  // namespace

FaultProxy::FaultProxy(int target_port) : target_port_(target_port) {
  listen_fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  IBID_CHECK(bind(listen_fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  IBID_CHECK(listen(listen_fd_, 64) == 0);
  socklen_t size = sizeof address;
  getsockname(listen_fd_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  SetNonBlocking(listen_fd_);
  thread_ = std::thread([this] { Run(); });
}

FaultProxy::~FaultProxy() {
  is_stopping_ = true;
  thread_.join();
  ResetAll();
  close(listen_fd_);
}

void FaultProxy::Run() {
  while (!is_stopping_) {
    if (const uint64_t cuts = cuts_requested_; cuts != cuts_done_) {
      cuts_done_ = cuts;
      ResetAll();
    }
    const bool is_stalled = is_stalled_;
    std::vector<pollfd> polled = {{listen_fd_, POLLIN, 0}};
    for (const Connection& c : connections_) {
      for (const Pipe* pipe : {&c.up, &c.down}) {
        if (is_stalled || pipe->to < 0) continue;
        if (pipe->held.size() < kHeldBytesMax) polled.push_back({pipe->from, POLLIN, 0});
        if (!pipe->held.empty()) polled.push_back({pipe->to, POLLOUT, 0});
      }
    }
    // The short limit is how the switches above are noticed.
    poll(polled.data(), polled.size(), 5);
    Accept();
    if (is_stalled_) continue;
    for (Connection& c : connections_) {
      Move(&c, &c.up);
      Move(&c, &c.down);
    }
    std::erase_if(connections_, [](const Connection& c) {
      if (c.is_broken) Close(c);
      return c.is_broken;
    });
  }
}

void FaultProxy::Accept() {
  while (true) {
    const int client = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client < 0) return;
    connections_count_++;
    const int target = target_port_;
    int server = -1;
    if (!is_refusing_ && target != 0) {
      server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in address = Loopback(target);
      if (connect(server, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
        close(server);
        server = -1;
      }
    }
    if (is_refusing_ || (target != 0 && server < 0)) {
      close(client);
      continue;
    }
    const int on = 1;
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (server >= 0) {
      setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      SetNonBlocking(server);
    }
    Connection connection;
    connection.up = {client, server, "", false};
    connection.down = {server, client, "", true};
    connections_.push_back(std::move(connection));
  }
}

void FaultProxy::Move(Connection* connection, Pipe* pipe) {
  if (connection->is_broken || pipe->to < 0 || pipe->from < 0) return;
  if (pipe->is_from_server && are_answers_stalled_) return;
  char buffer[64 << 10];
  // Behind a cut nothing is read, though what is before it may still have to be sent.
  const bool is_cut = pipe->is_from_server && connection->is_ending;
  while (!is_cut && pipe->held.size() < kHeldBytesMax) {
    const ssize_t count = recv(pipe->from, buffer, sizeof buffer, 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (count <= 0) {
      connection->is_broken = pipe->held.empty() || count < 0;
      break;
    }
    size_t kept = static_cast<size_t>(count);
    if (pipe->is_from_server) {
      kept = CountUntilCut(kept);
      connection->is_ending = kept < static_cast<size_t>(count);  // the rest is lost
      Flip(buffer, kept);
    }
    pipe->held.append(buffer, kept);
    if (connection->is_ending) break;
  }
  while (!pipe->held.empty()) {
    const ssize_t count = send(pipe->to, pipe->held.data(), pipe->held.size(), MSG_NOSIGNAL);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count < 0) {
      connection->is_broken = true;
      return;
    }
    pipe->held.erase(0, static_cast<size_t>(count));
  }
  if (pipe->is_from_server && connection->is_ending) {
    // Closing would reset the connection if the client has sent something, and a reset takes what
    // the client has not read yet.
    shutdown(pipe->to, SHUT_WR);
    pipe->from = -1;
  }
}

// How many of the next `count` bytes from a server go on.
size_t FaultProxy::CountUntilCut(size_t count) {
  const uint64_t left = cut_after_;
  const size_t kept = left == 0 ? count : std::min<uint64_t>(count, left);
  if (left > 0) cut_after_ = left - kept;
  bytes_from_server_ += kept;
  return kept;
}

void FaultProxy::Flip(char* bytes, size_t count) {
  size_t at = 0;
  uint64_t left = flip_after_;
  while (left > 0) {
    if (left > count - at) {
      left -= count - at;
      break;
    }
    at += left;
    bytes[at - 1] ^= 1;
    left = flip_every_;
  }
  flip_after_ = left;
}

void FaultProxy::ResetAll() {
  const linger now = {1, 0};
  for (const Connection& c : connections_) {
    for (int fd : {c.up.from, c.up.to}) {
      if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    }
    Close(c);
  }
  connections_.clear();
}

void FaultProxy::Close(const Connection& connection) {
  for (int fd : {connection.up.from, connection.up.to}) {
    if (fd >= 0) close(fd);
  }
}

}  // namespace ibid
