// Frames are outside bytes: whatever comes must be a frame or InvalidArgument, and what the
// generated parser and ours both accept must mean the same. A failure prints the seed;
// --gtest_random_seed does not matter, the seeds are fixed.
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/transport/frame_samples.h"
#include "transport/block_frame.h"

namespace ibid {
namespace {

constexpr int kMutantsCount = 60'000;

std::string Mutate(std::string bytes, std::mt19937_64& random) {
  const auto below = [&](size_t limit) { return limit == 0 ? 0 : random() % limit; };
  const int steps = 1 + static_cast<int>(below(4));
  for (int step = 0; step < steps; ++step) {
    const size_t at = below(bytes.size() + 1);
    switch (below(6)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(random());
        break;
      case 1:
        if (at < bytes.size()) bytes[at] ^= static_cast<char>(1 << below(8));
        break;
      case 2:
        bytes.insert(at, 1 + below(6), static_cast<char>(random()));
        break;
      case 3:
        bytes.erase(at, 1 + below(6));
        break;
      case 4:
        bytes.resize(at);
        break;
      case 5:
        bytes += bytes.substr(at, below(40));
        break;
    }
  }
  return bytes;
}

std::vector<size_t> RandomCuts(size_t length, std::mt19937_64& random) {
  std::vector<size_t> cuts(random() % 8);
  for (size_t& cut : cuts) cut = random() % (length + 1);
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

// Whether the generated object says what our parser found. Digests of a wrong length never get this
// far.
void ExpectSame(const v1::BlockFrame& expected, const ReceivedFrame& frame, int seed) {
  const FrameHeader& header = frame.header();
  EXPECT_EQ(header.index, expected.index()) << seed;
  EXPECT_EQ(header.token_count, expected.token_count()) << seed;
  EXPECT_EQ(header.position, expected.position()) << seed;
  EXPECT_EQ(header.checksum, expected.checksum()) << seed;
  EXPECT_EQ(header.tier, expected.tier()) << seed;
  EXPECT_EQ(header.first_layer, expected.first_layer()) << seed;
  EXPECT_EQ(header.layer_count, expected.layer_count()) << seed;
  EXPECT_EQ(header.range_checksum, expected.range_checksum()) << seed;
  EXPECT_EQ(header.incarnation, expected.incarnation()) << seed;
  EXPECT_EQ(header.shared_bytes, expected.shared_bytes()) << seed;
  EXPECT_EQ(header.shared_offset, expected.shared_offset()) << seed;
  EXPECT_EQ(header.shared_generation, expected.shared_generation()) << seed;
  EXPECT_EQ(PayloadText(frame), expected.payload()) << seed;
  if (!expected.key().empty()) {
    EXPECT_EQ(std::string(header.key.digest.begin(), header.key.digest.end()), expected.key())
        << seed;
  }
}

TEST(BlockFrameFuzzTest, MutatedFramesAreFramesOrInvalidArgument) {
  google::protobuf::LogSilencer
      silencer;  // of the generated parser, about texts that are not UTF-8
  const std::string sample = GeneratedFrame(FullHeader(), PatternBytes(50)).SerializeAsString();
  int accepted_count = 0;
  for (int seed = 0; seed < kMutantsCount; ++seed) {
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    const std::string mutant = Mutate(sample, random);
    const auto frame = ParseFrame(mutant, RandomCuts(mutant.size(), random));
    v1::BlockFrame reference;
    const bool is_reference_ok = reference.ParseFromString(mutant);
    if (!frame.ok()) {
      ASSERT_TRUE(absl::IsInvalidArgument(frame.status())) << seed << " " << frame.status();
      continue;
    }
    ++accepted_count;
    // Ours takes any bytes as the tier's text; the generated parser only UTF-8.
    if (is_reference_ok) ExpectSame(reference, *frame, seed);
    std::vector<std::byte> copy(frame->payload_bytes());
    frame->CopyPayload(copy);
    ASSERT_EQ(AsText(copy), PayloadText(*frame)) << seed;
    if (HasFailure()) return;
  }
  // A fuzz test whose mutants all die at the door tests only the door.
  EXPECT_GT(accepted_count, kMutantsCount / 20);
  EXPECT_LT(accepted_count, kMutantsCount);
}

TEST(BlockFrameFuzzTest, MutatedPublishesArePublishesOrInvalidArgument) {
  google::protobuf::LogSilencer silencer;
  const std::string sample =
      GeneratedPublish(FullPublishHeader(), {PatternBytes(50), {}, PatternBytes(20)})
          .SerializeAsString();
  int accepted_count = 0;
  for (int seed = 0; seed < kMutantsCount; ++seed) {
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    const std::string mutant = Mutate(sample, random);
    const auto publish = ReceivedFrames::Parse(CutInto(mutant, RandomCuts(mutant.size(), random)));
    v1::PublishRequest reference;
    const bool is_reference_ok = reference.ParseFromString(mutant);
    if (!publish.ok()) {
      ASSERT_TRUE(absl::IsInvalidArgument(publish.status())) << seed << " " << publish.status();
      continue;
    }
    ++accepted_count;
    if (is_reference_ok) {
      EXPECT_EQ(publish->header.session_id, reference.session_id()) << seed;
      EXPECT_EQ(publish->header.durable, reference.durable()) << seed;
      if (!reference.namespace_id().empty()) {
        EXPECT_EQ(DigestText(publish->header.namespace_id.digest), reference.namespace_id())
            << seed;
      }
      ASSERT_EQ(publish->frames.size(), static_cast<size_t>(reference.frames_size())) << seed;
      for (size_t i = 0; i < publish->frames.size(); ++i) {
        ExpectSame(reference.frames(static_cast<int>(i)), publish->frames[i], seed);
      }
    }
    for (const ReceivedFrame& frame : publish->frames) {
      std::vector<std::byte> copy(frame.payload_bytes());
      frame.CopyPayload(copy);
      ASSERT_EQ(AsText(copy), PayloadText(frame)) << seed;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(accepted_count, kMutantsCount / 20);
  EXPECT_LT(accepted_count, kMutantsCount);
}

TEST(BlockFrameFuzzTest, RandomBytesAreFramesOrInvalidArgument) {
  for (int seed = 0; seed < 20'000; ++seed) {
    std::mt19937_64 random(static_cast<uint64_t>(seed) + 1'000'000);
    std::string bytes(random() % 200, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    const auto frame = ParseFrame(bytes, RandomCuts(bytes.size(), random));
    ASSERT_TRUE(frame.ok() || absl::IsInvalidArgument(frame.status()))
        << seed << " " << frame.status();
    const auto publish = ReceivedFrames::Parse(CutInto(bytes, RandomCuts(bytes.size(), random)));
    ASSERT_TRUE(publish.ok() || absl::IsInvalidArgument(publish.status()))
        << seed << " " << publish.status();
  }
}

}  // namespace
}  // namespace ibid
