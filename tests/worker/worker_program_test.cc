// The program ibid-worker: its command line, its ports, its signals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "client/inference_channel.h"
#include "tests/harness/http.h"
#include "tests/harness/process.h"

namespace ibid {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kWorker = std::string(IBID_BIN_DIR) + "/ibid-worker";
constexpr absl::Duration kPatience = absl::Seconds(30);  // only a broken test waits this long

RunResult RunWorker(const std::vector<std::string>& flags) {
  std::vector<std::string> arguments = {kWorker};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  auto result = Run(arguments, kPatience);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.value_or(RunResult{});
}

// Serves the demo's model from ports of its own.
class WorkerProgramTest : public ::testing::Test {
 protected:
  static std::vector<std::string> SmallWorker(std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"--model=" IBID_SOURCE_DIR "/models/demo", "--threads=1",
                                 "--kv_bytes_max=16MiB", "--listen=127.0.0.1:0"});
    return flags;
  }

  void Start(std::vector<std::string> flags) {
    flags = SmallWorker(std::move(flags));
    flags.insert(flags.begin(), kWorker);
    flags.push_back("--port_file=" + (folder_ / "ports"));
    auto started = Process::Start(flags, folder_ / "log");
    ASSERT_TRUE(started.ok()) << started.status();
    process_ = std::make_unique<Process>(*std::move(started));
    auto found = WaitForPorts(*process_, folder_ / "ports", folder_ / "log");
    ASSERT_TRUE(found.ok()) << found.status();
    ports_ = *found;
  }

  TempFolder folder_;
  std::unique_ptr<Process> process_;
  std::map<std::string, int> ports_;
};

TEST_F(WorkerProgramTest, TheHttpPortSaysHealthAndMetrics) {
  Start({"--http_listen=127.0.0.1:0"});
  const int http_port = ports_["http_port"];
  ASSERT_GT(http_port, 0);
  EXPECT_THAT(HttpGet(http_port, "/healthz"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(HttpGet(http_port, "/healthz"), HasSubstr("\r\n\r\nok\n"));

  const auto worker = InferenceChannel::Create(absl::StrCat("127.0.0.1:", ports_["port"]));
  ASSERT_TRUE(worker.ok()) << worker.status();
  InferenceRequest request;
  request.tokens = {1, 2, 3};
  request.max_tokens = 5;
  const auto finish =
      (*worker)->Generate(request, kPatience, [](const InferencePiece&) { return true; });
  ASSERT_TRUE(finish.ok()) << finish.status();
  const std::string metrics = HttpGet(http_port, "/metrics");
  EXPECT_THAT(metrics, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(metrics, HasSubstr(absl::StrCat("\nibid_engine_output_tokens_total ",
                                              finish->output_tokens, "\n")));
  EXPECT_EQ(process_->Terminate(), 0);
}

TEST_F(WorkerProgramTest, AStoreThatDoesNotAnswerIsSaidButDoesNotFailTheProbe) {
  Start({"--http_listen=127.0.0.1:0", "--servers=127.0.0.1:1", "--connect_timeout=100ms"});
  const std::string health = HttpGet(ports_["http_port"], "/healthz");
  EXPECT_THAT(health, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(health, HasSubstr("store: unreachable\n"));
}

TEST_F(WorkerProgramTest, WithoutAnHttpAddressThereIsOnePort) {
  Start({});
  EXPECT_EQ(ports_.size(), 1u);
  EXPECT_GT(ports_["port"], 0);
  EXPECT_EQ(process_->Terminate(), 0);
}

TEST_F(WorkerProgramTest, ATakenPortIsOneLineAndExitCodeOne) {
  Start({"--http_listen=127.0.0.1:0"});
  const std::string grpc_taken = absl::StrCat("--listen=127.0.0.1:", ports_["port"]);
  const std::string http_taken = absl::StrCat("--http_listen=127.0.0.1:", ports_["http_port"]);
  for (const std::string& taken : {grpc_taken, http_taken}) {
    const RunResult second = RunWorker(SmallWorker({taken, "--log_level=off"}));
    EXPECT_EQ(second.exit_code, 1) << taken;
    EXPECT_THAT(second.err, StartsWith("ibid-worker: "));
    EXPECT_THAT(second.err, HasSubstr(taken.substr(taken.find('=') + 1)));
    EXPECT_EQ(std::count(second.err.begin(), second.err.end(), '\n'), 1) << second.err;
  }
}

TEST_F(WorkerProgramTest, MemoryThatIsTooLittleOrTooMuchIsOneLineThatNamesTheFlag) {
  for (const char* flag : {"--kv_bytes_max=100", "--kv_bytes_max=500TiB", "--kv_bytes_max=100TiB",
                           "--pages=4000000000"}) {
    const RunResult result = RunWorker(SmallWorker({"--log_level=off", flag}));
    EXPECT_NE(result.exit_code, 0) << flag;
    EXPECT_THAT(result.err, StartsWith(absl::StrCat("ibid-worker: ", flag, ": ")));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

TEST_F(WorkerProgramTest, ATokenizerThatIsNotSupportedSaysHowToServeWithoutOne) {
  const std::string model = folder_ / "model";
  std::filesystem::copy(IBID_SOURCE_DIR "/tests/golden/tiny_llama_gqa", model);
  std::ofstream(model + "/tokenizer.json")
      << R"({"model": {"type": "BPE", "byte_fallback": true}})";
  const RunResult refused = RunWorker({"--model=" + model, "--log_level=off"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("byte_fallback"));
  EXPECT_THAT(refused.err, HasSubstr("without tokenizer files serves prompts of token ids"));
  EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 1) << refused.err;
  // And so it does.
  std::filesystem::remove(model + "/tokenizer.json");
  Start({"--model=" + model});
  EXPECT_EQ(process_->Terminate(), 0);
}

TEST(WorkerCommandLineTest, AMistakeIsOneLineAndExitCodeTwo) {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, {"--no_such_flag=1"}, {"--model=x", "--http_listen=7081"}}) {
    const RunResult result = RunWorker(flags);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, StartsWith("ibid-worker: "));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

TEST(WorkerCommandLineTest, VersionAndHelpArePrintedAndNoErrors) {
  const RunResult version = RunWorker({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.out, StartsWith("ibid-worker "));
  const RunResult help = RunWorker({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("--http_listen="));
}

}  // namespace
}  // namespace ibid
