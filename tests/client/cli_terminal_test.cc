// The program `ibid` on a terminal: what is drawn over what was there.
#include <poll.h>
#include <pty.h>
#include <termios.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "tests/client/cluster.h"
#include "tests/harness/process.h"

namespace ibid {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

class CliTerminalTest : public testing::Test {
 protected:
  CliTerminalTest() : cluster_(1), client_(cluster_.Connect()) {
    const NamespaceHandle ns = *client_->OpenNamespace(TestSpec());
    PublishChain(client_.get(), ns, TestChain(ns.id, 4));
    IBID_CHECK(openpty(&master_, &slave_, nullptr, nullptr, nullptr) == 0);
    termios mode;
    tcgetattr(slave_, &mode);
    cfmakeraw(&mode);  // the bytes as they were written
    tcsetattr(slave_, TCSANOW, &mode);
  }
  ~CliTerminalTest() override {
    close(slave_);
    close(master_);
  }

  // What the program writes to its terminal until it ends.
  std::string Ibid(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), IBID_BIN_DIR "/ibid");
    arguments.push_back("--servers=" + cluster_.proxy(0).address());
    absl::StatusOr<Process> process = Process::Start(arguments, ttyname(slave_));
    IBID_CHECK(process.ok()) << process.status().ToString();
    std::string out;
    const absl::Time until = absl::Now() + absl::Seconds(30);
    bool is_running = true;
    do {
      EXPECT_LT(absl::Now(), until);
      is_running = process->is_running() && absl::Now() < until;
      pollfd ready = {master_, POLLIN, 0};
      while (poll(&ready, 1, is_running ? 20 : 0) > 0 && (ready.revents & POLLIN) != 0) {
        char bytes[4096];
        const ssize_t count = read(master_, bytes, sizeof(bytes));
        if (count <= 0) break;
        out.append(bytes, static_cast<size_t>(count));
      }
    } while (is_running);
    EXPECT_EQ(process->Wait(absl::Seconds(10)), 0) << out;
    return out;
  }

  Cluster cluster_;
  std::unique_ptr<Client> client_;
  int master_ = -1, slave_ = -1;
};

TEST_F(CliTerminalTest, VerifyDrawsItsBarOverTheOneBefore) {
  const std::string out = Ibid({"verify"});
  EXPECT_THAT(out, StartsWith("\r\x1b[Kserver "));
  EXPECT_THAT(out, EndsWith(" 0 bad\n"));
  EXPECT_THAT(out.substr(out.rfind('\r')),
              HasSubstr("[########################] 100.0%, 4 of 4 copies"));
  EXPECT_EQ(Count(out, "\n"), 1u) << out;
}

TEST_F(CliTerminalTest, TopDrawsEachPictureOverTheOneBefore) {
  const std::string out = Ibid({"top", "--count=2"});
  EXPECT_THAT(out, StartsWith("\x1b[2J\x1b[Hserver "));
  EXPECT_THAT(out, EndsWith("\x1b[K\n\x1b[J"));
  EXPECT_EQ(Count(out, "\x1b[2J"), 1u) << "cleared once: no flicker";
  EXPECT_EQ(Count(out, "\x1b[H"), 2u);
  EXPECT_EQ(Count(out, "\x1b[J"), 2u) << "what a longer picture left goes";
  EXPECT_EQ(Count(out, "\n"), Count(out, "\x1b[K\n")) << "and the ends of longer lines";
  EXPECT_THAT(Ibid({"top", "--count=1", "--json"}), Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace ibid
