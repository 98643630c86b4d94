#include "transport/http_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
