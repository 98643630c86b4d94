// The installed package: a project outside of this tree builds against it at a prefix that was
// moved, and runs.
#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/cluster.h"
#include "tests/client/fake_worker.h"
#include "tests/harness/process.h"

namespace ibid {
namespace {

using testing::HasSubstr;

class InstallTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::filesystem::remove_all(kFolder);
    std::filesystem::create_directories(kFolder);
    MustRun({IBID_CMAKE, "--install", IBID_BINARY_DIR, "--prefix", kFolder + "/first"});
    std::filesystem::rename(kFolder + "/first", kPrefix);
    MustRun({IBID_CMAKE, "-S", IBID_SOURCE_DIR "/examples/scheduler", "-B", kFolder + "/scheduler",
             "-G", "Ninja", "-DCMAKE_CXX_COMPILER=" IBID_CXX_COMPILER,
             "-DCMAKE_PREFIX_PATH=" + kPrefix});
    MustRun({IBID_CMAKE, "--build", kFolder + "/scheduler"});
  }

  static void MustRun(const std::vector<std::string>& arguments) {
    const auto result = Must(arguments);
    ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  }
  static RunResult Must(const std::vector<std::string>& arguments) {
    auto result = ::ibid::Run(arguments, absl::Minutes(4));
    IBID_CHECK(result.ok()) << result.status().ToString();
    return *result;
  }

  // Prompt of 40 tokens: five blocks.
  static RunResult Schedule(const std::string& servers, const std::vector<std::string>& workers) {
    std::string tokens = "0";
    for (int i = 1; i < 40; ++i) tokens += "," + std::to_string(i);
    std::vector<std::string> arguments = {kFolder + "/scheduler/scheduler", servers, tokens};
    arguments.insert(arguments.end(), workers.begin(), workers.end());
    return Must(arguments);
  }

  static inline const std::string kFolder = std::string(IBID_BINARY_DIR) + "/install_test";
  static inline const std::string kPrefix = kFolder + "/moved";
};

TEST_F(InstallTest, ProgramsAreInstalled) {
  EXPECT_EQ(Must({kPrefix + "/bin/ibid", "--help"}).exit_code, 0);
  EXPECT_EQ(Must({kPrefix + "/bin/ibid-server", "--version"}).exit_code, 0);
}

TEST_F(InstallTest, TheSchedulerWeighsWhatIsStoredAgainstLoad) {
  const TempFolder folder;
  auto server = Process::Start(
      {kPrefix + "/bin/ibid-server", "--listen=127.0.0.1:0",
       "--http_listen=", "--host_bytes_max=128MiB", "--port_file=" + (folder / "ports")},
      folder / "log");
  ASSERT_TRUE(server.ok());
  const auto ports = WaitForPorts(*server, folder / "ports", folder / "log");
  ASSERT_TRUE(ports.ok()) << ports.status();
  const std::string address = "127.0.0.1:" + std::to_string(ports->at("port"));
  ClientOptions options;
  options.servers = {address};
  const auto client = Cluster::Connect(options);
  const NamespaceHandle warm = *client->OpenNamespace(TestSpec("warm"));
  ASSERT_TRUE(PublishChain(client.get(), warm, TestChain(warm.id, 4)).is_complete());

  const FakeWorker warm_worker(TestSpec("warm"), kTestBlockTokens);
  const FakeWorker cold_worker(TestSpec("cold"), kTestBlockTokens);
  const FakeWorker busy_worker(TestSpec("warm"), kTestBlockTokens, /*waiting_requests=*/3);
  const std::string dead_worker = FaultProxy().address();

  const RunResult by_match = Schedule(address, {cold_worker.address(), warm_worker.address()});
  EXPECT_EQ(by_match.out, warm_worker.address() + "\n") << by_match.err;
  EXPECT_THAT(by_match.err, HasSubstr("32 of 40 tokens stored"));
  EXPECT_EQ(Schedule(address, {busy_worker.address(), cold_worker.address()}).out,
            cold_worker.address() + "\n");
  // 26: liveness beats locality.
  EXPECT_EQ(Schedule(address, {dead_worker, cold_worker.address()}).out,
            cold_worker.address() + "\n");
  EXPECT_EQ(Schedule(address, {dead_worker}).exit_code, 1);

  server->Kill9();
  const RunResult without_store = Schedule(address, {busy_worker.address(), cold_worker.address()});
  EXPECT_EQ(without_store.exit_code, 0) << without_store.err;
  EXPECT_EQ(without_store.out, cold_worker.address() + "\n") << without_store.err;
}

}  // namespace
}  // namespace ibid
