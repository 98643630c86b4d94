// Back-pressure: a write ends when gRPC has taken the message, so a client that does not read holds
// one message here and its place in the store's log. The log does not wait for it.
#include "cache_server/watch_stream.h"

#include <grpcpp/server_context.h>
#include <pthread.h>

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cache_server/block_watch.h"
#include "core/check.h"
#include "core/limit.h"
#include "transport/key_bytes.h"
#include "transport/limits.h"

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

class WatchStream final : public StreamCall<WatchReactor> {
 public:
  WatchStream(ServiceState* state, RunningCalls<WatchReactor>* calls,
              grpc::CallbackServerContext* context)
      : StreamCall(state, RpcMethod::kWatch), calls_(calls), context_(context) {}

  void Start(const v1::WatchRequest& request) {
    Begin();
    record_.OnReceived(request.ByteSizeLong());
    absl::Status status = Open(request);
    if (status.ok()) status = calls_->Add(shared_from_this());  // now others look for events too
    status.ok() ? Advance() : End(status);
  }

 private:
  absl::Status Open(const v1::WatchRequest& request) {
    IBID_ASSIGN_OR_RETURN(const WatchOptions options, OptionsOf(request));
    IBID_ASSIGN_OR_RETURN(watch_, state_->store->Watch(options));
    return absl::OkStatus();
  }

  bool Step() override {
    bool is_writing = false, is_over = false;
    {
      MutexLock lock(mutex_);
      is_writing = is_writing_;
      is_over = is_ending_;
    }
    if (!is_writing) return Tell();
    LookAfterStalled(is_over);
    return false;
  }

  // Sends what there is. True when there may be more to tell at once.
  bool Tell() {
    const WatchPiece piece = watch_->Next();
    const absl::Time now = clock_.Now();
    const bool is_due = now - told_at_ >= std::min(state_->heartbeat, kHeartbeatMax) ||
                        piece.sequence - told_sequence_ >= kProgressEvents;
    if (piece.is_empty() && !is_due) return !piece.is_waiting;
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
    Write(&outgoing_, outgoing_.ByteSizeLong());
    if (piece.notice == WatchNotice::kCutOff) {
      MutexLock lock(mutex_);
      EndLocked(piece.why);
    }
    return false;
  }

  // A write is under way. If it does not end although nothing can follow it any more, the call
  // does.
  void LookAfterStalled(bool is_over) {
    if (!is_over && !watch_->is_too_late()) return;
    const absl::Time now = clock_.Now();
    if (late_since_ == absl::InfinitePast()) late_since_ = now;
    if (now - late_since_ >= kStalledMax) context_->TryCancel();
  }

  void OnGone() override {
    watch_.reset();
    calls_->Remove(shared_from_this());
  }

  RunningCalls<WatchReactor>* const calls_;
  grpc::CallbackServerContext* const context_;
  const SteadyClock clock_;
  std::unique_ptr<BlockWatch> watch_;
  v1::WatchResponse outgoing_;  // belongs to gRPC while is_writing_
  absl::Time told_at_ = absl::InfinitePast();
  uint64_t told_sequence_ = 0;
  absl::Time late_since_ = absl::InfinitePast();
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
    {
      MutexLock lock(mutex_);
      while (!has_calls_ && !is_stopping_) changed_.Wait(mutex_);
      if (is_stopping_) return;
      has_calls_ = false;
    }
    const size_t calls_count = AdvanceAll();
    {
      MutexLock lock(mutex_);
      has_calls_ |= calls_count > 0;
      if (!is_stopping_) changed_.WaitFor(mutex_, kGather);
    }
    seen = state_->store->WaitForEvents(seen, kTick);
  }
}

size_t WatchStreams::AdvanceAll() {
  const auto calls = calls_.All();
  for (const auto& call : calls) call->Advance();
  return calls.size();
}

WatchReactor* WatchStreams::Start(grpc::CallbackServerContext* context,
                                  const v1::WatchRequest& request) {
  const auto stream = std::make_shared<WatchStream>(state_, &calls_, context);
  stream->Start(request);
  {
    MutexLock lock(mutex_);
    has_calls_ = true;
  }
  changed_.NotifyAll();
  return stream.get();
}

}  // namespace ibid
