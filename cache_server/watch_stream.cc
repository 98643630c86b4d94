// Invariants, under mutex_: at most one write is under way; Finish is called once, with no write
// under way; one thread at a time acts on the state and on watch_ (is_advancing_), as in
// fetch_stream.cc. Who wants it to look for events while another acts sets is_wanted_.
//
// Back-pressure: a write ends when gRPC has taken the message, so a client that does not read holds
// one message here and its place in the store's log. The log does not wait for it.
#include "cache_server/watch_stream.h"

#include <grpcpp/server_context.h>
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache_server/block_watch.h"
#include "core/check.h"
#include "core/limit.h"
#include "transport/key_bytes.h"
#include "transport/limits.h"
#include "transport/status_conversion.h"

namespace ibid {
namespace {

// Heartbeats and the end of stalled calls are looked at this often.
constexpr absl::Duration kTick = absl::Milliseconds(100);
// Events that come in quick succession go out together.
constexpr absl::Duration kGather = absl::Milliseconds(1);
// A client that is cut off and has not taken its last message after this is not waited for.
constexpr absl::Duration kStalledMax = absl::Seconds(3);
// Something is told at least this often.
constexpr absl::Duration kHeartbeatMax = absl::Seconds(3);
// A client whose namespaces are quiet hears where it is each so many events of others.
constexpr uint64_t kProgressEvents = 16'384;

absl::StatusOr<WatchOptions> OptionsOf(const v1::WatchRequest& request) {
  WatchOptions options;
  if (static_cast<size_t>(request.namespace_ids_size()) > kWatchNamespacesMax) {
    return LimitReached(absl::StrCat("Watch: ", request.namespace_ids_size(), " namespaces"),
                        "kWatchNamespacesMax", kWatchNamespacesMax);
  }
  for (const std::string& bytes : request.namespace_ids()) {
    NamespaceId& ns = options.namespaces.emplace_back();
    IBID_ASSIGN_OR_RETURN(ns.digest, DigestFromBytes(bytes, "namespace_id"));
  }
  options.has_snapshot = !request.no_snapshot();
  options.resume_epoch = request.resume_incarnation();
  options.resume_sequence = request.resume_sequence();
  return options;
}

v1::WatchNotice ToWire(WatchNotice notice) {
  switch (notice) {
    case WatchNotice::kNone:
      return v1::WATCH_NOTICE_NONE;
    case WatchNotice::kResumed:
      return v1::WATCH_NOTICE_RESUMED;
    case WatchNotice::kStarted:
      return v1::WATCH_NOTICE_STARTED;
    case WatchNotice::kSnapshotBegin:
      return v1::WATCH_NOTICE_SNAPSHOT_BEGIN;
    case WatchNotice::kSnapshotEnd:
      return v1::WATCH_NOTICE_SNAPSHOT_END;
    case WatchNotice::kCutOff:
      return v1::WATCH_NOTICE_CUT_OFF;
  }
  return v1::WATCH_NOTICE_NONE;
}

v1::BlockChange ToWire(BlockChange change) {
  switch (change) {
    case BlockChange::kHeld:
      return v1::BLOCK_CHANGE_HELD;
    case BlockChange::kStored:
      return v1::BLOCK_CHANGE_STORED;
    case BlockChange::kPromoted:
      return v1::BLOCK_CHANGE_PROMOTED;
    case BlockChange::kDemoted:
      return v1::BLOCK_CHANGE_DEMOTED;
    case BlockChange::kRemoved:
      return v1::BLOCK_CHANGE_REMOVED;
  }
  return v1::BLOCK_CHANGE_UNSPECIFIED;
}

void FillEvent(const BlockEvent& from, v1::BlockEvent* to) {
  to->set_sequence(from.sequence);
  to->set_change(ToWire(from.change));
  to->set_namespace_id(DigestString(from.ns.digest));
  to->set_key(DigestString(from.key.digest));
  if (from.parent.has_value()) to->set_parent_key(DigestString(from.parent->digest));
  to->set_position(from.position);
  to->set_token_count(from.token_count);
  to->set_tier(std::string(NameOf(from.tier)));
  for (const TierName tier : kTiersByScale) {
    if (from.tiers.Has(tier)) to->add_tiers(std::string(NameOf(tier)));
  }
}

}  // namespace

class WatchStream final : public WatchReactor, public std::enable_shared_from_this<WatchStream> {
 public:
  WatchStream(ServiceState* state, WatchStreams* streams, grpc::CallbackServerContext* context)
      : state_(state),
        streams_(streams),
        context_(context),
        hold_(state->holds),
        record_(&state->metrics, RpcMethod::kWatch) {}

