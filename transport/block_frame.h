// BlockFrame (proto/ibid/v1/block_frame.proto) and PublishRequest (cache.proto) without protobuf
// objects: payloads are sent from where they lie and read straight into their destination, and
// still any protobuf client can write and read such messages.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/block_key.h"
#include "core/checksum.h"

namespace ibid {

// What happened to one block of a batch: the numbers of v1.BlockOutcome.
enum class BlockOutcome : uint8_t {
  kUnspecified = 0,
  kOk = 1,        // stored; or its payload came
  kPresent = 2,   // publish: the same content is already stored
  kPending = 3,   // publish, offer: another session is filling it
  kMiss = 4,      // fetch: not stored (any more)
  kRejected = 5,  // publish: a limit was reached
  kCorrupt = 6,   // the checksum did not match; the bytes are gone
  kInvalid = 7,   // publish: size or fields do not fit the namespace
  kWanted = 8,    // offer: please publish it; reserved for this session
};

// All fields but the payload. A digest of zeros is an absent one.
struct FrameHeader {
  uint32_t index = 0;
  BlockKey key;
  BlockKey parent;
  uint32_t token_count = 0;
  uint32_t position = 0;
  uint64_t checksum = 0;
  BlockOutcome outcome = BlockOutcome::kUnspecified;
  std::string tier;
  uint32_t first_layer = 0;
  uint32_t layer_count = 0;
  uint64_t range_checksum = 0;
  uint64_t incarnation = 0;
  uint32_t shared_bytes = 0;  // 0: the payload is in the frame
  uint64_t shared_offset = 0;
  uint32_t shared_generation = 0;

  bool operator==(const FrameHeader&) const = default;
};

// Whose blocks the frames of a publish stream are.
struct PublishHeader {
  uint64_t session_id = 0;
  NamespaceId namespace_id;
  bool durable = false;

  bool operator==(const PublishHeader&) const = default;
};

// A frame to be sent. Without an owner the payload is copied into the message; else the message
// refers to it, and the owner is released on any thread once gRPC needs it no more, which may be
// after the call has ended.
struct OutgoingFrame {
  FrameHeader header;
  ByteView payload;
  std::shared_ptr<const void> owner;
};

// A PublishRequest. REQUIRES: at most kFramesPerMessageMax frames, of kBlockPayloadBytesMax payload
// bytes in all.
grpc::ByteBuffer EncodePublish(const PublishHeader& header, std::span<const OutgoingFrame> frames);

// A FetchResponse: a PublishRequest without its header. REQUIRES: as of EncodePublish.
grpc::ByteBuffer EncodeFetch(std::span<const OutgoingFrame> frames);

// A received frame: its fields, and where in the message the payload lies. Owns the message's
// memory, with the other frames of the message. Move-only.
class ReceivedFrame {
 public:
  ReceivedFrame(ReceivedFrame&&) = default;
  ReceivedFrame& operator=(ReceivedFrame&&) = default;

  const FrameHeader& header() const { return header_; }
  size_t payload_bytes() const { return payload_bytes_; }
  // The payload's pieces in order; valid as long as this lives.
  std::vector<ByteView> payload_pieces() const;

  // Copies the payload to `destination` and returns its checksum, in one pass. REQUIRES:
  // destination.size() == payload_bytes().
  uint64_t CopyPayload(MutableByteView destination) const;

 private:
  friend struct ReceivedFrames;

  ReceivedFrame() = default;

  FrameHeader header_;
  std::shared_ptr<const std::vector<grpc::Slice>> slices_;
  size_t payload_begin_ = 0;  // counted from the first byte of the message
  size_t payload_bytes_ = 0;
};

// A received PublishRequest or FetchResponse.
struct ReceivedFrames {
  // Fields may come in any order and more than once (the last counts); unknown ones are skipped.
  // Errors: InvalidArgument (no such message; a digest that is not 32 bytes; a limit of
  // transport/limits.h, by name).
  static absl::StatusOr<ReceivedFrames> Parse(const grpc::ByteBuffer& message);

  PublishHeader header;  // of a PublishRequest
  std::vector<ReceivedFrame> frames;

 private:
  class Reader;
};

// Copies and makes the checksum of what was copied, a piece at a time while it is in the
// processor's cache. REQUIRES: destination.size() is the sum of the pieces.
uint64_t CopyWithChecksum(std::span<const ByteView> pieces, MutableByteView destination);

}  // namespace ibid
