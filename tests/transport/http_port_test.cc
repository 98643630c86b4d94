#include "transport/http_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/harness/http.h"

namespace ibid {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

HttpPort::Handlers Handlers() {
  return {{"/healthz",
           [] {
             return HttpReply{200, "ok\n"};
           }},
          {"/stopping", [] {
             return HttpReply{503, "stopping\n"};
           }}};
}

int ConnectLoopback(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

// 44: nothing but reading, of nothing but its paths.
TEST(HttpPort, AnswersGetOfItsPathsAndNothingElse) {
  const auto http = HttpPort::Start("127.0.0.1:0", Handlers());
  ASSERT_TRUE(http.ok()) << http.status();
  const int port = (*http)->port();
  ASSERT_GT(port, 0);
  EXPECT_THAT(HttpGet(port, "/healthz"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(HttpGet(port, "/healthz"), HasSubstr("\r\n\r\nok\n"));
  EXPECT_THAT(HttpGet(port, "/stopping"), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(HttpGet(port, "/"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(HttpGet(port, "/healthz/x"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(HttpGet(port, "/../../etc/passwd"), Not(HasSubstr("root:")));
  EXPECT_THAT(
      HttpExchange(
          port,
          "POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
      StartsWith("HTTP/1.1 405"));
}

// Clients that say half of a request and no more: a health check does not wait for their end.
TEST(HttpPort, AFewSilentClientsDoNotKeepOthersWaiting) {
  const auto http = HttpPort::Start("127.0.0.1:0", Handlers());
  ASSERT_TRUE(http.ok()) << http.status();
  std::vector<int> silent;
  for (int i = 0; i < 8; ++i) {
    silent.push_back(ConnectLoopback((*http)->port()));
    ASSERT_EQ(send(silent.back(), "GET /hea", 8, MSG_NOSIGNAL), 8);
  }
  EXPECT_THAT(HttpGet((*http)->port(), "/healthz"), StartsWith("HTTP/1.1 200"));
  for (const int fd : silent) {
    char byte = 0;
    EXPECT_EQ(recv(fd, &byte, 1, MSG_DONTWAIT), -1) << "answered while this one was still heard";
    EXPECT_EQ(errno, EAGAIN);
    close(fd);
  }
}

TEST(HttpPort, IsClosedWhenItDies) {
  auto http = HttpPort::Start("127.0.0.1:0", Handlers());
  ASSERT_TRUE(http.ok()) << http.status();
  const int port = (*http)->port();
  http->reset();
  EXPECT_EQ(HttpGet(port, "/healthz"), "");
}

TEST(HttpPort, ATakenOrMalformedAddressIsNamed) {
  const auto http = HttpPort::Start("127.0.0.1:0", Handlers());
  ASSERT_TRUE(http.ok()) << http.status();
  const std::string taken = absl::StrCat("127.0.0.1:", (*http)->port());
  const absl::Status unavailable = HttpPort::Start(taken, Handlers()).status();
  EXPECT_TRUE(absl::IsUnavailable(unavailable)) << unavailable;
  EXPECT_THAT(std::string(unavailable.message()), HasSubstr(taken));
  for (const std::string wrong : {"8080", "127.0.0.1:1,127.0.0.1:2", "127.0.0.1:443s"}) {
    const absl::Status invalid = HttpPort::Start(wrong, Handlers()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(invalid)) << invalid;
    EXPECT_THAT(std::string(invalid.message()), HasSubstr("--http_listen=" + wrong));
  }
}

}  // namespace
}  // namespace ibid