  void Start(const v1::WatchRequest& request) {
    self_ = shared_from_this();
    record_.OnReceived(request.ByteSizeLong());
    absl::Status status = Open(request);
    if (status.ok()) status = streams_->Add(self_);  // from here on others look for events too
    if (!status.ok()) return End(status);
    Advance();
  }

  // Ends the call from the server's side.
  void End(const absl::Status& why) {
    const auto self = shared_from_this();
    {
      MutexLock lock(mutex_);
      if (!is_ending_) end_status_ = why;
      is_ending_ = true;
    }
    Advance();
  }

  // There may be events, or a heartbeat may be due.
  void Advance() {
    {
      MutexLock lock(mutex_);
      is_wanted_ = true;
      if (is_advancing_) return;
      is_advancing_ = true;
    }
    while (true) {
      switch (NextAction()) {
        case Action::kNothing:
          return;
        case Action::kTell:
          Tell();
          break;
        case Action::kLook:
          LookAfterStalled();
          break;
        case Action::kFinish:
          return FinishCall();
      }
    }
  }

  void OnWriteDone(bool ok) override {
    const auto self = shared_from_this();
    {
      MutexLock lock(mutex_);
      is_writing_ = false;
    }
    if (!ok) return End(absl::CancelledError("Watch: the client is gone"));
    Advance();
  }

  void OnCancel() override { End(absl::CancelledError("Watch: the client is gone")); }

  void OnDone() override {
    const std::shared_ptr<WatchStream> self =
        std::move(self_);  // the last reference but that of streams_
    watch_.reset();
    record_.OnDone(final_code_);
    streams_->Remove(self);
  }

 private:
  enum class Action { kNothing, kTell, kLook, kFinish };

  absl::Status Open(const v1::WatchRequest& request) {
    IBID_ASSIGN_OR_RETURN(const WatchOptions options, OptionsOf(request));
    IBID_ASSIGN_OR_RETURN(watch_, state_->store->Watch(options));
    return absl::OkStatus();
  }

  // With kNothing this thread has ceased to be the one that acts.
  Action NextAction() {
    MutexLock lock(mutex_);
    if (is_ending_ && !is_writing_ && !is_finished_) {
      is_finished_ = true;
      return Action::kFinish;
    }
    if (is_wanted_ && !is_finished_) {
      is_wanted_ = false;
      return is_writing_ ? Action::kLook : Action::kTell;
    }
    is_advancing_ = false;
    return Action::kNothing;
  }

  // Sends what there is, or nothing.
  void Tell() {
    const WatchPiece piece = watch_->Next();
    const absl::Time now = clock_.Now();
    const bool is_due = now - told_at_ >= std::min(state_->heartbeat, kHeartbeatMax) ||
                        piece.sequence - told_sequence_ >= kProgressEvents;
    const bool is_sent = !piece.is_empty() || is_due;
    {
      MutexLock lock(mutex_);
      is_wanted_ |= !is_sent && !piece.is_waiting;
      is_writing_ = is_sent;
      if (piece.notice == WatchNotice::kCutOff && !is_ending_) {
        is_ending_ = true;
        end_status_ = piece.why;
      }
    }
    if (!is_sent) return;
    outgoing_.Clear();
    outgoing_.set_incarnation(state_->incarnation);
    outgoing_.set_sequence(piece.sequence);
    outgoing_.set_previous_sequence(told_at_ == absl::InfinitePast() ? piece.sequence
                                                                     : told_sequence_);
    outgoing_.set_notice(ToWire(piece.notice));
    outgoing_.set_is_gap(piece.is_gap);
    for (const BlockEvent& event : piece.events) FillEvent(event, outgoing_.add_events());
    told_at_ = now;
    told_sequence_ = piece.sequence;
    record_.OnSent(outgoing_.ByteSizeLong());
    StartWrite(&outgoing_);
  }

