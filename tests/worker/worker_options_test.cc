#include "worker/worker_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "worker/worker_flags.h"

namespace ibid {
namespace {

using testing::HasSubstr;

absl::StatusOr<WorkerOptions> Parse(const std::vector<std::string>& arguments) {
  IBID_RETURN_IF_ERROR(ParseCommandLine(WorkerCommandLine(), arguments).status());
  const WorkerOptions options = WorkerOptionsFromFlags();
  IBID_RETURN_IF_ERROR(options.Validate());
  return options;
}

// The one line that a wrong command line gets; empty for a right one.
std::string Complaint(const std::vector<std::string>& arguments) {
  absl::FlagSaver saver;
  const std::string message(Parse(arguments).status().message());
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

TEST(WorkerFlags, FillTheOptions) {
  absl::FlagSaver saver;
  const auto parsed =
      Parse({"--model=/m", "--listen", "0.0.0.0:9", "--nopublish", "--kv_bytes_max=1.5GiB",
             "--fetch_timeout=250ms", "--servers=a:1,b:2", "--max_batch_tokens=100"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const WorkerOptions& options = *parsed;
  EXPECT_EQ(options.model, "/m");
  EXPECT_EQ(options.listen, "0.0.0.0:9");
  EXPECT_FALSE(options.publish);
  EXPECT_EQ(options.ToClientOptions().servers, (std::vector<std::string>{"a:1", "b:2"}));
  EXPECT_EQ(options.ToClientOptions().fetch_timeout, absl::Milliseconds(250));
  KvLayout layout = *KvLayout::Parse(
      "layers=3;kv_heads=2;k_dim=64;v_dim=64;dtype=bf16;block_tokens=16;order=hnd;scales=none");
  EXPECT_EQ(options.ToEngineOptions(layout)->pages_count,
            (size_t{3} << 29) / layout.PayloadBytes());
  EXPECT_EQ(options.ToEngineOptions(layout)->max_batch_tokens, 100u);
}

TEST(WorkerFlags, MemoryForNoBlockOrForTooManyNamesTheFlag) {
  const KvLayout layout = *KvLayout::Parse(
      "layers=3;kv_heads=2;k_dim=64;v_dim=64;dtype=bf16;block_tokens=16;order=hnd;scales=none");
  ASSERT_EQ(layout.PayloadBytes(), 24'576u);
  WorkerOptions options;
  for (const char* size : {"24575", "500TiB"}) {
    options.kv_bytes_max = size;
    const absl::Status status = options.ToEngineOptions(layout).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << size;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("--kv_bytes_max=", size)));
    EXPECT_THAT(std::string(status.message()), HasSubstr("24576 bytes"));
  }
  options.kv_bytes_max = "24576";
  EXPECT_EQ(options.ToEngineOptions(layout)->pages_count, 1u);
  options.kv_bytes_max = "1";  // is not looked at
  options.pages = 7;
  EXPECT_EQ(options.ToEngineOptions(layout)->pages_count, 7u);
}

TEST(WorkerFlags, DefaultsOfFlagsAndOptionsAreTheSame) {
  absl::FlagSaver saver;
  const WorkerOptions from_flags = *Parse({"--model=x"});
  WorkerOptions plain;
  plain.model = "x";
  EXPECT_EQ(from_flags.listen, plain.listen);
  EXPECT_EQ(from_flags.kv_dtype, plain.kv_dtype);
  EXPECT_EQ(from_flags.kv_bytes_max, plain.kv_bytes_max);
  EXPECT_EQ(from_flags.max_batch_tokens, plain.max_batch_tokens);
  EXPECT_EQ(from_flags.max_prompt_tokens, plain.max_prompt_tokens);
  EXPECT_EQ(from_flags.max_output_tokens, plain.max_output_tokens);
  EXPECT_EQ(from_flags.max_running_requests, plain.max_running_requests);
  EXPECT_EQ(from_flags.max_waiting_requests, plain.max_waiting_requests);
  EXPECT_EQ(from_flags.fetch_timeout, plain.fetch_timeout);
  EXPECT_EQ(from_flags.publish_timeout, plain.publish_timeout);
  EXPECT_EQ(from_flags.publish, plain.publish);
  EXPECT_EQ(from_flags.log_level, plain.log_level);
}

TEST(WorkerFlags, MistakesAreOneLineThatSaysWhatToChange) {
  EXPECT_THAT(Complaint({}), HasSubstr("--model is missing"));
  EXPECT_THAT(Complaint({"--modle=x"}), HasSubstr("unknown flag --modle"));
  EXPECT_THAT(Complaint({"--model"}), HasSubstr("--model has no value"));
  EXPECT_THAT(Complaint({"--model=x", "--threads=many"}), HasSubstr("--threads=many"));
  EXPECT_THAT(Complaint({"--model=x", "--threads=1000"}),
              HasSubstr("--threads=1000: use 0 to 256"));
  EXPECT_THAT(Complaint({"--model=x", "--listen=7080"}), HasSubstr("use host:port"));
  EXPECT_THAT(Complaint({"--model=x", "--servers=a:1,,b:2"}),
              HasSubstr("--servers=: use host:port"));
  EXPECT_THAT(Complaint({"--model=x", "--kv_dtype=f16"}), HasSubstr("use one of bf16, f32"));
  EXPECT_THAT(Complaint({"--model=x", "--kv_bytes_max=1G"}),
              HasSubstr("--kv_bytes_max=1G: use a number of bytes"));
  EXPECT_THAT(Complaint({"--model=x", "--max_batch_tokens=64"}),
              HasSubstr("--max_batch_tokens=64: use 65 to"));
  EXPECT_THAT(Complaint({"--model=x", "--fetch_timeout=0s"}), HasSubstr("--fetch_timeout=0"));
  EXPECT_THAT(Complaint({"--model=x", "--log_level=loud"}), HasSubstr("use one of debug"));
  EXPECT_THAT(Complaint({"--model=x", "--tls_cert=a"}), HasSubstr("--tls_key"));
}

TEST(WorkerFlags, HelpListsThem) {
  const auto line = ParseCommandLine(WorkerCommandLine(), {"--help"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(line->answer, HasSubstr("--max_batch_tokens=512"));
}

TEST(ParseMemorySize, TakesBinaryUnits) {
  EXPECT_EQ(*ParseMemorySize("4096"), 4096u);
  EXPECT_EQ(*ParseMemorySize("64MiB"), size_t{64} << 20);
  EXPECT_EQ(*ParseMemorySize("0.5KiB"), 512u);
  for (const char* wrong : {"", "GiB", "-1", "1e9", "5MB", "0", "9999999999TiB"}) {
    EXPECT_FALSE(ParseMemorySize(wrong).ok()) << wrong;
  }
}

}  // namespace
}  // namespace ibid
