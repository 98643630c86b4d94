// A frame on the wire (field numbers of proto/ibid/v1/block_frame.proto):
//
//   slice 1: | fields 1..15, those that are not their type's zero | tag of field 100 | payload
//   length | slice 2: | payload: the slot's own memory |
//
// A PublishRequest (cache.proto) is its fields 1..3 and then, for each frame, the tag of field 4,
// the frame's length and the frame; a FetchResponse is the same without fields 1..3. What lies
// between two payloads with an owner is one slice. Messages of other protobuf libraries may hold
// the fields in any order and cut anywhere into slices.
#include "transport/block_frame.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "transport/limits.h"

namespace ibid {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

constexpr uint32_t Tag(int field, WireFormatLite::WireType type) {
  return static_cast<uint32_t>(field) << 3 | static_cast<uint32_t>(type);
}
constexpr uint32_t VarintTag(int field) { return Tag(field, WireFormatLite::WIRETYPE_VARINT); }
constexpr uint32_t Fixed64Tag(int field) { return Tag(field, WireFormatLite::WIRETYPE_FIXED64); }
constexpr uint32_t BytesTag(int field) {
  return Tag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}

enum Field : int {
  kIndex = 1,
  kKey = 2,
  kParent = 3,
  kTokenCount = 4,
  kPosition = 5,
  kChecksum = 6,
  kOutcome = 7,
  kTier = 8,
  kFirstLayer = 9,
  kLayerCount = 10,
  kRangeChecksum = 11,
  kIncarnation = 12,
  kSharedBytes = 13,
  kSharedOffset = 14,
  kSharedGeneration = 15,
  kPayload = 100,
};

enum PublishField : int { kSessionId = 1, kNamespaceId = 2, kDurable = 3, kFrames = 4 };

// Small enough to stay in the second-level cache between the copy and the checksum.
constexpr size_t kCopyPieceBytes = size_t{128} << 10;

// Writes fields that differ from their default, as proto3 does.
class FieldWriter {
 public:
  explicit FieldWriter(uint8_t* at) : at_(at) {}

  void Varint(int field, uint32_t value) {
    if (value == 0) return;
    at_ = CodedOutputStream::WriteVarint32ToArray(VarintTag(field), at_);
    at_ = CodedOutputStream::WriteVarint32ToArray(value, at_);
  }
  void Fixed64(int field, uint64_t value) {
    if (value == 0) return;
    at_ = CodedOutputStream::WriteVarint32ToArray(Fixed64Tag(field), at_);
    at_ = CodedOutputStream::WriteLittleEndian64ToArray(value, at_);
  }
  void Bytes(int field, absl::string_view bytes) {
    if (bytes.empty()) return;
    LengthOf(field, bytes.size());
    std::memcpy(at_, bytes.data(), bytes.size());
    at_ += bytes.size();
  }
  void OptionalDigest(int field, const Digest& digest) {
    if (digest != Digest{}) Bytes(field, DigestBytes(digest));
  }
  void LengthOf(int field, size_t bytes_count) {
    at_ = CodedOutputStream::WriteVarint32ToArray(BytesTag(field), at_);
    at_ = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(bytes_count), at_);
  }
  uint8_t* at() const { return at_; }

 private:
  uint8_t* at_;
};

// Room for all fields at their longest, without the tier's text.
constexpr size_t kHeaderBytesMax = 512;

size_t WriteFields(const FrameHeader& header, size_t payload_bytes, uint8_t* begin) {
  FieldWriter writer(begin);
  writer.Varint(kIndex, header.index);
  writer.OptionalDigest(kKey, header.key.digest);
  writer.OptionalDigest(kParent, header.parent.digest);
  writer.Varint(kTokenCount, header.token_count);
  writer.Varint(kPosition, header.position);
  writer.Fixed64(kChecksum, header.checksum);
  writer.Varint(kOutcome, static_cast<uint32_t>(header.outcome));
  writer.Bytes(kTier, header.tier);
  writer.Varint(kFirstLayer, header.first_layer);
  writer.Varint(kLayerCount, header.layer_count);
  writer.Fixed64(kRangeChecksum, header.range_checksum);
  writer.Fixed64(kIncarnation, header.incarnation);
  writer.Varint(kSharedBytes, header.shared_bytes);
  writer.Fixed64(kSharedOffset, header.shared_offset);
  writer.Varint(kSharedGeneration, header.shared_generation);
  if (payload_bytes > 0) writer.LengthOf(kPayload, payload_bytes);
  return static_cast<size_t>(writer.at() - begin);
}