  // A write is under way. If it does not end although nothing can follow it any more, the call
  // does.
  void LookAfterStalled() {
    bool is_over = false;
    {
      MutexLock lock(mutex_);
      is_over = is_ending_;
    }
    if (!is_over && !watch_->is_too_late()) return;
    const absl::Time now = clock_.Now();
    if (late_since_ == absl::InfinitePast()) late_since_ = now;
    if (now - late_since_ >= kStalledMax) context_->TryCancel();
  }

  void FinishCall() {
    grpc::Status final_status;
    {
      MutexLock lock(mutex_);
      final_status = ToGrpcStatus(end_status_, state_->incarnation);
    }
    final_code_ = final_status.error_code();
    Finish(final_status);
  }

  ServiceState* const state_;
  WatchStreams* const streams_;
  grpc::CallbackServerContext* const context_;
  const SteadyClock clock_;
  const Hold hold_;
  RpcRecord record_;
  std::unique_ptr<BlockWatch> watch_;
  v1::WatchResponse outgoing_;  // belongs to gRPC while is_writing_
  absl::Time told_at_ = absl::InfinitePast();
  uint64_t told_sequence_ = 0;
  absl::Time late_since_ = absl::InfinitePast();
  grpc::StatusCode final_code_ = grpc::StatusCode::OK;
  std::shared_ptr<WatchStream> self_;  // while gRPC knows this reactor

  Mutex mutex_;
  absl::Status end_status_ IBID_GUARDED_BY(mutex_);
  bool is_wanted_ IBID_GUARDED_BY(mutex_) = false;
  bool is_writing_ IBID_GUARDED_BY(mutex_) = false;
  bool is_ending_ IBID_GUARDED_BY(mutex_) = false;
  bool is_finished_ IBID_GUARDED_BY(mutex_) = false;
  bool is_advancing_ IBID_GUARDED_BY(mutex_) = false;
};

WatchStreams::WatchStreams(ServiceState* state) : state_(state) {
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "ibid-watch");
}

WatchStreams::~WatchStreams() {
  {
    MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void WatchStreams::Run() {
  uint64_t seen = 0;
  while (true) {
    std::vector<std::shared_ptr<WatchStream>> streams;
    {
      MutexLock lock(mutex_);
      while (streams_.empty() && !is_stopping_) changed_.Wait(mutex_);
      if (is_stopping_) return;
      streams.assign(streams_.begin(), streams_.end());
    }
    for (const auto& stream : streams) stream->Advance();
    streams.clear();
    {
      MutexLock lock(mutex_);
      if (!is_stopping_) changed_.WaitFor(mutex_, kGather);
    }
    seen = state_->store->WaitForEvents(seen, kTick);
  }
}

WatchReactor* WatchStreams::Start(grpc::CallbackServerContext* context,
                                  const v1::WatchRequest& request) {
  const auto stream = std::make_shared<WatchStream>(state_, this, context);
  stream->Start(request);
  return stream.get();
}

void WatchStreams::EndAll(const absl::Status& why) {
  std::vector<std::shared_ptr<WatchStream>> streams;
  {
    MutexLock lock(mutex_);
    refusal_ = why;
    streams.assign(streams_.begin(), streams_.end());
  }
  for (const auto& stream : streams) stream->End(why);
}

absl::Status WatchStreams::Add(const std::shared_ptr<WatchStream>& stream) {
  MutexLock lock(mutex_);
  if (!refusal_.ok()) return refusal_;
  streams_.insert(stream);
  changed_.NotifyAll();
  return absl::OkStatus();
}

void WatchStreams::Remove(const std::shared_ptr<WatchStream>& stream) {
  MutexLock lock(mutex_);
  streams_.erase(stream);
}

}  // namespace ibid
