// Invariants, under mutex_: at most one write is under way, and answers that would pile up behind
// it become one; Finish is called once, with no write under way; one thread at a time acts on the
// state (is_advancing_), as in fetch_stream.cc.
#include "cache_server/session_stream.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/log.h"
#include "transport/limits.h"
#include "transport/status_conversion.h"

namespace ibid {
namespace {

// Between two log lines of one place.
constexpr int64_t kLogPeriodSeconds = 10;
constexpr size_t kNameBytesLogged = 64;

// What a client calls itself, on one line and in quotes, whatever it is.
std::string PrintableName(absl::string_view name) {
  return absl::StrCat("'", absl::Utf8SafeCHexEscape(name.substr(0, kNameBytesLogged)), "'");
}

}  // namespace

class SessionStream final : public SessionReactor,
                            public std::enable_shared_from_this<SessionStream> {
 public:
  SessionStream(ServiceState* state, SessionStreams* streams)
      : state_(state),
        streams_(streams),
        hold_(state->holds),
        record_(&state->metrics, RpcMethod::kSession) {}

  void Start() {
    self_ = shared_from_this();
    const absl::Status admitted = streams_->Add(self_);
    if (!admitted.ok()) End(admitted);
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

  void OnReadDone(bool ok) override {
    const auto self = shared_from_this();
    if (!ok) return End(absl::OkStatus());  // the client has said all it had to say
    record_.OnReceived(incoming_.ByteSizeLong());
    const absl::Status status = TakeMessage();
    if (!status.ok()) return End(status);
    {
      MutexLock lock(mutex_);
      is_reading_ = false;
      is_answer_due_ = true;
    }
    Advance();
  }

  void OnWriteDone(bool ok) override {
    const auto self = shared_from_this();
    {
      MutexLock lock(mutex_);
      is_writing_ = false;
    }
    if (!ok) return End(absl::CancelledError("Session: the client is gone"));
    Advance();
  }

  void OnCancel() override { End(absl::CancelledError("Session: the client is gone")); }

  void OnDone() override {
    const std::shared_ptr<SessionStream> self =
        std::move(self_);  // the last reference but that of streams_
    SessionId session;
    {
      MutexLock lock(mutex_);
      session = session_;
    }
    if (session.value != 0) {
      state_->store->EndSession(session);
      IBID_LOG(info, "session {:08x} ended", session.value >> 32);
    }
    record_.OnDone(final_code_);
    streams_->Remove(self);
  }

 private:
  enum class Action { kNothing, kRead, kWrite, kFinish };

  void Advance() {
    {
      MutexLock lock(mutex_);
      if (is_advancing_) return;
      is_advancing_ = true;
    }
    while (true) {
      switch (NextAction()) {
        case Action::kNothing:
          return;
        case Action::kRead:
          StartRead(&incoming_);
          break;
        case Action::kWrite:
          record_.OnSent(outgoing_.ByteSizeLong());
          StartWrite(&outgoing_);
          break;
        case Action::kFinish:
          return FinishCall();
      }
    }
  }

  // With kNothing this thread has ceased to be the one that acts.
  Action NextAction() {
    MutexLock lock(mutex_);
    if (is_ending_) {
      if (!is_writing_ && !is_finished_) {
        is_finished_ = true;
        return Action::kFinish;
      }
    } else if (is_answer_due_ && !is_writing_) {
      is_answer_due_ = false;
      is_writing_ = true;
      FillAnswer();
      return Action::kWrite;
    } else if (!is_reading_) {
      is_reading_ = true;
      return Action::kRead;
    }
    is_advancing_ = false;
    return Action::kNothing;
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

  void FillAnswer() IBID_REQUIRES(mutex_) {
    outgoing_.set_incarnation(state_->incarnation);
    outgoing_.set_session_id(session_.value);
    outgoing_.set_heartbeat_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(state_->heartbeat)));
    outgoing_.set_lease_ttl_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(state_->lease_ttl)));
  }

  absl::Status TakeMessage() {
    SessionId session;
    {
      MutexLock lock(mutex_);
      session = session_;
    }
    if (session.value == 0) return OpenSession();
    if (static_cast<size_t>(incoming_.release_lease_ids_size()) > kReleaseLeasesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("Session: ", incoming_.release_lease_ids_size(),
                       " leases in one message, over kReleaseLeasesMax=", kReleaseLeasesMax));
    }
    std::vector<LeaseId> releases;
    for (const uint64_t id : incoming_.release_lease_ids()) releases.push_back(LeaseId{id});
    if (!releases.empty()) state_->store->ReleaseLeases(session, releases);
    return state_->store->KeepAlive(session, incoming_.renew_leases());
  }

  absl::Status OpenSession() {
    if (incoming_.client_name().size() > kTextFieldBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("Session: client_name is over kTextFieldBytesMax=", kTextFieldBytesMax));
    }
    absl::StatusOr<SessionId> session = state_->store->OpenSession(incoming_.client_name());
    if (!session.ok()) {
      IBID_LOG_EVERY(kLogPeriodSeconds, warn, "session refused: {}", session.status().message());
      return session.status();
    }
    IBID_LOG(info, "session {:08x} of {} opened", session->value >> 32,
             PrintableName(incoming_.client_name()));
    MutexLock lock(mutex_);
    session_ = *session;
    return absl::OkStatus();
  }

  ServiceState* const state_;
  SessionStreams* const streams_;
  const Hold hold_;
  RpcRecord record_;
  v1::SessionRequest incoming_;   // belongs to gRPC while is_reading_
  v1::SessionResponse outgoing_;  // belongs to gRPC while is_writing_
  grpc::StatusCode final_code_ = grpc::StatusCode::OK;
  std::shared_ptr<SessionStream> self_;  // while gRPC knows this reactor

  Mutex mutex_;
  SessionId session_ IBID_GUARDED_BY(mutex_);
  absl::Status end_status_ IBID_GUARDED_BY(mutex_);
  bool is_reading_ IBID_GUARDED_BY(mutex_) = false;
  bool is_writing_ IBID_GUARDED_BY(mutex_) = false;
  bool is_answer_due_ IBID_GUARDED_BY(mutex_) = false;
  bool is_ending_ IBID_GUARDED_BY(mutex_) = false;
  bool is_finished_ IBID_GUARDED_BY(mutex_) = false;
  bool is_advancing_ IBID_GUARDED_BY(mutex_) = false;
};

SessionReactor* SessionStreams::Start(ServiceState* state) {
  const auto stream = std::make_shared<SessionStream>(state, this);
  stream->Start();
  return stream.get();
}

void SessionStreams::Refuse(const absl::Status& why) {
  MutexLock lock(mutex_);
  if (!has_ended_) refusal_ = why;
}

void SessionStreams::Take() {
  MutexLock lock(mutex_);
  if (!has_ended_) refusal_ = absl::OkStatus();
}

void SessionStreams::EndAll(const absl::Status& why) {
  std::vector<std::shared_ptr<SessionStream>> streams;
  {
    MutexLock lock(mutex_);
    has_ended_ = true;
    refusal_ = why;
    streams.assign(streams_.begin(), streams_.end());
  }
  for (const auto& stream : streams) stream->End(why);
}

absl::Status SessionStreams::Add(const std::shared_ptr<SessionStream>& stream) {
  MutexLock lock(mutex_);
  if (!refusal_.ok()) return refusal_;
  streams_.insert(stream);
  return absl::OkStatus();
}

void SessionStreams::Remove(const std::shared_ptr<SessionStream>& stream) {
  MutexLock lock(mutex_);
  streams_.erase(stream);
}

}  // namespace ibid
