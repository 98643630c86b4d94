// The program ibid-server: its command line, its files, its signals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "cache_server/server_options.h"
#include "core/clock.h"
#include "tests/cache_server/service/server_fixture.h"
#include "tests/harness/http.h"
#include "tests/harness/process.h"
#include "transport/cache_channel.h"

namespace ibid {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kServer = std::string(IBID_BIN_DIR) + "/ibid-server";

RunResult RunServer(const std::vector<std::string>& flags) {
  std::vector<std::string> arguments = {kServer};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  auto result = Run(arguments, absl::Seconds(30));
  EXPECT_TRUE(result.ok()) << result.status();
  return result.value_or(RunResult{});
}

TEST(ByteCountTest, ReadsNumbersWithBinarySuffixes) {
  const auto parse = [](const std::string& text) {
    ByteCount value;
    std::string error;
    return AbslParseFlag(text, &value, &error) ? static_cast<int64_t>(value.bytes) : -1;
  };
  EXPECT_EQ(parse("4096"), 4096);
  EXPECT_EQ(parse("64KiB"), 64 << 10);
  EXPECT_EQ(parse("4GiB"), int64_t{4} << 30);
  EXPECT_EQ(parse("2TiB"), int64_t{2} << 40);
  for (const char* wrong :
       {"", "GiB", "4G", "-1", "1.5GiB", "4 GiB", "99999999999999999999", "99999999TiB"}) {
    EXPECT_EQ(parse(wrong), -1) << wrong;
  }
  EXPECT_EQ(AbslUnparseFlag(ByteCount{uint64_t{3} << 29}), "1536MiB");
  EXPECT_EQ(AbslUnparseFlag(ByteCount{4097}), "4097");
  EXPECT_EQ(AbslUnparseFlag(ByteCount{0}), "0");
}

TEST(ServerProgramTest, EachWrongCommandLineIsOneLineThatNamesWhatToChange) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--no_such_flag=1"}, "no_such_flag"},
      {{"--host_bytes_max=4X"}, "--host_bytes_max=4X: use a number of bytes"},
      {{"--host_bytes_max=1MiB"}, "--extent_bytes"},
      {{"--disk_dir=/tmp/x", "--disk_bytes_max=1KiB"}, "--disk_bytes_max"},
      {{"--extent_bytes=5000"}, "--extent_bytes"},
      {{"--disk_write=never"}, "on_demotion"},
      {{"--lease_ttl=0s"}, "--lease_ttl"},
      {{"--session_ttl=forever"}, "session_ttl"},
      {{"--io_threads=0"}, "--io_threads"},
      {{"--event_log_max=0"}, "--event_log_max"},
      {{"--listen=nowhere"}, "--listen"},
      {{"--http_listen=1.2.3.4:99999"}, "--http_listen"},
      {{"--tls_cert=/tmp/c.pem"}, "--tls_key"},
      {{"--tls_cert=/no/c.pem", "--tls_key=/no/k.pem"}, "/no/"},
      {{"--log_level=loud"}, "--log_level"},
      {{"--flagfile=/no/such/file"}, "/no/such/file"},
      {{"--io_threads"}, "--io_threads="},
      {{"--port_file=/no/ports", "--listen=127.0.0.1:0", "--http_listen=", "--host_bytes_max=64MiB",
        "--log_level=off"},
       "--port_file=/no/ports"},
      {{"serve"}, "'serve'"},
  };
  for (const auto& [flags, named] : cases) {
    const RunResult result = RunServer(flags);
    EXPECT_EQ(result.exit_code, 2) << flags[0];
    EXPECT_EQ(result.out, "") << flags[0];
    EXPECT_THAT(result.err, StartsWith("ibid-server: "));
    EXPECT_THAT(result.err, HasSubstr(named));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

TEST(ServerProgramTest, VersionAndHelpArePrintedAndNoErrors) {
  const RunResult version = RunServer({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_EQ(version.out, absl::StrCat("ibid-server ", IBID_VERSION, "\n"));
  const RunResult help = RunServer({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("--host_bytes_max=1GiB"));
}

class RunningProgramTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> flags) {
    std::vector<std::string> arguments = {kServer, "--listen=127.0.0.1:0",
                                          "--http_listen=127.0.0.1:0", "--host_bytes_max=64MiB",
                                          "--port_file=" + (folder / "ports")};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    std::filesystem::remove(folder / "ports");  // of a run before
    auto started = Process::Start(arguments, folder / "log");
    ASSERT_TRUE(started.ok()) << started.status();
    process = std::make_unique<Process>(*std::move(started));
    auto found = WaitForPorts(*process, folder / "ports", folder / "log");
    ASSERT_TRUE(found.ok()) << found.status();
    ports = *found;
  }

  std::unique_ptr<CacheChannel> Channel() {
    return *CacheChannel::Create(absl::StrCat("127.0.0.1:", ports["port"]), {});
  }

  TempFolder folder;
  std::unique_ptr<Process> process;
  std::map<std::string, int> ports;
};

TEST_F(RunningProgramTest, ServesAndStopsOnSigtermWithItsSessionsOpen) {
  Start({});
  const auto channel = Channel();
  const auto session = channel->OpenSession("test", absl::Seconds(20), [](absl::Status) {});
  ASSERT_TRUE(session.ok()) << session.status();
  const auto stats = channel->GetStats(absl::Seconds(20));
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->sessions, 1u);
  EXPECT_EQ(stats->version, IBID_VERSION);
  const SteadyClock clock;
  const absl::Time began = clock.Now();
  EXPECT_EQ(process->Terminate(), 0);
  EXPECT_LT(clock.Now() - began, absl::Seconds(10));
  // One line when it serves.
  const std::string log = ReadWholeFile(folder / "log");
  const size_t first = log.find("serving on 127.0.0.1:");
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("serving on", first + 1), std::string::npos) << log;
}

