#include "core/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/time/time.h"

struct Fruit {
  std::string name;
};
bool AbslParseFlag(absl::string_view text, Fruit* fruit, std::string* error) {
  fruit->name = std::string(text);
  *error = "use apple";
  return text == "apple";
}
std::string AbslUnparseFlag(const Fruit& fruit) { return fruit.name; }

ABSL_FLAG(std::string, test_text, "some", "a text");
ABSL_FLAG(bool, test_switch, false, "a switch");
ABSL_FLAG(bool, no_test_switch, false, "another, with an unlucky name");
ABSL_FLAG(uint32_t, test_count, 7, "a number");
ABSL_FLAG(absl::Duration, test_delay, absl::Seconds(1), "a duration");
ABSL_FLAG(double, test_share, 0.5, "a fraction");
ABSL_FLAG(Fruit, test_fruit, Fruit{"apple"}, "a type that explains its errors");
ABSL_FLAG(std::string, namespace_, "", "a word of C++");
ABSL_FLAG(std::string, test_other, "", "belongs to another command");

namespace ibid {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

class CommandLineTest : public testing::Test {
 protected:
  absl::StatusOr<CommandLine> Parse(const std::vector<std::string>& arguments) {
    return ParseCommandLine(spec_, arguments);
  }
  // What is said of a wrong command line; always one line.
  std::string Complaint(const std::vector<std::string>& arguments) {
    const absl::Status status = Parse(arguments).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(status.message().find('\n'), absl::string_view::npos) << status;
    return std::string(status.message());
  }
  std::string WriteFile(const std::string& name, const std::string& text) {
    const std::string path = testing::TempDir() + "/" + name;
    std::ofstream(path) << text;
    return path;
  }

