// Redis and memcached over their text protocols on a plain TCP socket. Values are sent from and
// received into the caller's memory by the kernel, with nothing copied in between. That spares the
// copy that general clients make (hiredis gives each reply a buffer of its own).
//
//   socket ──> [ rest of the value ][ look-ahead: its trailer, the next reply's first line ]
//               the caller's block    a small buffer
//
// One readv fills both, so a reply costs no call beyond those that its value needs.

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "bench/compare/compared_store.h"

namespace ibid {
namespace {

constexpr int kTimeoutSeconds = 30;  // of one send or receive
constexpr size_t kLookAheadBytes = 4096;
// What is asked for ahead of the reply that is awaited. Measured: with one request both sides wait
// for each other; Redis buffers its replies, and gets slower when they leave the caches.
constexpr uint64_t kWindowBytes = 1 << 20;
constexpr uint64_t kWindowRequestsMin = 2;

// One TCP connection that reads lines and values.
class TextConnection {
 public:
  static absl::StatusOr<std::unique_ptr<TextConnection>> Connect(const std::string& address);
  ~TextConnection() { close(fd_); }
  TextConnection(const TextConnection&) = delete;
  TextConnection& operator=(const TextConnection&) = delete;

  absl::Status Send(std::array<iovec, 3> parts) {
    size_t first = 0;
    while (first < parts.size()) {
      msghdr message = {};
      message.msg_iov = &parts[first];
      message.msg_iovlen = parts.size() - first;
      ssize_t sent = sendmsg(fd_, &message, MSG_NOSIGNAL);
      if (sent < 0) return Failure("send");
      while (first < parts.size() && static_cast<size_t>(sent) >= parts[first].iov_len) {
        sent -= parts[first++].iov_len;
      }
      if (first == parts.size()) break;
      parts[first].iov_base = static_cast<char*>(parts[first].iov_base) + sent;
      parts[first].iov_len -= sent;
    }
    return absl::OkStatus();
  }
  absl::Status Send(const std::string& text) {
    return Send({iovec{const_cast<char*>(text.data()), text.size()}, iovec{}, iovec{}});
  }

  // Up to the next CR LF, which is taken and not returned.
  absl::StatusOr<std::string> ReadLine() {
    while (true) {
      const auto end = std::search(ahead_.begin() + ahead_from_, ahead_.begin() + ahead_to_,
                                   kLineEnd.begin(), kLineEnd.end());
      if (end != ahead_.begin() + ahead_to_) {
        std::string line(ahead_.begin() + ahead_from_, end);
        ahead_from_ += line.size() + kLineEnd.size();
        return line;
      }
      std::copy(ahead_.begin() + ahead_from_, ahead_.begin() + ahead_to_, ahead_.begin());
      ahead_to_ -= ahead_from_;
      ahead_from_ = 0;
      if (ahead_to_ == ahead_.size()) return absl::InternalError("a line without an end");
      if (absl::Status status = Receive({}); !status.ok()) return status;
    }
  }

  absl::Status ReadValue(MutableByteView into) {
    const size_t ready = std::min(into.size(), ahead_to_ - ahead_from_);
    std::memcpy(into.data(), ahead_.data() + ahead_from_, ready);
    ahead_from_ += ready;
    received_ = ready;
    if (ahead_from_ == ahead_to_) ahead_from_ = ahead_to_ = 0;
    while (received_ < into.size()) {
      if (absl::Status status = Receive(into.subspan(received_)); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  explicit TextConnection(int fd) : fd_(fd) {}

  static absl::Status Failure(const char* what) {
    return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
  }

  // Waits for something; what exceeds `value` goes to the look-ahead.
  absl::Status Receive(MutableByteView value) {
    iovec parts[] = {{value.data(), value.size()},
                     {ahead_.data() + ahead_to_, ahead_.size() - ahead_to_}};
    const ssize_t got = readv(fd_, parts, 2);
    if (got == 0) return absl::UnavailableError("the server closed the connection");
    if (got < 0) return Failure("receive");
    const size_t of_value = std::min<size_t>(got, value.size());
    received_ += of_value;
    ahead_to_ += got - of_value;
    return absl::OkStatus();
  }

  static constexpr std::array<char, 2> kLineEnd = {'\r', '\n'};
  int fd_;
  std::array<char, kLookAheadBytes> ahead_;
  size_t ahead_from_ = 0, ahead_to_ = 0;
  size_t received_ = 0;  // of the value that is being read
};

absl::StatusOr<std::unique_ptr<TextConnection>> TextConnection::Connect(
    const std::string& address) {
  const std::vector<std::string> host_port = absl::StrSplit(address, ':');
  if (host_port.size() != 2) return absl::InvalidArgumentError(absl::StrCat("address ", address));
  addrinfo hints = {}, *found = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host_port[0].c_str(), host_port[1].c_str(), &hints, &found) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("address ", address));
  }
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int connected = connect(fd, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  std::unique_ptr<TextConnection> connection(new TextConnection(fd));
  if (connected != 0) return Failure("connect");
  const int one = 1;
  const timeval timeout = {kTimeoutSeconds, 0};
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
  return connection;
}

// What the two protocols do differently.
struct TextProtocol {
  std::string (*store_head)(const std::string& key, uint64_t bytes);
  std::string stored;  // the reply to a store
  std::string (*fetch_request)(const std::string& key);
  char value_mark;             // begins the line before a value; its last word is the size
  uint32_t lines_after_value;  // of a fetched value
  std::string (*drop_request)(const std::string& key);
};

std::string RedisCommand(std::initializer_list<std::string> words) {
  std::string text = absl::StrCat("*", words.size(), "\r\n");
  for (const std::string& word : words) {
    absl::StrAppend(&text, "$", word.size(), "\r\n", word, "\r\n");
  }
  return text;
}

const TextProtocol kRedis = {
    [](const std::string& key, uint64_t bytes) {
      return absl::StrCat("*3\r\n$3\r\nSET\r\n$", key.size(), "\r\n", key, "\r\n$", bytes, "\r\n");
    },
    "+OK",
    [](const std::string& key) {
      return RedisCommand({"GET", key});
    },
    '$',
    1,
    [](const std::string& key) {
      return RedisCommand({"DEL", key});
    },
};
const TextProtocol kMemcached = {
    [](const std::string& key, uint64_t bytes) {
      return absl::StrCat("set ", key, " 0 0 ", bytes, "\r\n");
    },
    "STORED",
    [](const std::string& key) { return absl::StrCat("get ", key, "\r\n"); },
    'V',
    2,
    [](const std::string& key) { return absl::StrCat("delete ", key, "\r\n"); },
};

class TextStore : public ComparedStore {
 public:
  TextStore(const TextProtocol& protocol, std::unique_ptr<TextConnection> connection)
      : protocol_(protocol), connection_(std::move(connection)) {}

