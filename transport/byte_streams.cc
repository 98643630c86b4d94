// Both calls run on the caller's thread alone, Fetch by blocking reads and Publish by a completion
// queue of its own: once they have returned, nothing is left that could touch the caller's memory.
#include "transport/byte_streams.h"

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "ibid/v1/cache.grpc.pb.h"
#include "transport/call_deadline.h"
#include "transport/key_bytes.h"
#include "transport/limits.h"
#include "transport/status_conversion.h"

namespace ibid {
namespace {

constexpr char kFetchMethod[] = "/ibid.v1.CacheService/Fetch";
constexpr char kPublishMethod[] = "/ibid.v1.CacheService/Publish";

v1::FetchRequest MakeFetchRequest(const FetchCall& call, std::span<const BlockKey> keys) {
  v1::FetchRequest request;
  request.set_session_id(call.session_id);
  request.set_namespace_id(DigestString(call.ns.digest));
  request.set_lease_id(call.lease_id);
  request.set_keys(EncodeKeys(keys));
  request.set_first_layer(call.first_layer);
  request.set_layer_count(call.layer_count);
  request.set_takes_shared(call.shm != nullptr && call.lease_id != 0);
  return request;
}

// Reads the shared slot to `into`. Whether it is still that of the block is looked at last.
BlockOutcome TakeShared(const FrameHeader& header, const FetchCall& call, uint64_t expected,
                        MutableByteView into) {
  if (call.shm == nullptr) return BlockOutcome::kCorrupt;
  const ArenaPlace place{header.shared_offset, header.shared_bytes, header.shared_generation};
  const std::optional<ByteView> bytes = call.shm->BytesAt(place);
  if (!bytes.has_value()) return BlockOutcome::kCorrupt;
  const uint64_t computed = CopyLarge(*bytes, into);
  if (!call.shm->IsCurrent(place)) return BlockOutcome::kMiss;
  return computed == expected ? BlockOutcome::kOk : BlockOutcome::kCorrupt;
}

// Whether the frame has the block of `key` in the asked form.
bool IsAsAsked(const ReceivedFrame& frame, const FetchCall& call, const BlockKey& key,
               uint64_t payload_bytes) {
  const FrameHeader& header = frame.header();
  const uint64_t bytes = header.shared_bytes > 0 ? header.shared_bytes : frame.payload_bytes();
  return header.key == key && bytes == payload_bytes && header.layer_count == call.layer_count &&
         (call.layer_count == 0 || header.first_layer == call.first_layer);
}

// Takes the frame's payload to `into`. The bytes count only if they are those of `key` in the asked
// form.
BlockOutcome TakeFrame(const ReceivedFrame& frame, const FetchCall& call, const BlockKey& key,
                       MutableByteView into) {
  const FrameHeader& header = frame.header();
  if (header.outcome == BlockOutcome::kCorrupt) return BlockOutcome::kCorrupt;
  if (header.outcome != BlockOutcome::kOk) return BlockOutcome::kMiss;
  if (!IsAsAsked(frame, call, key, into.size())) return BlockOutcome::kCorrupt;
  const uint64_t expected = call.layer_count == 0 ? header.checksum : header.range_checksum;
  if (header.shared_bytes > 0) return TakeShared(header, call, expected, into);
  return frame.CopyPayload(into) == expected ? BlockOutcome::kOk : BlockOutcome::kCorrupt;
}

// Asks for the blocks of `keys` and hands each frame to `take`, in their order.
absl::Status ReadFrames(grpc::Channel* channel, const FetchCall& call,
                        std::span<const BlockKey> keys, absl::Duration timeout,
                        const std::function<void(uint32_t, const ReceivedFrame&)>& take) {
  if (keys.empty()) return absl::OkStatus();
  grpc::ClientContext context;
  SetTimeout(timeout, &context);
  const grpc::internal::RpcMethod method(kFetchMethod, grpc::internal::RpcMethod::SERVER_STREAMING);
  const std::unique_ptr<grpc::ClientReader<grpc::ByteBuffer>> stream(
      grpc::internal::ClientReaderFactory<grpc::ByteBuffer>::Create(channel, method, &context,
                                                                    MakeFetchRequest(call, keys)));
  absl::Status own_error;
  uint32_t next = 0;
  grpc::ByteBuffer message;
  while (own_error.ok() && stream->Read(&message)) {
    const absl::StatusOr<ReceivedFrames> received = ReceivedFrames::Parse(message);
    if (!received.ok()) {
      own_error = absl::InternalError(
          absl::StrCat("Fetch: the server sent a wrong message: ", received.status().message()));
      break;
    }
    for (const ReceivedFrame& frame : received->frames) {
      if (next >= keys.size() || frame.header().index != next) {
        own_error = absl::InternalError(
            absl::StrCat("Fetch: frame ", frame.header().index, " came for block ", next));
        break;
      }
      take(next++, frame);
    }
  }
  if (!own_error.ok()) context.TryCancel();
  const grpc::Status status = stream->Finish();
  if (!own_error.ok()) return own_error;
  IBID_RETURN_IF_ERROR(FromGrpcStatus(status));
  if (next == keys.size()) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("Fetch: the stream ended after ", next, " of ", keys.size(), " blocks"));
}

// One Publish call: frames run ahead of the results as far as transport/limits.h says.
class PublishRun {
 public:
  PublishRun(StagingPool* staging, const PublishCall& call, std::span<const PublishBlock> blocks,
             const std::function<void(const PublishBlockResult&)>& on_result)
      : staging_(staging),
        call_(call),
        blocks_(blocks),
        on_result_(on_result),
        is_answered_(blocks.size()),
        staged_(blocks.size()) {}