  const CommandLineSpec spec_{"test program",
                              "1.2",
                              "Tests itself.\n",
                              {"namespace", "test_text", "test_switch", "no_test_switch",
                               "test_count", "test_delay", "test_share", "test_fruit"}};
  absl::FlagSaver saver_;
};

TEST_F(CommandLineTest, EachFormSetsItsFlag) {
  const auto line = Parse({"--test_text=a=b", "--test_count", "9", "--test_switch",
                           "-test_delay=250ms", "--namespace=n", "--test_share", "-1"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(absl::GetFlag(FLAGS_test_text), "a=b");
  EXPECT_EQ(absl::GetFlag(FLAGS_test_count), 9u);
  EXPECT_TRUE(absl::GetFlag(FLAGS_test_switch));
  EXPECT_EQ(absl::GetFlag(FLAGS_test_delay), absl::Milliseconds(250));
  EXPECT_EQ(absl::GetFlag(FLAGS_namespace_), "n");
  EXPECT_EQ(absl::GetFlag(FLAGS_test_share), -1);
  EXPECT_THAT(line->given, ElementsAre("namespace", "test_count", "test_delay", "test_share",
                                       "test_switch", "test_text"));
  EXPECT_EQ(line->answer, "");
}

TEST_F(CommandLineTest, NoBeforeASwitchTurnsItOffUnlessThatIsAFlagItself) {
  ASSERT_TRUE(Parse({"--test_switch=true", "--notest_switch"}).ok());
  EXPECT_FALSE(absl::GetFlag(FLAGS_test_switch));
  ASSERT_TRUE(Parse({"--no_test_switch"}).ok());
  EXPECT_TRUE(absl::GetFlag(FLAGS_no_test_switch));
  EXPECT_THAT(Complaint({"--notest_count"}), HasSubstr("unknown flag --notest_count"));
}

TEST_F(CommandLineTest, AFlagFileIsReadWhereItStands) {
  const std::string path = WriteFile("good.flags",
                                     "# a comment\n\n--test_text=file\n"
                                     "  --test_count\n8\n");
  ASSERT_TRUE(Parse({"--test_text=before", "--flagfile=" + path, "--test_count=9"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_test_text), "file");
  EXPECT_EQ(absl::GetFlag(FLAGS_test_count), 9u);
  ASSERT_TRUE(Parse({"--flagfile", path}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_test_count), 8u);
  std::remove(path.c_str());
}

TEST_F(CommandLineTest, AWrongFlagFileIsNamed) {
  const std::string path = WriteFile("bad.flags", "--test_count=many\n");
  EXPECT_THAT(Complaint({"--flagfile=" + path}), HasSubstr(path + ": --test_count=many: use"));
  WriteFile("bad.flags", "--flagfile=" + path + "\n");
  EXPECT_THAT(Complaint({"--flagfile=" + path}), HasSubstr("too many files inside of files"));
  std::remove(path.c_str());
  EXPECT_THAT(Complaint({"--flagfile=" + path}), HasSubstr("cannot be read"));
  EXPECT_THAT(Complaint({"--flagfile=" + testing::TempDir()}), HasSubstr("cannot be read"));
  EXPECT_THAT(Complaint({"--flagfile"}), HasSubstr("--flagfile has no value"));
  EXPECT_THAT(Complaint({"--flagfile=/dev/zero"}), HasSubstr("has over 1048576 bytes"))
      << "a file without end";
}

TEST_F(CommandLineTest, AMistakeIsALineThatSaysWhatToChange) {
  EXPECT_EQ(Complaint({"--test_txet=x"}),
            "unknown flag --test_txet (test program --help lists the flags)");
  EXPECT_THAT(Complaint({"--test_txet", "x"}), HasSubstr("unknown flag --test_txet"));
  EXPECT_THAT(Complaint({"--test_other=x"}), HasSubstr("unknown flag --test_other"));
  EXPECT_THAT(Complaint({"--namespace_=x"}), HasSubstr("unknown flag --namespace_"));
  EXPECT_THAT(Complaint({"run"}), HasSubstr("unexpected argument 'run': flags start with --"));
  EXPECT_THAT(Complaint({"--"}), HasSubstr("unexpected argument '--'"));
  EXPECT_THAT(Complaint({"--=x"}), HasSubstr("unknown flag --"));
  EXPECT_THAT(Complaint({""}), HasSubstr("unexpected argument ''"));
  EXPECT_THAT(Complaint({"--test_text"}), HasSubstr("--test_text has no value"));
  EXPECT_EQ(Complaint({"--test_switch=maybe"}), "--test_switch=maybe: use true or false");
  EXPECT_EQ(Complaint({"--test_count=-1"}),
            "--test_count=-1: use a whole number from 0 to 4294967295");
  EXPECT_EQ(Complaint({"--test_delay=5"}), "--test_delay=5: use a duration as 500ms or 10s");
  EXPECT_EQ(Complaint({"--test_share=half"}), "--test_share=half: use a number");
  EXPECT_EQ(Complaint({"--test_fruit=pear"}), "--test_fruit=pear: use apple");
}

TEST_F(CommandLineTest, HelpAndVersionAreAnswered) {
  const std::string help = Parse({"--test_count=3", "--help", "--no_such_flag"})->answer;
  EXPECT_THAT(help, testing::StartsWith("Tests itself.\n"));
  EXPECT_THAT(help, HasSubstr("  --test_count=7\n      a number\n"));
  EXPECT_THAT(help, HasSubstr("  --namespace=\n      a word of C++\n"));
  EXPECT_THAT(help, testing::Not(HasSubstr("test_other")));
  EXPECT_EQ(Parse({"-h"})->answer, help);
  EXPECT_EQ(Parse({"--version"})->answer, "test program 1.2\n");
}

TEST_F(CommandLineTest, ASourceFileKnowsItsFlags) {
  EXPECT_THAT(FlagsDefinedIn(__FILE__),
              ElementsAre("namespace", "no_test_switch", "test_count", "test_delay", "test_fruit",
                          "test_other", "test_share", "test_switch", "test_text"));
}

}  // namespace
}  // namespace ibid