  absl::Status Prepare(const PrefixShape& shape) override {
    keys_.clear();
    window_ = std::max(kWindowRequestsMin, kWindowBytes / shape.block_bytes);
    for (uint32_t i = 0; i < shape.blocks_count; ++i) {
      keys_.push_back(absl::StrCat("compare:", shape.block_bytes, ":", shape.seed, ":", i));
    }
    return absl::OkStatus();
  }

  absl::Status Publish(std::span<const ByteView> blocks) override {
    char line_end[] = {'\r', '\n'};
    return Pipelined(
        blocks.size(),
        [&](size_t i) {
          std::string head = protocol_.store_head(keys_[i], blocks[i].size());
          return connection_->Send(
              {iovec{head.data(), head.size()},
               iovec{const_cast<std::byte*>(blocks[i].data()), blocks[i].size()},
               iovec{line_end, sizeof line_end}});
        },
        [&](size_t) { return ExpectLine(protocol_.stored); });
  }

  absl::Status Fetch(uint32_t first, std::span<const MutableByteView> into) override {
    return Pipelined(
        into.size(),
        [&](size_t i) { return connection_->Send(protocol_.fetch_request(keys_[first + i])); },
        [&](size_t i) { return ReadReply(into[i]); });
  }

  absl::Status Drop() override {
    return Pipelined(
        keys_.size(), [&](size_t i) { return connection_->Send(protocol_.drop_request(keys_[i])); },
        [&](size_t) { return connection_->ReadLine().status(); });
  }

 private:
  // Keeps at most window_ requests on their way; replies come in order.
  template <typename SendOne, typename TakeOne>
  absl::Status Pipelined(size_t count, const SendOne& send, const TakeOne& take) {
    size_t sent = 0;
    for (size_t taken = 0; taken < count; ++taken) {
      for (; sent < count && sent < taken + window_; ++sent) {
        if (absl::Status status = send(sent); !status.ok()) return status;
      }
      if (absl::Status status = take(taken); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status ExpectLine(const std::string& expected) {
    const absl::StatusOr<std::string> line = connection_->ReadLine();
    if (!line.ok()) return line.status();
    if (*line == expected) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("'", *line, "' instead of '", expected, "'"));
  }

  absl::Status ReadReply(MutableByteView into) {
    const absl::StatusOr<std::string> head = connection_->ReadLine();
    if (!head.ok()) return head.status();
    const size_t size_from = head->find_last_of(" $") + 1;
    uint64_t bytes = 0;
    if (head->empty() || head->front() != protocol_.value_mark ||
        !absl::SimpleAtoi(head->substr(size_from), &bytes) || bytes != into.size()) {
      return absl::NotFoundError(absl::StrCat("'", *head, "' instead of a value"));
    }
    if (absl::Status status = connection_->ReadValue(into); !status.ok()) return status;
    for (uint32_t i = 0; i < protocol_.lines_after_value; ++i) {
      if (auto line = connection_->ReadLine(); !line.ok()) return line.status();
    }
    return absl::OkStatus();
  }

  const TextProtocol& protocol_;
  uint64_t window_ = kWindowRequestsMin;  // requests on their way at a time
  std::unique_ptr<TextConnection> connection_;
  std::vector<std::string> keys_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ComparedStore>> ConnectText(const ComparedStoreOptions& options) {
  auto connection = TextConnection::Connect(options.address);
  if (!connection.ok()) return connection.status();
  return std::make_unique<TextStore>(options.system == "redis" ? kRedis : kMemcached,
                                     *std::move(connection));
}

}  // namespace ibid