  absl::StatusOr<uint64_t> Run(const std::shared_ptr<grpc::Channel>& channel,
                               absl::Duration timeout) {
    SetTimeout(timeout, &context_);
    grpc::GenericStub stub(channel);
    stream_ = stub.PrepareCall(&context_, kPublishMethod, &queue_);
    stream_->StartCall(TagOf(Step::kStart));
    void* tag = nullptr;
    bool ok = false;
    while (!is_finished_ && queue_.Next(&tag, &ok))
      OnStep(static_cast<Step>(reinterpret_cast<uintptr_t>(tag)), ok);
    queue_.Shutdown();
    while (queue_.Next(&tag, &ok)) {
    }
    if (!own_error_.ok()) return own_error_;
    IBID_RETURN_IF_ERROR(FromGrpcStatus(final_status_));
    if (answered_count_ < blocks_.size()) {
      return absl::InternalError(absl::StrCat("Publish: the server answered ", answered_count_,
                                              " of ", blocks_.size(), " blocks"));
    }
    return incarnation_;
  }

 private:
  enum class Step : uintptr_t { kStart = 1, kWrite, kRead, kFinish };
  static void* TagOf(Step step) { return reinterpret_cast<void*>(static_cast<uintptr_t>(step)); }

  void OnStep(Step step, bool ok) {
    switch (step) {
      case Step::kStart:
        if (!ok) return Finish();
        stream_->Read(&incoming_, TagOf(Step::kRead));
        return WriteNext();
      case Step::kWrite:
        is_writing_ = false;
        outgoing_.Clear();
        // A failed write means that the call is over; the pending read says so too and leads to
        // Finish.
        if (ok) WriteNext();
        return;
      case Step::kRead:
        if (!ok || !TakeResults()) return Finish();
        stream_->Read(&incoming_, TagOf(Step::kRead));
        return WriteNext();
      case Step::kFinish:
        is_finished_ = true;
        return;
    }
  }

  void Finish() {
    is_finishing_ = true;
    stream_->Finish(&final_status_, TagOf(Step::kFinish));
  }

