// A frame's way: OnReadDone -> check -> Reserve -> copy into the slot with the checksum -> Commit
// -> results_ -> StartWrite, with all results that are there.
//
// Invariants, under mutex_: unanswered_ counts frames that were read and whose result is not yet
// written; at kPublishFramesUnanswered reading stops. The call ends when reading has ended for
// good, every frame read is answered or void, or the client is gone. A commit that is under way
// then, of a block that waits for the disk, keeps the object and is heard by nobody.
#include "cache_server/publish_stream.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache_server/stream_call.h"
#include "core/check.h"
#include "ibid/v1/cache.pb.h"
#include "transport/block_frame.h"
#include "transport/limits.h"
#include "transport/message_bytes.h"

namespace ibid {
namespace {

struct Result {
  uint32_t index = 0;
  BlockOutcome outcome = BlockOutcome::kUnspecified;
  std::string detail;
};

// The outcome that an error of Reserve or Commit means for its block.
Result ResultOf(uint32_t index, const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return {index, BlockOutcome::kOk};
    case absl::StatusCode::kAlreadyExists:
      return {index, absl::StrContains(status.message(), "pending") ? BlockOutcome::kPending
                                                                    : BlockOutcome::kPresent};
    case absl::StatusCode::kDataLoss:
      return {index, BlockOutcome::kCorrupt, std::string(status.message())};
    case absl::StatusCode::kInvalidArgument:
      return {index, BlockOutcome::kInvalid, std::string(status.message())};
    default:
      return {index, BlockOutcome::kRejected, std::string(status.message())};
  }
}

class PublishStream final : public BidiCall<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit PublishStream(ServiceState* state) : BidiCall(state, RpcMethod::kPublish) {}

  void Start() {
    Begin();
    Advance();
  }

 private:
  bool Step() override {
    {
      MutexLock lock(mutex_);
      if (!is_writing_ && !results_.empty() && !is_cancelled_) {
        std::swap(outgoing_results_, results_);
      } else if (unanswered_ >= kPublishFramesUnanswered) {
        return false;
      }
    }
    if (outgoing_results_.empty()) return Read();
    WriteResults();
    return true;
  }

  bool is_busy() const IBID_REQUIRES(mutex_) override {
    return BidiCall::is_busy() || (!is_cancelled_ && unanswered_ > 0);
  }

  void OnWritten() override {
    MutexLock lock(mutex_);
    unanswered_ -= written_count_;
  }

  // Stores the frames that were read.
  void Take(grpc::ByteBuffer& message) override {
    record_.OnReceived(message.Length());
    absl::StatusOr<ReceivedFrames> publish = ReceivedFrames::Parse(message);
    message.Clear();
    absl::Status status = publish.status();
    if (publish.ok()) status = is_open_ ? CheckOwner(publish->header) : Open(publish->header);
    if (!status.ok()) {
      MutexLock lock(mutex_);
      return EndLocked(status);
    }
    {
      MutexLock lock(mutex_);
      unanswered_ += publish->frames.size();
    }
    for (const ReceivedFrame& frame : publish->frames) StoreFrame(frame);
  }

  // Learns from the first message whose blocks these are.
  absl::Status Open(const PublishHeader& header) {
    IBID_ASSIGN_OR_RETURN(const KvLayout layout, state_->store->LayoutOf(header.namespace_id));
    session_ = SessionId{header.session_id};
    ns_ = header.namespace_id;
    is_durable_ = header.durable;
    if (state_->shm != nullptr) staging_ = state_->shm->StagingOf(header.session_id);
    payload_bytes_ = layout.PayloadBytes();
    is_open_ = true;
    return absl::OkStatus();
  }

