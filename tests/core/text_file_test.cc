#include "core/text_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

namespace ibid {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const std::string& path, size_t bytes_max) {
  const auto text = ReadTextFile(path, bytes_max);
  EXPECT_TRUE(absl::IsInvalidArgument(text.status())) << text.status();
  return std::string(text.status().message());
}

TEST(TextFileTest, AFileIsReadToItsEndUpToItsLimit) {
  const std::string path = testing::TempDir() + "/text_file_test";
  std::ofstream(path) << "five\n";
  EXPECT_EQ(*ReadTextFile(path, 5), "five\n");
  EXPECT_THAT(ErrorOf(path, 4), HasSubstr("has over 4 bytes"));
  std::ofstream(path, std::ios::trunc).flush();
  EXPECT_EQ(*ReadTextFile(path, 5), "");
  std::remove(path.c_str());
  EXPECT_THAT(ErrorOf(path, 5), HasSubstr("cannot be read"));
}

TEST(TextFileTest, AFolderAndAFileWithoutEndAreErrors) {
  EXPECT_THAT(ErrorOf(testing::TempDir(), 5), HasSubstr("cannot be read"));
  EXPECT_THAT(ErrorOf("/dev/zero", 1'000), HasSubstr("has over 1000 bytes"));
}

}  // namespace
}  // namespace ibid