  void WriteNext() {
    if (is_writing_ || is_finishing_ || sent_count_ == blocks_.size()) return;
    // A message of small blocks waits until it is full: each costs as much as some of its blocks.
    const bool is_small = IsSmall(blocks_[sent_count_]);
    const size_t frames_max =
        is_small ? std::min(kFramesPerMessageMax, blocks_.size() - sent_count_) : 1;
    const size_t window = is_small ? kPublishSmallFramesInFlight : kPublishFramesInFlight;
    if (sent_count_ - answered_count_ + frames_max > window) return;
    if (!is_small && IsStagingFull()) return;  // until a result makes room
    if (!EncodeNext(frames_max)) {
      context_.TryCancel();
      return;
    }
    is_writing_ = true;
    grpc::WriteOptions options;
    if (sent_count_ == blocks_.size()) options.set_last_message();
    stream_->Write(outgoing_, options, TagOf(Step::kWrite));
  }

  // Takes room in the shared staging memory for the next block. False when there is none, or none
  // yet, and the block goes by message.
  bool IsStagingFull() {
    if (call_.shm == nullptr || staged_next_.owner != nullptr) return false;
    staged_next_ = call_.shm->Stage(blocks_[sent_count_].payload.size());
    return staged_next_.owner == nullptr && staged_count_ > 0;
  }

  static bool IsSmall(const PublishBlock& block) {
    return block.payload.size() <= kPublishMessageBytes / 2;
  }

  // As many blocks as go into one message, at most `frames_max`.
  bool EncodeNext(size_t frames_max) {
    std::vector<OutgoingFrame> frames;
    size_t bytes = 0;
    while (frames.size() < frames_max) {
      const PublishBlock& block = blocks_[sent_count_];
      bytes += block.payload.size();
      if (!frames.empty() && bytes > kPublishMessageBytes) break;
      OutgoingFrame frame;
      if (!MakeFrame(block, &frame)) return false;
      frames.push_back(std::move(frame));
      ++sent_count_;
    }
    const bool is_first = sent_count_ == frames.size();
    outgoing_ = EncodePublish(
        is_first ? PublishHeader{call_.session_id, call_.ns, call_.durable} : PublishHeader{},
        frames);
    return true;
  }

  bool MakeFrame(const PublishBlock& block, OutgoingFrame* frame) {
    FrameHeader& header = frame->header;
    header.index = static_cast<uint32_t>(sent_count_);
    header.key = block.link.key;
    header.parent = block.link.parent;
    header.token_count = block.link.token_count;
    header.position = block.link.position;
    frame->payload = block.payload;
    frame->owner = block.owner;
    if (staged_next_.owner != nullptr) {
      const uint64_t computed = CopyLarge(block.payload, staged_next_.bytes);
      header.checksum = block.checksum.value_or(computed);
      header.shared_bytes = static_cast<uint32_t>(block.payload.size());
      header.shared_offset = staged_next_.offset;
      frame->payload = {};
      frame->owner = nullptr;
      staged_[sent_count_] = std::move(staged_next_.owner);
      ++staged_count_;
      return true;
    }
    // A small one without an owner is copied into the message.
    if (block.owner != nullptr || IsSmall(block)) {
      header.checksum = block.checksum.has_value() ? *block.checksum : Checksum(block.payload);
      return true;
    }
    StagingPool::Buffer copy = staging_->Take(block.payload.size());
    if (copy.owner == nullptr) {
      own_error_ = absl::ResourceExhaustedError(
          absl::StrCat("Publish: no memory to stage ", block.payload.size(), " bytes"));
      return false;
    }
    const uint64_t computed = CopyWithChecksum({&block.payload, 1}, copy.bytes);
    header.checksum = block.checksum.value_or(computed);
    frame->payload = copy.bytes;
    frame->owner = std::move(copy.owner);
    return true;
  }

  // False when what came is no result of a block of this call; then the call is being cancelled.
  bool TakeResults() {
    v1::PublishResponse message;
    const grpc::Status parsed =
        grpc::SerializationTraits<v1::PublishResponse>::Deserialize(&incoming_, &message);
    bool is_right = parsed.ok();
    incarnation_ = message.incarnation();
    for (const v1::PublishResult& result : message.results()) {
      is_right &= result.index() < sent_count_ && !is_answered_[result.index()] &&
                  v1::BlockOutcome_IsValid(result.outcome());
      if (!is_right) break;
      is_answered_[result.index()] = true;
      ++answered_count_;
      if (staged_[result.index()] != nullptr) {
        staged_[result.index()] = nullptr;
        --staged_count_;
      }
      on_result_(PublishBlockResult{result.index(), static_cast<BlockOutcome>(result.outcome()),
                                    result.detail()});
    }
    if (!is_right) {
      own_error_ = absl::InternalError("Publish: the server sent a result that fits no block");
      context_.TryCancel();
    }
    return is_right;
  }

