// States of a session stream; `mutex_` guards the step from one to the next:
//
//   opening --first response--> open --end of stream, or silence--> broken
//      \--end of stream, timeout, Close--------^    \--Close--> broken, without on_broken
//
// gRPC calls the reactor's methods, the alarm its callback, both on gRPC's threads. Each holds the
// stream by shared_ptr; the reactor's own reference goes in OnDone.
//
// Writes start on threads that are no reactions of gRPC's: a hold keeps the call until reads have
// ended and no such thread is between its look at `has_ended_` and the end of StartWrite.
#include "transport/cache_session.h"

#include <grpcpp/alarm.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/mutex.h"
#include "ibid/v1/cache.grpc.pb.h"
#include "transport/call_deadline.h"
#include "transport/limits.h"
#include "transport/status_conversion.h"

namespace ibid {
namespace {

// Heartbeats go out a little earlier than the server demands.
constexpr double kHeartbeatShare = 0.8;
constexpr int kSilentHeartbeatsMax = 2;

class SessionStream final : public grpc::ClientBidiReactor<v1::SessionRequest, v1::SessionResponse>,
                            public std::enable_shared_from_this<SessionStream> {
 public:
  SessionStream(std::shared_ptr<grpc::Channel> channel, std::function<void(absl::Status)> on_broken)
      : stub_(v1::CacheService::NewStub(std::move(channel))), on_broken_(std::move(on_broken)) {}

  // Starts the stream and waits for the server's first answer.
  absl::Status Open(absl::string_view client_name, absl::Duration timeout) {
    outgoing_.set_client_name(std::string(client_name));
    self_ = shared_from_this();
    stub_->async()->Session(&context_, this);
    {
      MutexLock lock(mutex_);
      is_writing_ = true;
    }
    AddHold();
    StartRead(&incoming_);
    StartWrite(&outgoing_);
    StartCall();
    const absl::Time until = clock_.Now() + timeout;
    MutexLock lock(mutex_);
    while (state_ == State::kOpening) {
      const absl::Duration left = until - clock_.Now();
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError("Session: the server did not answer in time");
      }
      changed_.WaitFor(mutex_, left);
    }
    return state_ == State::kOpen ? absl::OkStatus() : end_status_;
  }

  // Nothing is called back once this has returned. Waits for gRPC to give the reactor back, not
  // for the server.
  void Close() {
    std::unique_ptr<grpc::Alarm> alarm;
    std::shared_ptr<SessionStream> self;
    {
      MutexLock lock(mutex_);
      state_ = State::kBroken;
      on_broken_ = nullptr;
      alarm = std::move(alarm_);
      while (is_calling_back_) changed_.Wait(mutex_);
    }
    context_.TryCancel();
    MutexLock lock(mutex_);
    while (!is_done_) changed_.Wait(mutex_);
    self = std::move(self_);
  }

  void ReleaseLeases(std::span<const uint64_t> lease_ids) {
    {
      MutexLock lock(mutex_);
      if (state_ != State::kOpen) return;
      releases_.insert(releases_.end(), lease_ids.begin(), lease_ids.end());
    }
    WriteNext();
  }

  void ReleaseUnconfirmedLease(uint64_t lease_id) {
    {
      MutexLock lock(mutex_);
      late_releases_.push_back(lease_id);
    }
    ReleaseLeases({&lease_id, 1});
  }

  bool is_broken() const {
    MutexLock lock(mutex_);
    return state_ == State::kBroken;
  }
  // The server's first answer. Does not change once Open has succeeded.
  v1::SessionResponse first_response() const {
    MutexLock lock(mutex_);
    return first_response_;
  }

  void OnReadDone(bool ok) override {
    if (!ok) return EndWrites();  // the stream has ended: OnDone follows
    bool is_first = false;
    {
      MutexLock lock(mutex_);
      last_answer_ = clock_.Now();
      if (state_ == State::kOpening) {
        first_response_ = incoming_;
        state_ = State::kOpen;
        is_first = true;
        changed_.NotifyAll();
      }
    }
    if (is_first) ArmHeartbeat();
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(mutex_);
      is_writing_ = false;
    }
    if (ok) WriteNext();
  }

  void OnDone(const grpc::Status& status) override {
    absl::Status end = FromGrpcStatus(status);
    if (end.ok()) end = absl::UnavailableError("Session: the server ended the stream");
    Break(std::move(end));
    MutexLock lock(mutex_);
    is_done_ = true;
    changed_.NotifyAll();
  }

 private:
  enum class State { kOpening, kOpen, kBroken };

  void Break(absl::Status why) {
    std::function<void(absl::Status)> on_broken;
    std::unique_ptr<grpc::Alarm> alarm;
    {
      MutexLock lock(mutex_);
      if (state_ == State::kBroken) return;
      // Who waits in Open learns it from Open.
      if (state_ == State::kOpen) on_broken = std::move(on_broken_);
      on_broken_ = nullptr;
      state_ = State::kBroken;
      end_status_ = why;
      alarm = std::move(alarm_);
      is_calling_back_ = on_broken != nullptr;
      changed_.NotifyAll();
    }
    if (on_broken == nullptr) return;
    on_broken(std::move(why));
    MutexLock lock(mutex_);
    is_calling_back_ = false;
    changed_.NotifyAll();
  }