size_t WritePublishFields(const PublishHeader& header, uint8_t* begin) {
  FieldWriter writer(begin);
  writer.Fixed64(kSessionId, header.session_id);
  writer.OptionalDigest(kNamespaceId, header.namespace_id.digest);
  writer.Varint(kDurable, header.durable ? 1 : 0);
  return static_cast<size_t>(writer.at() - begin);
}

// The payload as a slice that holds `owner` until gRPC drops it.
grpc::Slice OwnedSlice(ByteView payload, std::shared_ptr<const void> owner) {
  auto* held = new std::shared_ptr<const void>(std::move(owner));
  return grpc::Slice(
      const_cast<std::byte*>(payload.data()), payload.size(),
      [](void* user_data) { delete static_cast<std::shared_ptr<const void>*>(user_data); }, held);
}

// The fields of protobuf types. Errors: InvalidArgument, which names `message`.
class FieldReader {
 public:
  FieldReader(absl::string_view message, CodedInputStream* input)
      : in_(*input), message_(message) {}

 protected:
  absl::Status Malformed(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(message_, ": malformed ", what));
  }

  // Hands each tag to `read_field`, which reads what follows it.
  template <typename ReadField>
  absl::Status ReadAll(const ReadField& read_field) {
    while (true) {
      const uint32_t tag = in_.ReadTag();
      if (tag == 0) break;
      IBID_RETURN_IF_ERROR(read_field(tag));
    }
    // A tag of 0 in the middle of the message is as wrong as bytes that are no tag.
    if (!in_.ConsumedEntireMessage()) return Malformed("a tag");
    return absl::OkStatus();
  }

  absl::Status Skip(uint32_t tag) {
    return WireFormatLite::SkipField(&in_, tag) ? absl::OkStatus() : Malformed("unknown field");
  }
  absl::Status ReadU32(uint32_t* value) {
    return in_.ReadVarint32(value) ? absl::OkStatus() : Malformed("integer");
  }
  absl::Status ReadU64(uint64_t* value) {
    return in_.ReadLittleEndian64(value) ? absl::OkStatus() : Malformed("fixed64");
  }
  absl::Status ReadBool(bool* value) {
    uint64_t varint = 0;
    if (!in_.ReadVarint64(&varint)) return Malformed("bool");
    *value = varint != 0;
    return absl::OkStatus();
  }
  absl::Status ReadDigest(absl::string_view what, Digest* digest) {
    uint32_t length = 0;
    if (!in_.ReadVarint32(&length)) return Malformed(what);
    if (length == 0) {
      *digest = Digest{};
      return absl::OkStatus();
    }
    if (length != digest->size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(message_, ": ", what, " has ", length, " bytes, not ", digest->size()));
    }
    return in_.ReadRaw(digest->data(), static_cast<int>(digest->size())) ? absl::OkStatus()
                                                                         : Malformed(what);
  }

  CodedInputStream& in_;

 private:
  const absl::string_view message_;
};

// Reads one frame; `payload_*` say where its payload lies.
class FrameReader : public FieldReader {
 public:
  FrameReader(CodedInputStream* input, FrameHeader* header)
      : FieldReader("BlockFrame", input), header_(*header) {}

  absl::Status Read() {
    return ReadAll([this](uint32_t tag) { return ReadField(tag); });
  }

  size_t payload_begin() const { return payload_begin_; }
  size_t payload_bytes() const { return payload_bytes_; }

 private:
  absl::Status ReadField(uint32_t tag) {
    switch (tag) {
      case VarintTag(kIndex):
        return ReadU32(&header_.index);
      case BytesTag(kKey):
        return ReadDigest("key", &header_.key.digest);
      case BytesTag(kParent):
        return ReadDigest("parent", &header_.parent.digest);
      case VarintTag(kTokenCount):
        return ReadU32(&header_.token_count);
      case VarintTag(kPosition):
        return ReadU32(&header_.position);
      case Fixed64Tag(kChecksum):
        return ReadU64(&header_.checksum);
      case VarintTag(kOutcome):
        return ReadOutcome();
      case BytesTag(kTier):
        return ReadTier();
      case VarintTag(kFirstLayer):
        return ReadU32(&header_.first_layer);
      case VarintTag(kLayerCount):
        return ReadU32(&header_.layer_count);
      case Fixed64Tag(kRangeChecksum):
        return ReadU64(&header_.range_checksum);
      case Fixed64Tag(kIncarnation):
        return ReadU64(&header_.incarnation);
      case VarintTag(kSharedBytes):
        return ReadU32(&header_.shared_bytes);
      case Fixed64Tag(kSharedOffset):
        return ReadU64(&header_.shared_offset);
      case VarintTag(kSharedGeneration):
        return ReadU32(&header_.shared_generation);
      case BytesTag(kPayload):
        return ReadPayload();
      default:
        return Skip(tag);
    }
  }

