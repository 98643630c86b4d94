// Frames for the tests of transport/, and the ways to cut them into slices.
#pragma once

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "ibid/v1/cache.pb.h"
#include "transport/block_frame.h"

namespace ibid {

inline Digest FilledDigest(uint8_t first) {
  Digest digest;
  std::iota(digest.begin(), digest.end(), first);
  return digest;
}

// Every field differs from its default and from the others.
inline FrameHeader FullHeader() {
  FrameHeader header;
  header.index = 70'001;
  header.key = BlockKey{FilledDigest(1)};
  header.parent = BlockKey{FilledDigest(33)};
  header.token_count = 16;
  header.position = 300;
  header.checksum = 0x0123456789abcdefull;
  header.outcome = BlockOutcome::kOk;
  header.tier = "host";
  header.first_layer = 2;
  header.layer_count = 5;
  header.range_checksum = 0xfedcba9876543210ull;
  header.incarnation = 7;
  header.shared_bytes = 4'096;
  header.shared_offset = uint64_t{1} << 40;
  header.shared_generation = 3'000'000'000;
  return header;
}

inline std::vector<std::byte> PatternBytes(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 131 + (i >> 8));
  return bytes;
}

inline std::string FlatBytes(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string flat;
  if (!buffer.Dump(&slices).ok()) return flat;
  for (const grpc::Slice& slice : slices)
    flat.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return flat;
}

// `bytes` as slices that end at each of `cuts` (ascending).
inline grpc::ByteBuffer CutInto(absl::string_view bytes, const std::vector<size_t>& cuts) {
  std::vector<grpc::Slice> slices;
  size_t begin = 0;
  for (const size_t cut : cuts) {
    slices.emplace_back(bytes.data() + begin, cut - begin);
    begin = cut;
  }
  slices.emplace_back(bytes.data() + begin, bytes.size() - begin);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

// A field of bytes in wire form.
inline std::string BytesField(int field, absl::string_view bytes) {
  std::string out;
  google::protobuf::io::StringOutputStream stream(&out);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.WriteTag(static_cast<uint32_t>(field) << 3 | 2);
  coded.WriteVarint32(static_cast<uint32_t>(bytes.size()));
  coded.WriteRaw(bytes.data(), static_cast<int>(bytes.size()));
  coded.Trim();
  return out;
}

// Reads `wire` as the only frame of a message that is cut at `cuts` of the frame.
inline absl::StatusOr<ReceivedFrame> ParseFrame(absl::string_view wire, std::vector<size_t> cuts) {
  const std::string message = BytesField(4, wire);
  for (size_t& cut : cuts) cut += message.size() - wire.size();
  absl::StatusOr<ReceivedFrames> received = ReceivedFrames::Parse(CutInto(message, cuts));
  if (!received.ok()) return received.status();
  return std::move(received->frames.front());
}

// A message with this frame alone.
inline grpc::ByteBuffer EncodeFrame(const FrameHeader& header, ByteView payload,
                                    std::shared_ptr<const void> owner) {
  const OutgoingFrame frame{header, payload, std::move(owner)};
  return EncodeFetch({&frame, 1});
}

inline std::string AsText(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline std::string PayloadText(const ReceivedFrame& frame) {
  std::string text;
  for (const ByteView piece : frame.payload_pieces()) text += AsText(piece);
  return text;
}

inline std::string DigestText(const Digest& digest) { return {digest.begin(), digest.end()}; }

// The same frame as an object of the generated class.
inline v1::BlockFrame GeneratedFrame(const FrameHeader& header, ByteView payload) {
  v1::BlockFrame frame;
  frame.set_index(header.index);
  frame.set_key(DigestText(header.key.digest));
  frame.set_parent(DigestText(header.parent.digest));
  frame.set_token_count(header.token_count);
  frame.set_position(header.position);
  frame.set_checksum(header.checksum);
  frame.set_outcome(static_cast<v1::BlockOutcome>(header.outcome));
  frame.set_tier(header.tier);
  frame.set_first_layer(header.first_layer);
  frame.set_layer_count(header.layer_count);
  frame.set_range_checksum(header.range_checksum);
  frame.set_incarnation(header.incarnation);
  frame.set_shared_bytes(header.shared_bytes);
  frame.set_shared_offset(header.shared_offset);
  frame.set_shared_generation(header.shared_generation);
  frame.set_payload(AsText(payload));
  return frame;
}

inline PublishHeader FullPublishHeader() {
  return {0xffffffffffffffffull, NamespaceId{FilledDigest(65)}, /*durable=*/true};
}

// The message of frames that differ in their index, with these payloads.
inline v1::PublishRequest GeneratedPublish(const PublishHeader& header,
                                           const std::vector<std::vector<std::byte>>& payloads) {
  v1::PublishRequest request;
  request.set_session_id(header.session_id);
  request.set_namespace_id(DigestText(header.namespace_id.digest));
  request.set_durable(header.durable);
  for (size_t i = 0; i < payloads.size(); ++i) {
    FrameHeader frame = FullHeader();
    frame.index = static_cast<uint32_t>(i);
    *request.add_frames() = GeneratedFrame(frame, payloads[i]);
  }
  return request;
}

}  // namespace ibid