  // Sends what waits to be sent, unless a write is under way: then its end does.
  void WriteNext() {
    {
      MutexLock lock(mutex_);
      if (state_ != State::kOpen || has_ended_ || is_writing_ ||
          (releases_.empty() && !is_heartbeat_due_))
        return;
      outgoing_.Clear();
      outgoing_.set_renew_leases(is_heartbeat_due_);
      is_heartbeat_due_ = false;
      const size_t count = std::min(releases_.size(), kReleaseLeasesMax);
      for (size_t i = 0; i < count; ++i) outgoing_.add_release_lease_ids(releases_[i]);
      releases_.erase(releases_.begin(), releases_.begin() + static_cast<std::ptrdiff_t>(count));
      is_writing_ = true;
      ++starting_count_;
    }
    StartWrite(&outgoing_);
    bool is_last = false;
    {
      MutexLock lock(mutex_);
      --starting_count_;
      is_last = has_ended_ && starting_count_ == 0;
    }
    if (is_last) RemoveHold();
  }

  // No write starts from now on. Called once, when reads have ended.
  void EndWrites() {
    bool is_last = false;
    {
      MutexLock lock(mutex_);
      has_ended_ = true;
      is_last = starting_count_ == 0;
    }
    if (is_last) RemoveHold();
  }

  void ArmHeartbeat() {
    // A new alarm each time: this may run in the callback of the old one.
    auto alarm = std::make_unique<grpc::Alarm>();
    MutexLock lock(mutex_);
    if (state_ != State::kOpen) return;
    const absl::Duration interval =
        absl::Milliseconds(first_response_.heartbeat_ms()) * kHeartbeatShare;
    alarm->Set(DeadlineAfter(std::max(interval, absl::Milliseconds(1))),
               [self = shared_from_this()](bool ok) {
                 if (ok) self->OnHeartbeatDue();
               });
    alarm_.swap(alarm);
  }

  void OnHeartbeatDue() {
    bool is_silent = false;
    {
      MutexLock lock(mutex_);
      if (state_ != State::kOpen) return;
      const absl::Duration silence = clock_.Now() - last_answer_;
      is_silent =
          silence > absl::Milliseconds(first_response_.heartbeat_ms()) * kSilentHeartbeatsMax;
      is_heartbeat_due_ = true;
      releases_.insert(releases_.end(), late_releases_.begin(), late_releases_.end());
      late_releases_.clear();
    }
    if (is_silent) {
      Break(absl::UnavailableError("Session: the server is silent"));
      context_.TryCancel();
      return;
    }
    WriteNext();
    ArmHeartbeat();
  }

  const SteadyClock clock_;
  const std::unique_ptr<v1::CacheService::Stub> stub_;
  grpc::ClientContext context_;
  // Until Close, so longer than gRPC knows this reactor: the stream may hold the last reference to
  // its channel, and a channel that dies on the thread that serves gRPC's callbacks destroys the
  // queue under that thread.
  std::shared_ptr<SessionStream> self_;
  v1::SessionRequest outgoing_;   // belongs to gRPC while is_writing_
  v1::SessionResponse incoming_;  // belongs to the reading thread

  mutable Mutex mutex_;
  CondVar changed_;
  State state_ IBID_GUARDED_BY(mutex_) = State::kOpening;
  absl::Status end_status_ IBID_GUARDED_BY(mutex_);
  std::function<void(absl::Status)> on_broken_ IBID_GUARDED_BY(mutex_);
  bool is_done_ IBID_GUARDED_BY(mutex_) = false;  // OnDone has run
  bool is_calling_back_ IBID_GUARDED_BY(mutex_) = false;
  bool is_writing_ IBID_GUARDED_BY(mutex_) = false;
  bool has_ended_ IBID_GUARDED_BY(mutex_) = false;  // of reads
  int starting_count_ IBID_GUARDED_BY(mutex_) = 0;  // threads in StartWrite
  bool is_heartbeat_due_ IBID_GUARDED_BY(mutex_) = false;
  std::vector<uint64_t> releases_ IBID_GUARDED_BY(mutex_);
  std::vector<uint64_t> late_releases_ IBID_GUARDED_BY(mutex_);  // due with the next heartbeat
  v1::SessionResponse first_response_ IBID_GUARDED_BY(mutex_);
  absl::Time last_answer_ IBID_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Alarm> alarm_ IBID_GUARDED_BY(mutex_);
};

class OpenedSession final : public CacheSession {
 public:
  explicit OpenedSession(std::shared_ptr<SessionStream> stream)
      : stream_(std::move(stream)), response_(stream_->first_response()) {}
  ~OpenedSession() override { stream_->Close(); }

  uint64_t session_id() const override { return response_.session_id(); }
  uint64_t incarnation() const override { return response_.incarnation(); }
  absl::Duration heartbeat() const override { return absl::Milliseconds(response_.heartbeat_ms()); }
  absl::Duration lease_ttl() const override { return absl::Milliseconds(response_.lease_ttl_ms()); }
  std::string shm_socket() const override { return response_.shm_socket(); }
  bool is_broken() const override { return stream_->is_broken(); }
  void ReleaseLeases(std::span<const uint64_t> lease_ids) override {
    stream_->ReleaseLeases(lease_ids);
  }
  void ReleaseUnconfirmedLease(uint64_t lease_id) override {
    stream_->ReleaseUnconfirmedLease(lease_id);
  }

 private:
  const std::shared_ptr<SessionStream> stream_;
  const v1::SessionResponse response_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CacheSession>> OpenCacheSession(
    std::shared_ptr<grpc::Channel> channel, absl::string_view client_name, absl::Duration timeout,
    std::function<void(absl::Status)> on_broken) {
  const auto stream = std::make_shared<SessionStream>(std::move(channel), std::move(on_broken));
  if (absl::Status status = stream->Open(client_name, timeout); !status.ok()) {
    stream->Close();
    return status;
  }
  return std::unique_ptr<CacheSession>(std::make_unique<OpenedSession>(stream));
}

}  // namespace ibid
