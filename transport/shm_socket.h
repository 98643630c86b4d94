// How two processes on one host agree to share memory: one message each way over a Unix socket
// (SOCK_SEQPACKET), with file descriptors. Private to transport/.
//
//   client -> server: ShmHello   and the memfd of its staging memory
//   server -> client: ShmWelcome and, unless it refuses, memfds of the arena and its generations
//
// Then the connection stays as it is: its end tells the server that the client is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ibid {

// Changes when one of the messages does: both ends then fall back to gRPC.
inline constexpr uint64_t kShmMagic = 0x31'00'6d'68'73'64'62'69;  // "ibdshm\0" "1"

inline constexpr size_t kShmTextBytes = 200;

struct ShmHello {
  uint64_t magic = kShmMagic;
  uint64_t session_id = 0;
  uint64_t staging_bytes = 0;
};

struct ShmWelcome {
  uint64_t magic = kShmMagic;
  uint64_t incarnation = 0;
  uint64_t arena_bytes = 0;
  char refusal[kShmTextBytes] = {};  // empty: welcome
};

// A file descriptor that is closed with its owner. Move-only.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(other.Release()) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept;
  ~OwnedFd();

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  int Release();

 private:
  int fd_ = -1;
};

// A socket's name in the file system, or with a '@' in front in the abstract name space, which
// lives as long as its server and is that of the network namespace. Errors: InvalidArgument (longer
// than the system takes), Unavailable (text: what the system said).
absl::StatusOr<OwnedFd> ListenOnShmSocket(const std::string& name);
absl::StatusOr<OwnedFd> ConnectToShmSocket(const std::string& name);

// Neither waits. Errors: Unavailable.
absl::Status SendShmMessage(int socket, absl::string_view message, std::span<const int> fds);

struct ShmMessage {
  size_t bytes = 0;  // 0: the other end has closed
  std::vector<OwnedFd> fds;
};
// Takes the next message into `message`. Errors: Unavailable (the connection failed),
// DeadlineExceeded (there is none now), InvalidArgument (longer than `message`, or more than four
// descriptors: those are closed).
absl::StatusOr<ShmMessage> ReceiveShmMessage(int socket, std::span<char> message);

}  // namespace ibid
