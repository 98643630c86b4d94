// Answers that would pile up behind one that is being written become one.
#include "cache_server/session_stream.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/limit.h"
#include "core/log.h"
#include "transport/limits.h"

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

class SessionStream final : public BidiCall<v1::SessionRequest, v1::SessionResponse> {
 public:
  SessionStream(ServiceState* state, RunningCalls<SessionReactor>* calls)
      : BidiCall(state, RpcMethod::kSession), calls_(calls) {}

  void Start() {
    Begin();
    const absl::Status admitted = calls_->Add(shared_from_this());
    admitted.ok() ? Advance() : End(admitted);
  }

 private:
  bool Step() override {
    bool is_answering = false;
    {
      MutexLock lock(mutex_);
      is_answering = is_answer_due_ && !is_writing_ && !is_ending_;
      if (is_answering) {
        is_answer_due_ = false;
        FillAnswer();
      }
    }
    if (!is_answering) return Read();
    Write(&outgoing_, outgoing_.ByteSizeLong());
    return true;
  }

  void Take(v1::SessionRequest& message) override {
    record_.OnReceived(message.ByteSizeLong());
    const absl::Status status = TakeMessage(message);
    if (!status.ok()) return End(status);
    MutexLock lock(mutex_);
    is_answer_due_ = true;
  }

  void OnGone() override {
    SessionId session;
    {
      MutexLock lock(mutex_);
      session = session_;
    }
    if (session.value != 0) {
      state_->store->EndSession(session);
      IBID_LOG(info, "session {:08x} ended", session.value >> 32);
    }
    calls_->Remove(shared_from_this());
  }

  void FillAnswer() IBID_REQUIRES(mutex_) {
    outgoing_.set_incarnation(state_->incarnation);
    outgoing_.set_session_id(session_.value);
    outgoing_.set_heartbeat_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(state_->heartbeat)));
    if (state_->shm != nullptr) outgoing_.set_shm_socket(state_->shm->socket());
    outgoing_.set_lease_ttl_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(state_->lease_ttl)));
  }

  absl::Status TakeMessage(const v1::SessionRequest& message) {
    SessionId session;
    {
      MutexLock lock(mutex_);
      session = session_;
    }
    if (session.value == 0) return OpenSession(message.client_name());
    if (static_cast<size_t>(message.release_lease_ids_size()) > kReleaseLeasesMax) {
      return LimitReached(
          absl::StrCat("Session: ", message.release_lease_ids_size(), " leases in one message"),
          "kReleaseLeasesMax", kReleaseLeasesMax);
    }
    std::vector<LeaseId> releases;
    for (const uint64_t id : message.release_lease_ids()) releases.push_back(LeaseId{id});
    if (!releases.empty()) state_->store->ReleaseLeases(session, releases);
    return state_->store->KeepAlive(session, message.renew_leases());
  }

  absl::Status OpenSession(const std::string& client_name) {
    if (client_name.size() > kTextFieldBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("Session: client_name is over kTextFieldBytesMax=", kTextFieldBytesMax));
    }
    absl::StatusOr<SessionId> session = state_->store->OpenSession(client_name);
    if (!session.ok()) {
      IBID_LOG_EVERY(kLogPeriodSeconds, warn, "session refused: {}", session.status().message());
      return session.status();
    }
    IBID_LOG(info, "session {:08x} of {} opened", session->value >> 32, PrintableName(client_name));
    MutexLock lock(mutex_);
    session_ = *session;
    return absl::OkStatus();
  }

  RunningCalls<SessionReactor>* const calls_;
  v1::SessionResponse outgoing_;  // belongs to gRPC while is_writing_
  SessionId session_ IBID_GUARDED_BY(mutex_);
  bool is_answer_due_ IBID_GUARDED_BY(mutex_) = false;
};

SessionReactor* SessionStreams::Start(ServiceState* state) {
  const auto stream = std::make_shared<SessionStream>(state, &calls_);
  stream->Start();
  return stream.get();
}

}  // namespace ibid
