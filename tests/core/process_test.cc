#include "core/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <iterator>

namespace ibid {
namespace {

using testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(WritePortFile, NamesThePortsThatThereAre) {
  const std::string path = testing::TempDir() + "/process_test.ports";
  ASSERT_TRUE(WritePortFile(path, 7, 8).ok());
  EXPECT_EQ(ReadFile(path), "{\"port\":7,\"http_port\":8}\n");
  ASSERT_TRUE(WritePortFile(path, 9, 0).ok());
  EXPECT_EQ(ReadFile(path), "{\"port\":9}\n");
  std::remove(path.c_str());
}

TEST(WritePortFile, WithoutAPathThereIsNoFile) { EXPECT_TRUE(WritePortFile("", 7, 8).ok()); }

TEST(WritePortFile, AFileThatCannotBeWrittenIsTheFlagsFault) {
  for (const std::string& path : {std::string("/no/folder/ports"), testing::TempDir()}) {
    const absl::Status status = WritePortFile(path, 7, 8);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--port_file=" + path));
  }
}

TEST(StopSignals, WaitTakesASignalThatCameBefore) {
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, nullptr, &before);
  const StopSignals signals;
  raise(SIGINT);
  EXPECT_EQ(signals.Wait(), "SIGINT");
  raise(SIGTERM);
  EXPECT_EQ(signals.Wait(), "SIGTERM");
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(FailProgram, TheExitCodeSaysWhetherTheCommandLineIsToBlame) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(FailProgram("ibid-test", absl::InvalidArgumentError("--a: is wrong")), 2);
  EXPECT_EQ(FailProgram("ibid-test", absl::UnavailableError("the port is taken")), 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "ibid-test: --a: is wrong\nibid-test: the port is taken\n");
}

}  // namespace
}  // namespace ibid