  absl::Status ReadOutcome() {
    uint32_t number = 0;
    IBID_RETURN_IF_ERROR(ReadU32(&number));
    const bool is_known = number <= static_cast<uint32_t>(BlockOutcome::kWanted);
    header_.outcome = is_known ? static_cast<BlockOutcome>(number) : BlockOutcome::kUnspecified;
    return absl::OkStatus();
  }
  absl::Status ReadTier() {
    uint32_t length = 0;
    if (!in_.ReadVarint32(&length)) return Malformed("tier");
    if (length > kTextFieldBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "BlockFrame: tier has ", length, " bytes, over kTextFieldBytesMax=", kTextFieldBytesMax));
    }
    return in_.ReadString(&header_.tier, static_cast<int>(length)) ? absl::OkStatus()
                                                                   : Malformed("tier");
  }
  absl::Status ReadPayload() {
    uint32_t length = 0;
    if (!in_.ReadVarint32(&length)) return Malformed("payload length");
    if (length > kBlockPayloadBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("BlockFrame: payload has ", length,
                       " bytes, over kBlockPayloadBytesMax=", kBlockPayloadBytesMax));
    }
    payload_begin_ = static_cast<size_t>(in_.CurrentPosition());
    payload_bytes_ = length;
    return in_.Skip(static_cast<int>(length)) ? absl::OkStatus()
                                              : Malformed("payload: it is cut short");
  }

  FrameHeader& header_;
  size_t payload_begin_ = 0;
  size_t payload_bytes_ = 0;
};

absl::Status CheckMessage(absl::string_view what, const grpc::ByteBuffer& message) {
  if (message.Length() <= kMessageBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      what, ": ", message.Length(), " bytes, over kMessageBytesMax=", kMessageBytesMax));
}

absl::Status CheckFields(absl::string_view what, size_t fields_bytes) {
  if (fields_bytes <= kFrameFieldsBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", fields_bytes,
                                                 " bytes besides the payload, over "
                                                 "kFrameFieldsBytesMax=",
                                                 kFrameFieldsBytesMax));
}

using Slices = std::shared_ptr<const std::vector<grpc::Slice>>;

absl::StatusOr<Slices> SlicesOf(absl::string_view what, const grpc::ByteBuffer& message) {
  auto slices = std::make_shared<std::vector<grpc::Slice>>();
  if (!message.Valid() || !message.Dump(slices.get()).ok()) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": the message has no bytes to read"));
  }
  return slices;
}

}  // namespace

namespace {

// What a message of publish is made of: pieces that are copied into one slice, and payloads that
// are slices of their own.
class PublishWriter {
 public:
  void Copy(const void* bytes, size_t count) {
    const auto* begin = static_cast<const uint8_t*>(bytes);
    copied_.insert(copied_.end(), begin, begin + count);
  }
  void Refer(ByteView payload, std::shared_ptr<const void> owner) {
    Flush();
    slices_.push_back(OwnedSlice(payload, std::move(owner)));
  }
  grpc::ByteBuffer Finish() {
    Flush();
    return grpc::ByteBuffer(slices_.data(), slices_.size());
  }

 private:
  void Flush() {
    if (copied_.empty()) return;
    slices_.emplace_back(copied_.data(), copied_.size());
    copied_.clear();
  }

  std::vector<uint8_t> copied_;
  std::vector<grpc::Slice> slices_;
};

}  // namespace

grpc::ByteBuffer EncodePublish(const PublishHeader& header, std::span<const OutgoingFrame> frames) {
  IBID_CHECK(frames.size() <= kFramesPerMessageMax) << frames.size();
  size_t payloads_bytes = 0;
  PublishWriter writer;
  uint8_t fields[kHeaderBytesMax + kTextFieldBytesMax];
  writer.Copy(fields, WritePublishFields(header, fields));
  for (const OutgoingFrame& frame : frames) {
    payloads_bytes += frame.payload.size();
    IBID_CHECK(payloads_bytes <= kBlockPayloadBytesMax) << payloads_bytes;
    IBID_CHECK(frame.header.tier.size() <= kTextFieldBytesMax);
    const size_t fields_bytes = WriteFields(frame.header, frame.payload.size(), fields);
    uint8_t length[kHeaderBytesMax];
    FieldWriter prefix(length);
    prefix.LengthOf(kFrames, fields_bytes + frame.payload.size());
    writer.Copy(length, static_cast<size_t>(prefix.at() - length));
    writer.Copy(fields, fields_bytes);
    if (frame.owner != nullptr && !frame.payload.empty()) {
      writer.Refer(frame.payload, frame.owner);
    } else {
      writer.Copy(frame.payload.data(), frame.payload.size());
    }
  }
  return writer.Finish();
}

