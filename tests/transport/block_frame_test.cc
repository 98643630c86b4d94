#include "transport/block_frame.h"

#include <gmock/gmock.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <gtest/gtest.h>

#include "tests/transport/frame_samples.h"
#include "transport/limits.h"
#include "transport/staging.h"

namespace ibid {
namespace {

using ::testing::HasSubstr;

// One field in wire form.
std::string VarintField(int field, uint64_t value) {
  std::string out;
  google::protobuf::io::StringOutputStream stream(&out);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.WriteTag(static_cast<uint32_t>(field) << 3);
  coded.WriteVarint64(value);
  coded.Trim();
  return out;
}

TEST(BlockFrameTest, TheGeneratedClassReadsOurFrames) {
  const std::vector<std::byte> payload = PatternBytes(100'000);
  const auto owner = std::make_shared<int>(1);
  const std::string wire = FlatBytes(EncodeFrame(FullHeader(), payload, owner));
  v1::FetchResponse message;
  ASSERT_TRUE(message.ParseFromString(wire));
  ASSERT_EQ(message.frames_size(), 1);
  EXPECT_EQ(message.frames(0).SerializeAsString(),
            GeneratedFrame(FullHeader(), payload).SerializeAsString());
  // Byte for byte what the generated class would have written.
  EXPECT_EQ(wire, message.SerializeAsString());
}

TEST(BlockFrameTest, WeReadFramesOfTheGeneratedClass) {
  const std::vector<std::byte> payload = PatternBytes(70'000);
  const std::string wire = GeneratedFrame(FullHeader(), payload).SerializeAsString();
  const auto frame = ParseFrame(wire, {});
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->header(), FullHeader());
  EXPECT_EQ(PayloadText(*frame), AsText(payload));
}

TEST(BlockFrameTest, AnEmptyMessageIsAFrameOfDefaults) {
  const auto frame = ParseFrame("", {});
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->header(), FrameHeader());
  EXPECT_EQ(frame->payload_bytes(), 0u);
  const std::string wire = FlatBytes(EncodeFrame(FrameHeader(), {}, nullptr));
  EXPECT_EQ(wire, BytesField(4, ""));
}

TEST(BlockFrameTest, ThePayloadIsSentFromWhereItLiesAndItsOwnerIsHeldUntilTheLastSlice) {
  auto payload = std::make_shared<std::vector<std::byte>>(PatternBytes(200'000));
  const ByteView view = *payload;
  grpc::ByteBuffer buffer = EncodeFrame(FullHeader(), view, payload);
  EXPECT_EQ(payload.use_count(), 2);
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(buffer.Dump(&slices).ok());
  EXPECT_EQ(reinterpret_cast<const std::byte*>(slices.back().begin()), view.data());
  buffer.Clear();
  EXPECT_EQ(payload.use_count(), 2);
  slices.clear();
  EXPECT_EQ(payload.use_count(), 1);
}

TEST(BlockFrameTest, ReadsFramesThatAreCutAtEveryByte) {
  const std::vector<std::byte> payload = PatternBytes(300);
  const std::string wire = GeneratedFrame(FullHeader(), payload).SerializeAsString();
  std::vector<size_t> everywhere;
  for (size_t cut = 0; cut <= wire.size(); ++cut) {
    everywhere.push_back(cut);
    const auto frame = ParseFrame(wire, {cut});
    ASSERT_TRUE(frame.ok()) << cut << " " << frame.status();
    ASSERT_EQ(frame->header(), FullHeader()) << cut;
    ASSERT_EQ(PayloadText(*frame), AsText(payload)) << cut;
  }
  const auto frame = ParseFrame(wire, everywhere);
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->header(), FullHeader());
  std::vector<std::byte> copy(payload.size());
  EXPECT_EQ(frame->CopyPayload(copy), Checksum(payload));
  EXPECT_EQ(copy, payload);
}

TEST(BlockFrameTest, EveryTruncationIsAnErrorOrAShorterValidMessage) {
  const std::string wire = GeneratedFrame(FullHeader(), PatternBytes(64)).SerializeAsString();
  for (size_t length = 0; length < wire.size(); ++length) {
    const absl::string_view part = absl::string_view(wire).substr(0, length);
    v1::BlockFrame reference;
    const bool is_valid = reference.ParseFromArray(part.data(), static_cast<int>(part.size()));
    const auto frame = ParseFrame(part, {part.size() / 2});
    EXPECT_EQ(frame.ok(), is_valid) << length;
    EXPECT_TRUE(frame.ok() || absl::IsInvalidArgument(frame.status())) << frame.status();
  }
}

TEST(BlockFrameTest, FieldsMayComeInAnyOrderAndTheLastCounts) {
  const std::string wire = BytesField(100, "first payload") + VarintField(1, 3) +
                           BytesField(2, std::string(32, 'k')) + BytesField(100, "second") +
                           VarintField(1, 4);
  const auto frame = ParseFrame(wire, {5, 20});
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->header().index, 4u);
  EXPECT_EQ(frame->header().key.digest[31], 'k');
  EXPECT_EQ(PayloadText(*frame), "second");
}

TEST(BlockFrameTest, UnknownFieldsAreSkipped) {
  const std::string wire = VarintField(99, ~0ull) + BytesField(77, "what") + VarintField(1, 9) +
                           VarintField(100, 5) /* a payload of another wire type is unknown too */ +
                           BytesField(101, "x");
  const auto frame = ParseFrame(wire, {3});
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->header().index, 9u);
  EXPECT_EQ(frame->payload_bytes(), 0u);
}

TEST(BlockFrameTest, AnUnknownOutcomeIsUnspecified) {
  const auto frame = ParseFrame(VarintField(7, 250), {});
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->header().outcome, BlockOutcome::kUnspecified);
}