// One line an event, whatever a client calls itself.
TEST_F(RunningProgramTest, TheLogHasOneLineForEachEvent) {
  Start({});
  const auto channel = Channel();
  NamespaceSpec spec;
  spec.model = "demo";
  spec.layout =
      "layers=1;kv_heads=1;k_dim=64;v_dim=64;dtype=bf16;block_tokens=16;order=hnd;scales=none";
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(channel->OpenNamespace(spec, absl::Seconds(20)).ok());
  ASSERT_TRUE(
      channel->OpenSession("evil\nname\x1b[2J", absl::Seconds(20), [](absl::Status) {}).ok());
  EXPECT_EQ(process->Terminate(), 0);
  const std::string log = ReadWholeFile(folder / "log");
  const auto lines_with = [&](const std::string& text) {
    int count = 0;
    for (size_t at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) ++count;
    return count;
  };
  EXPECT_EQ(lines_with(" opened: layers=1;"), 1) << log;
  EXPECT_EQ(lines_with(" of 'evil\\nname\\x1b[2J' opened\n"), 1) << log;
  EXPECT_EQ(lines_with(" ended\n"), 1) << log;
  EXPECT_EQ(lines_with("SIGTERM: stopping\n"), 1) << log;
  EXPECT_EQ(log.find('\x1b'), std::string::npos);
}

TEST_F(RunningProgramTest, ReadsFlagsFromAFile) {
  std::ofstream(folder / "flags") << "--lease_ttl=7s\n--session_ttl=60s\n";
  Start({"--flagfile=" + (folder / "flags")});
  const auto session = Channel()->OpenSession("test", absl::Seconds(20), [](absl::Status) {});
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ((*session)->lease_ttl(), absl::Seconds(7));
  EXPECT_EQ((*session)->heartbeat(), absl::Seconds(7) / 5);
}

// A tier that only the start of a server makes: what it says of itself by its three ways, and that
// what is there and nowhere else outlives a stop.
TEST_F(RunningProgramTest, AGpuTierIsShownByTheMetricsThePageAndTheCliAndLosesNothingAtAStop) {
  const std::vector<std::string> flags = {"--gpu_bytes_max=16MiB", "--extent_bytes=4MiB",
                                          "--disk_dir=" + (folder / "tier"),
                                          "--disk_bytes_max=256MiB", "--disk_write=on_demotion"};
  Start(flags);
  const NamespaceSpec spec = SpecOf(SmallLayout());
  const SampleBlocks blocks = MakeBlocks(spec, 4);
  {
    TestClient client(absl::StrCat("127.0.0.1:", ports["port"]));
    ASSERT_TRUE(client.channel->OpenNamespace(spec, kPatience).ok());
    EXPECT_THAT(client.Publish(blocks), ::testing::Each(BlockOutcome::kOk));
    EXPECT_EQ(client.Match(blocks.ns, blocks.keys(), /*lease=*/true).matched_count, 4u);
    const auto gpu_blocks = [&] {
      for (const auto& tier : client.Stats().tiers) {
        if (tier.tier == "gpu") return tier.blocks;
      }
      return uint64_t{0};
    };
    EXPECT_TRUE(Eventually([&] { return gpu_blocks() == 4; })) << gpu_blocks();
  }
  EXPECT_TRUE(Eventually([&] {
    const std::string metrics = HttpGet(ports["http_port"], "/metrics");
    return metrics.find("\nibid_store_blocks{tier=\"gpu\"} 4\n") != std::string::npos &&
           metrics.find("\nibid_store_gpu_promoted_blocks_total 4\n") != std::string::npos;
  })) << HttpGet(ports["http_port"], "/metrics");
  const std::string page = HttpGet(ports["http_port"], "/stats.json");
  EXPECT_THAT(page, HasSubstr("\"tier\":\"gpu\"")) << page;
  const auto status = ibid::Run({std::string(IBID_BIN_DIR) + "/ibid", "status",
                                 absl::StrCat("--servers=127.0.0.1:", ports["port"])},
                                absl::Seconds(30));
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->exit_code, 0) << status->err;
  EXPECT_THAT(status->out, ::testing::ContainsRegex("  gpu .* 16.* 4 blocks"));
  EXPECT_EQ(process->Terminate(), 0) << ReadWholeFile(folder / "log");

  Start(flags);
  TestClient client(absl::StrCat("127.0.0.1:", ports["port"]));
  ASSERT_TRUE(client.channel->OpenNamespace(spec, kPatience).ok());
  EXPECT_TRUE(
      Eventually([&] { return client.Match(blocks.ns, blocks.keys()).matched_count == 4; }));
  EXPECT_THAT(
      client.Fetch({client.session_id(), blocks.ns}, blocks.keys(), SmallLayout().PayloadBytes()),
      ::testing::Each(BlockOutcome::kOk));
  EXPECT_EQ(client.received, blocks.payloads);
}

TEST_F(RunningProgramTest, ATakenPortIsOneLineAndExitCodeOne) {
  Start({});
  const RunResult second =
      RunServer({absl::StrCat("--listen=127.0.0.1:", ports["port"]), "--http_listen="});
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.err, HasSubstr(absl::StrCat("127.0.0.1:", ports["port"])));
  EXPECT_EQ(std::count(second.err.begin(), second.err.end(), '\n'), 1) << second.err;
}

}  // namespace
}  // namespace ibid
