// A frame's way: OnReadDone -> check -> Reserve -> copy into the slot with the checksum -> Commit
// -> results_ -> StartWrite.
//
// Invariants, under mutex_:
//   unanswered_ counts frames that were read and whose result is not yet written; at
//   kPublishFramesUnanswered reading stops at most one read and one write are under way; Finish is
//   called once, when reading has ended for good, every frame read is answered (or the call is
//   cancelled) and no commit is under way one thread at a time acts on the state (is_advancing_),
//   as in fetch_stream.cc
#include "cache_server/publish_stream.h"

#include <deque>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "ibid/v1/cache.pb.h"
#include "transport/block_frame.h"
#include "transport/limits.h"
#include "transport/message_bytes.h"
#include "transport/status_conversion.h"

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

class PublishStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                            public std::enable_shared_from_this<PublishStream> {
 public:
  explicit PublishStream(ServiceState* state)
      : state_(state), hold_(state->holds), record_(&state->metrics, RpcMethod::kPublish) {}

  void Start() {
    self_ = shared_from_this();
    Advance();
  }

  void OnReadDone(bool ok) override {
    const auto self = shared_from_this();
    if (ok) {
      TakeFrame();
    } else {
      MutexLock lock(mutex_);
      is_reading_ended_ = true;
    }
    {
      MutexLock lock(mutex_);
      is_reading_ = false;
    }
    Advance();
  }

  void OnWriteDone(bool ok) override {
    const auto self = shared_from_this();
    {
      MutexLock lock(mutex_);
      is_writing_ = false;
      --unanswered_;
      if (!ok) is_cancelled_ = true;
    }
    Advance();
  }

  void OnCancel() override {
    const auto self = shared_from_this();
    {
      MutexLock lock(mutex_);
      is_cancelled_ = true;
    }
    Advance();
  }

  void OnDone() override {
    record_.OnDone(final_code_);
    const std::shared_ptr<PublishStream> self = std::move(self_);  // may be the last reference
  }

 private:
  enum class Action { kNothing, kRead, kWrite, kFinish };
  struct Step {
    Action action = Action::kNothing;
    Result result;        // kWrite
    absl::Status status;  // kFinish
  };

  // Does what can be done now. REQUIRES: the caller holds a reference to this.
  void Advance() {
    {
      MutexLock lock(mutex_);
      if (is_advancing_) return;
      is_advancing_ = true;
    }
    while (true) {
      const Step step = NextStep();
      switch (step.action) {
        case Action::kNothing:
          return;
        case Action::kRead:
          StartRead(&incoming_);
          break;
        case Action::kWrite:
          Write(step.result);
          break;
        case Action::kFinish: {
          const grpc::Status final_status = ToGrpcStatus(step.status, state_->incarnation);
          final_code_ = final_status.error_code();
          Finish(final_status);
          return;
        }
      }
    }
  }

  Step NextStep() {
    MutexLock lock(mutex_);
    Step step = ChooseStep();
    if (step.action == Action::kNothing) is_advancing_ = false;
    return step;
  }

  Step ChooseStep() IBID_REQUIRES(mutex_) {
    if (is_finished_) return {};
    if (!is_writing_ && !results_.empty() && !is_cancelled_) {
      is_writing_ = true;
      Step step{Action::kWrite, std::move(results_.front())};
      results_.pop_front();
      return step;
    }
    const bool reads_no_more = is_reading_ended_ || is_cancelled_ || !failure_.ok();
    if (!reads_no_more && !is_reading_ && unanswered_ < kPublishFramesUnanswered) {
      is_reading_ = true;
      return {Action::kRead};
    }
    const bool is_answered = results_.empty() || is_cancelled_;
    if (reads_no_more && !is_reading_frame() && !is_writing_ && committing_ == 0 && is_answered) {
      is_finished_ = true;
      return {Action::kFinish,
              {},
              is_cancelled_ ? absl::CancelledError("Publish: cancelled") : failure_};
    }
    return {};
  }

  // A read that is under way ends by itself once Finish is called, unless OnReadDone is at work on
  // its frame.
  bool is_reading_frame() const IBID_REQUIRES(mutex_) { return is_taking_frame_; }

  // Stores the frame that was read.
  void TakeFrame() {
    {
      MutexLock lock(mutex_);
      ++unanswered_;
      is_taking_frame_ = true;
    }
    record_.OnReceived(incoming_.Length());
    absl::StatusOr<ReceivedFrame> frame = ReceivedFrame::Parse(incoming_);
    incoming_.Clear();
    absl::Status status = frame.status();
    if (frame.ok() && !is_open_) status = Open(frame->header());
    if (status.ok()) {
      StoreFrame(*frame);
    } else {
      Fail(std::move(status));
    }
    MutexLock lock(mutex_);
    is_taking_frame_ = false;
  }