  StagingPool* const staging_;
  const PublishCall& call_;
  const std::span<const PublishBlock> blocks_;
  const std::function<void(const PublishBlockResult&)>& on_result_;
  std::vector<bool> is_answered_;  // by index
  // Pieces of the shared staging memory, by index, until the block is answered. Of a block that is
  // not answered the server may still read the piece; its checksum then tells that it is used anew.
  std::vector<std::shared_ptr<const void>> staged_;
  size_t staged_count_ = 0;
  ShmAttachment::Staged staged_next_;

  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  grpc::ByteBuffer outgoing_;
  grpc::ByteBuffer incoming_;
  grpc::Status final_status_;
  absl::Status own_error_;
  size_t sent_count_ = 0;
  size_t answered_count_ = 0;
  uint64_t incarnation_ = 0;
  bool is_writing_ = false;
  bool is_finishing_ = false;
  bool is_finished_ = false;
};

}  // namespace

absl::StatusOr<FetchReply> FetchBlocks(
    grpc::Channel* channel, const FetchCall& call, std::span<const BlockKey> keys,
    std::span<const MutableByteView> into, absl::Duration timeout,
    const std::function<void(uint32_t, BlockOutcome)>& on_block) {
  IBID_CHECK(keys.size() == into.size()) << keys.size() << " " << into.size();
  FetchReply reply;
  const auto take = [&](uint32_t i, const ReceivedFrame& frame) {
    const BlockOutcome outcome = TakeFrame(frame, call, keys[i], into[i]);
    reply.incarnation = frame.header().incarnation;
    if (outcome == BlockOutcome::kOk) reply.bytes += into[i].size();
    on_block(i, outcome);
  };
  IBID_RETURN_IF_ERROR(ReadFrames(channel, call, keys, timeout, take));
  return reply;
}

absl::StatusOr<LocateReply> LocateBlocks(grpc::Channel* channel, const FetchCall& call,
                                         std::span<const BlockKey> keys, uint64_t payload_bytes,
                                         absl::Duration timeout) {
  IBID_CHECK(call.shm != nullptr && call.lease_id != 0 && call.layer_count == 0);
  LocateReply reply;
  reply.blocks.resize(keys.size());
  const auto take = [&](uint32_t i, const ReceivedFrame& frame) {
    const FrameHeader& header = frame.header();
    reply.incarnation = header.incarnation;
    const ArenaPlace place{header.shared_offset, header.shared_bytes, header.shared_generation};
    const bool is_there = header.outcome == BlockOutcome::kOk && header.shared_bytes > 0 &&
                          IsAsAsked(frame, call, keys[i], payload_bytes) &&
                          call.shm->BytesAt(place).has_value();
    if (is_there) reply.blocks[i] = LocatedBlock{place, header.checksum};
  };
  IBID_RETURN_IF_ERROR(ReadFrames(channel, call, keys, timeout, take));
  return reply;
}

absl::StatusOr<uint64_t> PublishBlocks(
    const std::shared_ptr<grpc::Channel>& channel, StagingPool* staging, const PublishCall& call,
    std::span<const PublishBlock> blocks, absl::Duration timeout,
    const std::function<void(const PublishBlockResult&)>& on_result) {
  if (blocks.empty()) return 0;
  for (const PublishBlock& block : blocks) {
    if (block.payload.size() > kBlockPayloadBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("Publish: a payload of ", block.payload.size(),
                       " bytes is over kBlockPayloadBytesMax=", kBlockPayloadBytesMax));
    }
  }
  return PublishRun(staging, call, blocks, on_result).Run(channel, timeout);
}

}  // namespace ibid