TEST(BlockFrameTest, RefusesDigestsOfAnotherLength) {
  for (const int field : {2, 3}) {
    for (const size_t length : {1, 31, 33, 64}) {
      const auto frame = ParseFrame(BytesField(field, std::string(length, 'x')), {});
      EXPECT_TRUE(absl::IsInvalidArgument(frame.status())) << field << " " << length;
    }
  }
}

TEST(BlockFrameTest, RefusesAPayloadThatClaimsMoreThanThereIs) {
  for (const uint64_t claimed : {uint64_t{100}, uint64_t{0x7fffffff}, uint64_t{0xffffffff}}) {
    std::string wire = "\xa2\x06";  // tag of field 100
    google::protobuf::io::StringOutputStream stream(&wire);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.WriteVarint64(claimed);
    coded.Trim();
    const auto frame = ParseFrame(wire + "abc", {});
    EXPECT_TRUE(absl::IsInvalidArgument(frame.status())) << claimed << " " << frame.status();
  }
}

TEST(BlockFrameTest, NamesTheLimitThatAFrameExceeds) {
  const auto fields = ParseFrame(BytesField(77, std::string(kFrameFieldsBytesMax + 1, 'x')), {});
  EXPECT_TRUE(absl::IsInvalidArgument(fields.status()));
  EXPECT_THAT(std::string(fields.status().message()), HasSubstr("kFrameFieldsBytesMax"));

  const auto tier = ParseFrame(BytesField(8, std::string(kTextFieldBytesMax + 1, 'x')), {});
  EXPECT_THAT(std::string(tier.status().message()), HasSubstr("kTextFieldBytesMax"));

  const std::string block(kBlockPayloadBytesMax + 1, 'x');
  const auto payload = ParseFrame(BytesField(100, block), {});
  EXPECT_THAT(std::string(payload.status().message()), HasSubstr("kBlockPayloadBytesMax"));

  const auto message = ParseFrame(BytesField(77, std::string(kMessageBytesMax, 'x')), {});
  EXPECT_THAT(std::string(message.status().message()), HasSubstr("kMessageBytesMax"));
}

std::vector<OutgoingFrame> FramesOf(const std::vector<std::vector<std::byte>>& payloads,
                                    const std::shared_ptr<const void>& owner) {
  std::vector<OutgoingFrame> frames;
  for (const std::vector<std::byte>& payload : payloads) {
    FrameHeader header = FullHeader();
    header.index = static_cast<uint32_t>(frames.size());
    frames.push_back({header, payload, owner});
  }
  return frames;
}