// A PublishRequest or a FetchResponse, in errors.
constexpr absl::string_view kFramesMessage = "message of frames";

// Reads one of them, its frames where they lie in `slices`.
class ReceivedFrames::Reader : public FieldReader {
 public:
  Reader(const Slices& slices, size_t message_bytes, CodedInputStream* input, ReceivedFrames* into)
      : FieldReader(kFramesMessage, input),
        slices_(slices),
        message_bytes_(message_bytes),
        into_(*into) {}

  absl::Status Read() {
    IBID_RETURN_IF_ERROR(ReadAll([this](uint32_t tag) { return ReadField(tag); }));
    return CheckFields(kFramesMessage, message_bytes_ - payloads_bytes_);
  }

 private:
  absl::Status ReadField(uint32_t tag) {
    switch (tag) {
      case Fixed64Tag(kSessionId):
        return ReadU64(&into_.header.session_id);
      case BytesTag(kNamespaceId):
        return ReadDigest("namespace_id", &into_.header.namespace_id.digest);
      case VarintTag(kDurable):
        return ReadBool(&into_.header.durable);
      case BytesTag(kFrames):
        return ReadFrame();
      default:
        return Skip(tag);
    }
  }

  absl::Status ReadFrame() {
    uint32_t length = 0;
    const bool is_whole = in_.ReadVarint32(&length) &&
                          length <= message_bytes_ - static_cast<size_t>(in_.CurrentPosition());
    if (!is_whole) return Malformed("frame: it is cut short");
    if (into_.frames.size() >= kFramesPerMessageMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          kFramesMessage, ": more frames than kFramesPerMessageMax=", kFramesPerMessageMax));
    }
    ReceivedFrame frame;
    frame.slices_ = slices_;
    const CodedInputStream::Limit limit = in_.PushLimit(static_cast<int>(length));
    FrameReader fields(&in_, &frame.header_);
    IBID_RETURN_IF_ERROR(fields.Read());
    in_.PopLimit(limit);
    frame.payload_begin_ = fields.payload_begin();
    frame.payload_bytes_ = fields.payload_bytes();
    payloads_bytes_ += frame.payload_bytes_;
    into_.frames.push_back(std::move(frame));
    return absl::OkStatus();
  }

  const Slices& slices_;
  const size_t message_bytes_;
  ReceivedFrames& into_;
  size_t payloads_bytes_ = 0;
};

grpc::ByteBuffer EncodeFetch(std::span<const OutgoingFrame> frames) {
  return EncodePublish(PublishHeader{}, frames);
}

absl::StatusOr<ReceivedFrames> ReceivedFrames::Parse(const grpc::ByteBuffer& message) {
  IBID_RETURN_IF_ERROR(CheckMessage(kFramesMessage, message));
  IBID_ASSIGN_OR_RETURN(const Slices slices, SlicesOf(kFramesMessage, message));
  grpc::ByteBuffer readable(message);  // shares the slices
  grpc::ProtoBufferReader reader(&readable);
  CodedInputStream input(&reader);
  ReceivedFrames publish;
  IBID_RETURN_IF_ERROR(Reader(slices, message.Length(), &input, &publish).Read());
  return publish;
}

std::vector<ByteView> ReceivedFrame::payload_pieces() const {
  std::vector<ByteView> pieces;
  size_t skip = payload_begin_;
  size_t left = payload_bytes_;
  for (const grpc::Slice& slice : *slices_) {
    if (left == 0) break;
    if (skip >= slice.size()) {
      skip -= slice.size();
      continue;
    }
    const size_t count = std::min(slice.size() - skip, left);
    pieces.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()) + skip, count);
    left -= count;
    skip = 0;
  }
  IBID_CHECK(left == 0);
  return pieces;
}

uint64_t ReceivedFrame::CopyPayload(MutableByteView destination) const {
  return CopyWithChecksum(payload_pieces(), destination);
}

uint64_t CopyWithChecksum(std::span<const ByteView> pieces, MutableByteView destination) {
  ChecksumStream checksum;
  size_t done = 0;
  size_t hashed = 0;
  for (ByteView piece : pieces) {
    while (!piece.empty()) {
      const size_t count = std::min(piece.size(), kCopyPieceBytes);
      IBID_CHECK(done + count <= destination.size())
          << done << " " << count << " " << destination.size();
      std::memcpy(destination.data() + done, piece.data(), count);
      done += count;
      piece = piece.subspan(count);
      if (done - hashed >= kCopyPieceBytes) {
        checksum.Add(destination.subspan(hashed, done - hashed));
        hashed = done;
      }
    }
  }
  IBID_CHECK(done == destination.size()) << done << " " << destination.size();
  checksum.Add(destination.subspan(hashed));
  return checksum.Finish();
}

}  // namespace ibid
