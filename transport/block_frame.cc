// A frame on the wire (field numbers of proto/ibid/v1/block_frame.proto):
//
//   slice 1: | fields 1..15, those that are not their type's zero | tag of field 100 | payload
//   length | slice 2: | payload: the slot's own memory |
//
// Frames of other protobuf libraries may hold the fields in any order and cut anywhere into slices.
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
  kSessionId = 12,
  kNamespaceId = 13,
  kDurable = 14,
  kIncarnation = 15,
  kPayload = 100,
};

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
  writer.Fixed64(kSessionId, header.session_id);
  writer.OptionalDigest(kNamespaceId, header.namespace_id.digest);
  writer.Varint(kDurable, header.durable ? 1 : 0);
  writer.Fixed64(kIncarnation, header.incarnation);
  if (payload_bytes > 0) writer.LengthOf(kPayload, payload_bytes);
  return static_cast<size_t>(writer.at() - begin);
}

// The payload as a slice that holds `owner` until gRPC drops it.
grpc::Slice OwnedSlice(ByteView payload, std::shared_ptr<const void> owner) {
  auto* held = new std::shared_ptr<const void>(std::move(owner));
  return grpc::Slice(
      const_cast<std::byte*>(payload.data()), payload.size(),
      [](void* user_data) { delete static_cast<std::shared_ptr<const void>*>(user_data); }, held);
}

// Reads the fields of one message; `payload_*` say where its payload lies.
class FieldReader {
 public:
  FieldReader(CodedInputStream* input, FrameHeader* header) : in_(*input), header_(*header) {}

  absl::Status ReadAll() {
    while (true) {
      const uint32_t tag = in_.ReadTag();
      if (tag == 0) break;
      IBID_RETURN_IF_ERROR(ReadField(tag));
    }
    // A tag of 0 in the middle of the message is as wrong as bytes that are no tag.
    if (!in_.ConsumedEntireMessage()) return Malformed("a tag");
    return absl::OkStatus();
  }

  size_t payload_begin() const { return payload_begin_; }
  size_t payload_bytes() const { return payload_bytes_; }

 private:
  static absl::Status Malformed(absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("BlockFrame: malformed ", what));
  }

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
      case Fixed64Tag(kSessionId):
        return ReadU64(&header_.session_id);
      case BytesTag(kNamespaceId):
        return ReadDigest("namespace_id", &header_.namespace_id.digest);
      case VarintTag(kDurable):
        return ReadBool(&header_.durable);
      case Fixed64Tag(kIncarnation):
        return ReadU64(&header_.incarnation);
      case BytesTag(kPayload):
        return ReadPayload();
      default:
        return WireFormatLite::SkipField(&in_, tag) ? absl::OkStatus() : Malformed("unknown field");
    }
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
  absl::Status ReadOutcome() {
    uint32_t number = 0;
    IBID_RETURN_IF_ERROR(ReadU32(&number));
    const bool is_known = number <= static_cast<uint32_t>(BlockOutcome::kWanted);
    header_.outcome = is_known ? static_cast<BlockOutcome>(number) : BlockOutcome::kUnspecified;
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
          absl::StrCat("BlockFrame: ", what, " has ", length, " bytes, not ", digest->size()));
    }
    return in_.ReadRaw(digest->data(), static_cast<int>(digest->size())) ? absl::OkStatus()
                                                                         : Malformed(what);
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

  CodedInputStream& in_;
  FrameHeader& header_;
  size_t payload_begin_ = 0;
  size_t payload_bytes_ = 0;
};

}  // namespace

grpc::ByteBuffer EncodeFrame(const FrameHeader& header, ByteView payload,
                             std::shared_ptr<const void> owner) {
  IBID_CHECK(payload.size() <= kBlockPayloadBytesMax) << payload.size();
  IBID_CHECK(header.tier.size() <= kTextFieldBytesMax);
  uint8_t fixed_room[kHeaderBytesMax + kTextFieldBytesMax];
  const size_t fields_bytes = WriteFields(header, payload.size(), fixed_room);
  if (payload.empty()) {
    const grpc::Slice slice(fixed_room, fields_bytes);
    return grpc::ByteBuffer(&slice, 1);
  }
  const grpc::Slice slices[] = {grpc::Slice(fixed_room, fields_bytes),
                                OwnedSlice(payload, std::move(owner))};
  return grpc::ByteBuffer(slices, 2);
}

absl::StatusOr<ReceivedFrame> ReceivedFrame::Parse(const grpc::ByteBuffer& message) {
  if (message.Length() > kMessageBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "BlockFrame: ", message.Length(), " bytes, over kMessageBytesMax=", kMessageBytesMax));
  }
  ReceivedFrame frame;
  if (!message.Valid() || !message.Dump(&frame.slices_).ok()) {
    return absl::InvalidArgumentError("BlockFrame: the message has no bytes to read");
  }
  grpc::ByteBuffer readable(message);  // shares the slices
  grpc::ProtoBufferReader reader(&readable);
  CodedInputStream input(&reader);
  FieldReader fields(&input, &frame.header_);
  IBID_RETURN_IF_ERROR(fields.ReadAll());
  frame.payload_begin_ = fields.payload_begin();
  frame.payload_bytes_ = fields.payload_bytes();
  const size_t fields_bytes = message.Length() - frame.payload_bytes_;
  if (fields_bytes > kFrameFieldsBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "BlockFrame: ", fields_bytes,
        " bytes besides the payload, over kFrameFieldsBytesMax=", kFrameFieldsBytesMax));
  }
  return frame;
}

std::vector<ByteView> ReceivedFrame::payload_pieces() const {
  std::vector<ByteView> pieces;
  size_t skip = payload_begin_;
  size_t left = payload_bytes_;
  for (const grpc::Slice& slice : slices_) {
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
