// One message at a time: gRPC reads into incoming_, Next takes it and starts the next read. A hold
// keeps the call until reads have ended, because they are started outside of gRPC's reactions.
#include "transport/watch_stream.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "ibid/v1/cache.grpc.pb.h"
#include "transport/key_bytes.h"
#include "transport/status_conversion.h"

namespace ibid {
namespace {

WatchNotice FromWire(v1::WatchNotice notice) {
  switch (notice) {
    case v1::WATCH_NOTICE_RESUMED:
      return WatchNotice::kResumed;
    case v1::WATCH_NOTICE_STARTED:
      return WatchNotice::kStarted;
    case v1::WATCH_NOTICE_SNAPSHOT_BEGIN:
      return WatchNotice::kSnapshotBegin;
    case v1::WATCH_NOTICE_SNAPSHOT_END:
      return WatchNotice::kSnapshotEnd;
    case v1::WATCH_NOTICE_CUT_OFF:
      return WatchNotice::kCutOff;
    default:
      return WatchNotice::kNone;
  }
}

// Errors: Internal: a change that this client does not know would leave its picture wrong.
absl::StatusOr<BlockChange> FromWire(v1::BlockChange change) {
  switch (change) {
    case v1::BLOCK_CHANGE_HELD:
      return BlockChange::kHeld;
    case v1::BLOCK_CHANGE_STORED:
      return BlockChange::kStored;
    case v1::BLOCK_CHANGE_PROMOTED:
      return BlockChange::kPromoted;
    case v1::BLOCK_CHANGE_DEMOTED:
      return BlockChange::kDemoted;
    case v1::BLOCK_CHANGE_REMOVED:
      return BlockChange::kRemoved;
    default:
      return absl::InternalError(absl::StrCat("Watch: unknown change ", static_cast<int>(change)));
  }
}

absl::StatusOr<BlockReport> FromWire(const v1::BlockEvent& from) {
  BlockReport event;
  event.sequence = from.sequence();
  IBID_ASSIGN_OR_RETURN(event.change, FromWire(from.change()));
  IBID_ASSIGN_OR_RETURN(event.ns.digest, DigestFromBytes(from.namespace_id(), "namespace_id"));
  IBID_ASSIGN_OR_RETURN(event.key.digest, DigestFromBytes(from.key(), "key"));
  if (!from.parent_key().empty()) {
    BlockKey parent;
    IBID_ASSIGN_OR_RETURN(parent.digest, DigestFromBytes(from.parent_key(), "parent_key"));
    event.parent = parent;
  }
  event.position = from.position();
  event.token_count = from.token_count();
  event.tier = from.tier();
  event.tiers.assign(from.tiers().begin(), from.tiers().end());
  return event;
}

v1::WatchRequest ToWire(const WatchCall& call) {
  v1::WatchRequest request;
  for (const NamespaceId& ns : call.namespaces) {
    request.add_namespace_ids(DigestString(ns.digest));
  }
  request.set_no_snapshot(!call.has_snapshot);
  request.set_resume_incarnation(call.resume_incarnation);
  request.set_resume_sequence(call.resume_sequence);
  return request;
}

class WatchStream final : public grpc::ClientReadReactor<v1::WatchResponse>, public CacheWatch {
 public:
  WatchStream(std::shared_ptr<grpc::Channel> channel, const WatchCall& call)
      : channel_(std::move(channel)),
        stub_(v1::CacheService::NewStub(channel_)),
        request_(ToWire(call)) {
    stub_->async()->Watch(&context_, &request_, this);
    AddHold();
    StartRead(&incoming_);
    StartCall();
  }

  // Waits for gRPC to give the reactor back, not for the server.
  ~WatchStream() override {
    context_.TryCancel();
    bool is_held = false;
    {
      MutexLock lock(mutex_);
      while (state_ == State::kReading) changed_.Wait(mutex_);
      is_held = state_ == State::kRead;
    }
    if (is_held) RemoveHold();
    MutexLock lock(mutex_);
    while (!is_done_) changed_.Wait(mutex_);
  }

  absl::StatusOr<WatchReply> Next(absl::Duration timeout) override {
    IBID_RETURN_IF_ERROR(WaitForMessage(timeout));
    absl::StatusOr<WatchReply> reply = TakeMessage();
    if (!reply.ok()) {
      context_.TryCancel();
      failure_ = reply.status();
    }
    {
      MutexLock lock(mutex_);
      state_ = State::kReading;
    }
    StartRead(&incoming_);
    return reply;
  }

  void Cancel() override { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    {
      MutexLock lock(mutex_);
      state_ = ok ? State::kRead : State::kEnded;
      changed_.NotifyAll();
    }
    if (!ok) RemoveHold();
  }

  void OnDone(const grpc::Status& status) override {
    MutexLock lock(mutex_);
    status_ = FromGrpcStatus(status);
    is_done_ = true;
    changed_.NotifyAll();
  }

 private:
  enum class State { kReading, kRead, kEnded };

  absl::Status WaitForMessage(absl::Duration timeout) {
    IBID_RETURN_IF_ERROR(failure_);
    const absl::Time until = clock_.Now() + timeout;
    MutexLock lock(mutex_);
    while (state_ != State::kRead) {
      if (is_done_) {
        return status_.ok() ? absl::UnavailableError("Watch: the server ended the stream")
                            : status_;
      }
      const absl::Duration left = until - clock_.Now();
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError("Watch: nothing came in time");
      }
      changed_.WaitFor(mutex_, left);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<WatchReply> TakeMessage() {
    WatchReply reply;
    reply.incarnation = incoming_.incarnation();
    reply.sequence = incoming_.sequence();
    reply.previous_sequence = incoming_.previous_sequence();
    reply.notice = FromWire(incoming_.notice());
    reply.is_gap = incoming_.is_gap();
    if (last_sequence_.has_value() && reply.previous_sequence != *last_sequence_) {
      return absl::InternalError(absl::StrCat("Watch: a reply follows event ",
                                              reply.previous_sequence, ", not ", *last_sequence_));
    }
    last_sequence_ = reply.sequence;
    reply.events.reserve(static_cast<size_t>(incoming_.events_size()));
    for (const v1::BlockEvent& from : incoming_.events()) {
      IBID_ASSIGN_OR_RETURN(BlockReport event, FromWire(from));
      reply.events.push_back(std::move(event));
    }
    return reply;
  }

  const SteadyClock clock_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::CacheService::Stub> stub_;
  grpc::ClientContext context_;
  const v1::WatchRequest request_;
  v1::WatchResponse incoming_;             // belongs to gRPC while kReading
  std::optional<uint64_t> last_sequence_;  // these two belong to Next
  absl::Status failure_;

  Mutex mutex_;
  CondVar changed_;
  State state_ IBID_GUARDED_BY(mutex_) = State::kReading;
  bool is_done_ IBID_GUARDED_BY(mutex_) = false;
  absl::Status status_ IBID_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<CacheWatch> StartCacheWatch(std::shared_ptr<grpc::Channel> channel,
                                            const WatchCall& call) {
  return std::make_unique<WatchStream>(std::move(channel), call);
}

}  // namespace ibid