  // Learns from the first frame whose stream this is.
  absl::Status Open(const FrameHeader& header) {
    IBID_ASSIGN_OR_RETURN(const KvLayout layout, state_->store->LayoutOf(header.namespace_id));
    session_ = SessionId{header.session_id};
    ns_ = header.namespace_id;
    is_durable_ = header.durable;
    payload_bytes_ = layout.PayloadBytes();
    is_open_ = true;
    return absl::OkStatus();
  }

  void StoreFrame(const ReceivedFrame& frame) {
    const FrameHeader& header = frame.header();
    if (absl::Status status = CheckFrame(frame); !status.ok())
      return Answer(ResultOf(header.index, status));
    absl::StatusOr<Reservation> reservation = state_->store->Reserve(
        session_, ns_, ChainLink{header.key, header.parent, header.token_count, header.position});
    if (!reservation.ok()) return AnswerOrFail(header.index, reservation.status());
    const MutableByteView slot = reservation->payload();
    IBID_CHECK(slot.size() == payload_bytes_) << slot.size() << " " << payload_bytes_;
    const uint64_t computed = frame.CopyPayload(slot);
    {
      MutexLock lock(mutex_);
      ++committing_;
    }
    std::move(*reservation)
        .Commit(header.checksum, computed, is_durable_,
                [self = shared_from_this(), index = header.index](absl::Status status) {
                  self->AnswerOrFail(index, status);
                  self->OnCommitted();
                });
  }

  absl::Status CheckFrame(const ReceivedFrame& frame) const {
    const FrameHeader& header = frame.header();
    if (header.key == BlockKey{} || header.parent == BlockKey{}) {
      return absl::InvalidArgumentError("the frame lacks its key or its parent");
    }
    if (header.layer_count != 0)
      return absl::InvalidArgumentError("a published block has all of its layers");
    if (frame.payload_bytes() != payload_bytes_) {
      return absl::InvalidArgumentError(absl::StrCat("the payload has ", frame.payload_bytes(),
                                                     " bytes; a block of this namespace has ",
                                                     payload_bytes_));
    }
    return absl::OkStatus();
  }

  // An unknown session or namespace concerns all frames to come; every other error only this block.
  void AnswerOrFail(uint32_t index, const absl::Status& status) {
    if (absl::IsFailedPrecondition(status)) return Fail(status);
    Answer(ResultOf(index, status));
  }

  void Answer(Result result) {
    MutexLock lock(mutex_);
    results_.push_back(std::move(result));
  }

  void Fail(absl::Status status) {
    MutexLock lock(mutex_);
    if (failure_.ok()) failure_ = std::move(status);
  }

  void OnCommitted() {
    {
      MutexLock lock(mutex_);
      --committing_;
    }
    Advance();
  }

  void Write(const Result& result) {
    v1::PublishResult message;
    message.set_incarnation(state_->incarnation);
    message.set_index(result.index);
    message.set_outcome(static_cast<v1::BlockOutcome>(result.outcome));
    message.set_detail(result.detail);
    outgoing_ = SerializeMessage(message);
    record_.OnSent(outgoing_.Length());
    StartWrite(&outgoing_);
  }

  ServiceState* const state_;
  const Hold hold_;
  RpcRecord record_;
  // Of the reading thread: OnReadDone is never called twice at a time.
  bool is_open_ = false;
  bool is_durable_ = false;
  SessionId session_;
  NamespaceId ns_;
  size_t payload_bytes_ = 0;
  grpc::ByteBuffer incoming_;  // belongs to gRPC while is_reading_
  grpc::ByteBuffer outgoing_;  // belongs to gRPC while is_writing_
  grpc::StatusCode final_code_ = grpc::StatusCode::OK;
  std::shared_ptr<PublishStream> self_;  // while gRPC knows this reactor

  Mutex mutex_;
  std::deque<Result> results_ IBID_GUARDED_BY(mutex_);
  size_t unanswered_ IBID_GUARDED_BY(mutex_) = 0;
  size_t committing_ IBID_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ IBID_GUARDED_BY(mutex_);
  bool is_reading_ IBID_GUARDED_BY(mutex_) = false;
  bool is_reading_ended_ IBID_GUARDED_BY(mutex_) = false;
  bool is_taking_frame_ IBID_GUARDED_BY(mutex_) = false;
  bool is_writing_ IBID_GUARDED_BY(mutex_) = false;
  bool is_cancelled_ IBID_GUARDED_BY(mutex_) = false;
  bool is_finished_ IBID_GUARDED_BY(mutex_) = false;
  bool is_advancing_ IBID_GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartPublishStream(
    ServiceState* state) {
  const auto stream = std::make_shared<PublishStream>(state);
  stream->Start();
  return stream.get();
}

}  // namespace ibid
