// Protobuf messages of calls that a service takes as raw bytes.
#pragma once

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/proto_buffer_writer.h>

#include "absl/status/statusor.h"

namespace ibid {

// Errors: InvalidArgument.
template <typename Message>
absl::StatusOr<Message> ParseMessage(const grpc::ByteBuffer& bytes) {
  grpc::ByteBuffer readable(bytes);  // shares the slices; parsing consumes it
  Message message;
  if (!grpc::SerializationTraits<Message>::Deserialize(&readable, &message).ok()) {
    return absl::InvalidArgumentError("the message is malformed");
  }
  return message;
}

template <typename Message>
grpc::ByteBuffer SerializeMessage(const Message& message) {
  grpc::ByteBuffer bytes;
  bool is_owned = false;
  grpc::SerializationTraits<Message>::Serialize(message, &bytes, &is_owned);
  return bytes;
}

}  // namespace ibid