void ExpectPublish(const absl::StatusOr<ReceivedFrames>& publish,
                   const std::vector<std::vector<std::byte>>& payloads) {
  ASSERT_TRUE(publish.ok()) << publish.status();
  EXPECT_EQ(publish->header, FullPublishHeader());
  ASSERT_EQ(publish->frames.size(), payloads.size());
  for (size_t i = 0; i < payloads.size(); ++i) {
    FrameHeader header = FullHeader();
    header.index = static_cast<uint32_t>(i);
    EXPECT_EQ(publish->frames[i].header(), header);
    EXPECT_EQ(PayloadText(publish->frames[i]), AsText(payloads[i]));
    std::vector<std::byte> copy(publish->frames[i].payload_bytes());
    EXPECT_EQ(publish->frames[i].CopyPayload(copy), Checksum(payloads[i]));
    EXPECT_EQ(copy, payloads[i]);
  }
}

TEST(PublishMessageTest, TheGeneratedClassReadsOursAndWeReadItsOwn) {
  const std::vector<std::vector<std::byte>> payloads = {
      PatternBytes(300), PatternBytes(70'000), {}, PatternBytes(1)};
  const v1::PublishRequest generated = GeneratedPublish(FullPublishHeader(), payloads);
  for (const std::shared_ptr<const void> owner :
       {std::shared_ptr<int>(), std::make_shared<int>(1)}) {
    const grpc::ByteBuffer ours = EncodePublish(FullPublishHeader(), FramesOf(payloads, owner));
    EXPECT_EQ(FlatBytes(ours), generated.SerializeAsString());  // byte for byte
    ExpectPublish(ReceivedFrames::Parse(ours), payloads);
  }
  const std::string wire = generated.SerializeAsString();
  ExpectPublish(ReceivedFrames::Parse(CutInto(wire, {})), payloads);
  EXPECT_EQ(FlatBytes(EncodePublish({}, {})), "");
  EXPECT_TRUE(ReceivedFrames::Parse(CutInto("", {})).ok());
}

TEST(PublishMessageTest, PayloadsWithAnOwnerAreSentFromWhereTheyLie) {
  auto payload = std::make_shared<std::vector<std::byte>>(PatternBytes(200'000));
  std::vector<OutgoingFrame> frames = FramesOf({{}, {}}, payload);
  for (OutgoingFrame& frame : frames) frame.payload = *payload;
  grpc::ByteBuffer buffer = EncodePublish(FullPublishHeader(), frames);
  frames.clear();
  EXPECT_EQ(payload.use_count(), 3);
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(buffer.Dump(&slices).ok());
  ASSERT_EQ(slices.size(), 4u);
  EXPECT_EQ(reinterpret_cast<const std::byte*>(slices[1].begin()), payload->data());
  EXPECT_EQ(reinterpret_cast<const std::byte*>(slices[3].begin()), payload->data());
  buffer.Clear();
  slices.clear();
  EXPECT_EQ(payload.use_count(), 1);
}

TEST(PublishMessageTest, ReadsMessagesThatAreCutAnywhere) {
  const std::vector<std::vector<std::byte>> payloads = {PatternBytes(40), {}, PatternBytes(33)};
  const std::string wire = GeneratedPublish(FullPublishHeader(), payloads).SerializeAsString();
  std::vector<size_t> everywhere;
  for (size_t cut = 0; cut <= wire.size(); ++cut) {
    everywhere.push_back(cut);
    ExpectPublish(ReceivedFrames::Parse(CutInto(wire, {cut})), payloads);
    if (HasFailure()) return;
  }
  ExpectPublish(ReceivedFrames::Parse(CutInto(wire, everywhere)), payloads);
}

TEST(PublishMessageTest, EveryTruncationIsAnErrorOrAShorterValidMessage) {
  const std::string wire =
      GeneratedPublish(FullPublishHeader(), {PatternBytes(9), PatternBytes(5)}).SerializeAsString();
  for (size_t length = 0; length < wire.size(); ++length) {
    const absl::string_view part = absl::string_view(wire).substr(0, length);
    v1::PublishRequest reference;
    const bool is_valid = reference.ParseFromArray(part.data(), static_cast<int>(part.size()));
    const auto publish = ReceivedFrames::Parse(CutInto(part, {part.size() / 2}));
    EXPECT_EQ(publish.ok(), is_valid) << length;
    EXPECT_TRUE(publish.ok() || absl::IsInvalidArgument(publish.status())) << publish.status();
  }
}

TEST(PublishMessageTest, AFrameEndsWhereItsLengthSays) {
  // The payload of the inner frame reaches into what follows the frame.
  const std::string frame =
      "\xa2\x06\x05"
      "abc";
  EXPECT_TRUE(absl::IsInvalidArgument(
      ReceivedFrames::Parse(CutInto(BytesField(4, frame) + BytesField(4, "zzzz"), {})).status()));
  // A frame that is longer than the message.
  EXPECT_TRUE(absl::IsInvalidArgument(
      ReceivedFrames::Parse(CutInto(std::string("\x22\x7f") + "ab", {})).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      ReceivedFrames::Parse(CutInto(std::string("\x22\xff\xff\xff\xff\x0f") + "ab", {})).status()));
}

TEST(PublishMessageTest, RefusesANamespaceIdOfAnotherLength) {
  for (const size_t length : {1, 31, 33, 64}) {
    const auto publish =
        ReceivedFrames::Parse(CutInto(BytesField(2, std::string(length, 'x')), {}));
    ASSERT_TRUE(absl::IsInvalidArgument(publish.status())) << length;
    EXPECT_THAT(std::string(publish.status().message()), HasSubstr("namespace_id"));
  }
}

TEST(PublishMessageTest, NamesTheLimitThatAMessageExceeds) {
  std::string frames;
  for (size_t i = 0; i < kFramesPerMessageMax; ++i) frames += BytesField(4, "");
  EXPECT_TRUE(ReceivedFrames::Parse(CutInto(frames, {})).ok());
  const auto many = ReceivedFrames::Parse(CutInto(frames + BytesField(4, ""), {}));
  ASSERT_TRUE(absl::IsInvalidArgument(many.status()));
  EXPECT_THAT(std::string(many.status().message()), HasSubstr("kFramesPerMessageMax=64"));
  const auto fields = ReceivedFrames::Parse(
      CutInto(BytesField(4, BytesField(77, std::string(kFrameFieldsBytesMax, 'x'))), {}));
  ASSERT_TRUE(absl::IsInvalidArgument(fields.status()));
  EXPECT_THAT(std::string(fields.status().message()), HasSubstr("kFrameFieldsBytesMax"));
}

TEST(BlockFrameTest, CopyAndChecksumAgreeForAnyPieces) {
  const std::vector<std::byte> bytes = PatternBytes(1'000'003);
  const ByteView all(bytes);
  const std::vector<std::vector<ByteView>> cuts = {
      {all},
      {all.first(1), all.subspan(1)},
      {all.first(131'072), ByteView(), all.subspan(131'072)},
      {all.first(200'000), all.subspan(200'000, 300'000), all.subspan(500'000)}};
  for (const auto& pieces : cuts) {
    std::vector<std::byte> copy(bytes.size());
    EXPECT_EQ(CopyWithChecksum(pieces, copy), Checksum(bytes));
    EXPECT_EQ(copy, bytes);
  }
  EXPECT_EQ(CopyWithChecksum({}, {}), Checksum({}));
}

// 10: memory that a connection may still be sending from is not given out again.
TEST(StagingPoolTest, ReusesABufferOnlyOnceItsLastOwnerIsGone) {
  const auto pool = std::make_shared<StagingPool>();
  StagingPool::Buffer first = pool->Take(5'000);
  const std::byte* const place = first.bytes.data();
  std::shared_ptr<const void> sender = first.owner;
  first = {};
  EXPECT_NE(pool->Take(5'000).bytes.data(), place);
  sender.reset();
  // Two buffers are free now; the first of them is the one that came back last or first, but
  // `place` is among them.
  const StagingPool::Buffer a = pool->Take(5'000);
  const StagingPool::Buffer b = pool->Take(5'000);
  EXPECT_TRUE(a.bytes.data() == place || b.bytes.data() == place);
  EXPECT_NE(a.bytes.data(), b.bytes.data());
}

}  // namespace
}  // namespace ibid