  // A stream's blocks are those of its first message's session and namespace.
  absl::Status CheckOwner(const PublishHeader& header) const {
    const PublishHeader first{session_.value, ns_, is_durable_};
    if (header == PublishHeader{} || header == first) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "a message names another session, namespace or durability than the stream's first: use a "
        "stream for each");
  }

  void StoreFrame(const ReceivedFrame& frame) {
    const FrameHeader& header = frame.header();
    if (absl::Status status = CheckFrame(frame); !status.ok()) return Answer(header.index, status);
    absl::StatusOr<Reservation> reservation = state_->store->Reserve(
        session_, ns_, ChainLink{header.key, header.parent, header.token_count, header.position});
    if (!reservation.ok()) return Answer(header.index, reservation.status());
    const MutableByteView slot = reservation->payload();
    IBID_CHECK(slot.size() == payload_bytes_) << slot.size() << " " << payload_bytes_;
    const uint64_t computed = CopyPayload(frame, slot);
    std::move(*reservation)
        .Commit(header.checksum, computed, is_durable_,
                [this, self = shared_from_this(), index = header.index](absl::Status status) {
                  Answer(index, status);
                });
  }

  // What is hashed is what was copied: the client can write to its staging memory meanwhile.
  uint64_t CopyPayload(const ReceivedFrame& frame, MutableByteView slot) const {
    const FrameHeader& header = frame.header();
    if (header.shared_bytes == 0) return frame.CopyPayload(slot);
    const ByteView shared = staging_->view().subspan(header.shared_offset, header.shared_bytes);
    return CopyWithChecksum({&shared, 1}, slot);
  }

  absl::Status CheckFrame(const ReceivedFrame& frame) const {
    const FrameHeader& header = frame.header();
    if (header.key == BlockKey{} || header.parent == BlockKey{}) {
      return absl::InvalidArgumentError("the frame lacks its key or its parent");
    }
    if (header.layer_count != 0)
      return absl::InvalidArgumentError("a published block has all of its layers");
    size_t bytes = frame.payload_bytes();
    if (header.shared_bytes > 0) {
      const size_t staging_bytes = staging_ == nullptr ? 0 : staging_->size();
      if (bytes > 0 || header.shared_bytes > staging_bytes ||
          header.shared_offset > staging_bytes - header.shared_bytes) {
        return absl::InvalidArgumentError(
            absl::StrCat("the frame refers to bytes that are not in the session's staging memory (",
                         staging_bytes, " bytes)"));
      }
      bytes = header.shared_bytes;
    }
    if (bytes != payload_bytes_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the payload has ", bytes, " bytes; a block of this namespace has ", payload_bytes_));
    }
    return absl::OkStatus();
  }

  // An unknown session or namespace concerns all frames to come; every other error only this block.
  // On the reading thread, or later on one of the store's.
  void Answer(uint32_t index, const absl::Status& status) {
    {
      MutexLock lock(mutex_);
      if (absl::IsFailedPrecondition(status)) {
        EndLocked(status);
        --unanswered_;
      } else {
        results_.push_back(ResultOf(index, status));
      }
      if (BidiCall::is_busy()) return;  // who takes a message advances afterwards
    }
    Advance();
  }

  void WriteResults() {
    response_.Clear();  // keeps the memory of its results
    response_.set_incarnation(state_->incarnation);
    for (Result& result : outgoing_results_) {
      v1::PublishResult& each = *response_.add_results();
      each.set_index(result.index);
      each.set_outcome(static_cast<v1::BlockOutcome>(result.outcome));
      if (!result.detail.empty()) each.set_detail(std::move(result.detail));
    }
    written_count_ = outgoing_results_.size();
    outgoing_results_.clear();
    outgoing_ = SerializeMessage(response_);
    Write(&outgoing_, outgoing_.Length());
  }

  // Of the reading thread: frames are taken one after the other.
  bool is_open_ = false;
  bool is_durable_ = false;
  SessionId session_;
  NamespaceId ns_;
  size_t payload_bytes_ = 0;
  std::shared_ptr<const HostMemory> staging_;  // null: the client shares none

  // Of the thread that writes.
  std::vector<Result> outgoing_results_;
  v1::PublishResponse response_;
  size_t written_count_ = 0;   // results in outgoing_
  grpc::ByteBuffer outgoing_;  // belongs to gRPC while is_writing_

  std::vector<Result> results_ IBID_GUARDED_BY(mutex_);
  size_t unanswered_ IBID_GUARDED_BY(mutex_) = 0;
};

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartPublishStream(
    ServiceState* state) {
  const auto stream = std::make_shared<PublishStream>(state);
  stream->Start();
  return stream.get();
}

}  // namespace ibid
