// What the streaming calls of the services have in common: whose turn it is, and how a call ends.
// Private to the services.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cache_server/service_state.h"
#include "core/mutex.h"
#include "transport/status_conversion.h"

namespace ibid {

// A call of one stream method: a reactor of gRPC that owns itself. Whatever happens, on threads of
// gRPC, of the store or of the server, changes the state under mutex_ and calls Advance; one thread
// at a time acts on it, so that a store which answers on the caller's stack costs no recursion, and
// gRPC is told one thing at a time.
//
// Invariants, under mutex_:
// - At most one write is under way.
// - Finish is called once: when the call is ending, no write is under way and is_busy() is false.
//   Nothing follows it.
//
// Thread safety: End and Advance from any thread that holds a reference.
template <typename Reactor>
class StreamCall : public Reactor, public std::enable_shared_from_this<StreamCall<Reactor>> {
 public:
  // Ends the call with `why`, once nothing is in its way. The first error is what the client hears.
  void End(const absl::Status& why) {
    {
      MutexLock lock(mutex_);
      EndLocked(why);
    }
    Advance();
  }

  // Does what can be done now, unless another thread is at it: then that one looks again.
  void Advance() {
    const auto self = this->shared_from_this();
    {
      MutexLock lock(mutex_);
      is_wanted_ = true;
      if (is_advancing_) return;
      is_advancing_ = true;
    }
    bool is_more = false;
    while (true) {
      switch (NextTurn(is_more)) {
        case Turn::kNone:
          return;
        case Turn::kStep:
          is_more = Step();
          break;
        case Turn::kFinish:
          return FinishCall();
      }
    }
  }

  void OnWriteDone(bool ok) override {
    OnWritten();
    {
      MutexLock lock(mutex_);
      is_writing_ = false;
      if (!ok) CancelLocked();
    }
    Advance();
  }

  void OnCancel() override {
    {
      MutexLock lock(mutex_);
      CancelLocked();
    }
    Advance();
  }

  void OnDone() override {
    const auto self = std::move(self_);  // may be the last reference
    OnGone();
    record_.OnDone(final_code_);
  }

 protected:
  StreamCall(ServiceState* state, RpcMethod method)
      : state_(state), method_(method), hold_(state->holds), record_(&state->metrics, method) {}

  // Gives gRPC its reference. REQUIRES: called once, on the thread of the handler, before all else.
  void Begin() { self_ = this->shared_from_this(); }

  // Does one thing that can be done now; false when there is nothing (more). Called without a lock,
  // by one thread at a time, also while the call is ending but not over.
  virtual bool Step() = 0;
  // What must be over before the call can end, whoever wants it to.
  virtual bool is_busy() const IBID_REQUIRES(mutex_) { return false; }
  // The three below are called without a lock. A write has ended: its message is ours again.
  virtual void OnWritten() {}
  // Finish comes next.
  virtual void OnFinishing() {}
  // gRPC will not call again.
  virtual void OnGone() {}

  // REQUIRES: called by Step, while no write is under way. `message` belongs to gRPC until
  // OnWritten.
  template <typename Message>
  void Write(const Message* message, size_t bytes) {
    {
      MutexLock lock(mutex_);
      is_writing_ = true;
    }
    record_.OnSent(bytes);
    this->StartWrite(message);
  }

  void EndLocked(const absl::Status& why) IBID_REQUIRES(mutex_) {
    if (end_status_.ok()) end_status_ = why;
    is_ending_ = true;
  }

  ServiceState* const state_;
  const RpcMethod method_;
  const Hold hold_;
  RpcRecord record_;

  Mutex mutex_;
  bool is_writing_ IBID_GUARDED_BY(mutex_) = false;
  bool is_ending_ IBID_GUARDED_BY(mutex_) = false;
  bool is_cancelled_ IBID_GUARDED_BY(mutex_) = false;  // the client is gone; so it is ending too

 private:
  enum class Turn { kNone, kStep, kFinish };

  void CancelLocked() IBID_REQUIRES(mutex_) {
    is_cancelled_ = true;
    EndLocked(absl::CancelledError(absl::StrCat(NameOf(method_), ": the client is gone")));
  }

  // With kNone this thread has ceased to be the one that acts; after kFinish nobody is any more.
  Turn NextTurn(bool is_more) {
    MutexLock lock(mutex_);
    if (is_ending_ && !is_writing_ && !is_busy()) return Turn::kFinish;
    if (is_more || std::exchange(is_wanted_, false)) return Turn::kStep;
    is_advancing_ = false;
    return Turn::kNone;
  }

  void FinishCall() {
    OnFinishing();
    grpc::Status final_status;
    {
      MutexLock lock(mutex_);
      final_status = ToGrpcStatus(end_status_, state_->incarnation);
    }
    final_code_ = final_status.error_code();
    this->Finish(final_status);
  }

  grpc::StatusCode final_code_ = grpc::StatusCode::OK;
  std::shared_ptr<StreamCall> self_;  // while gRPC knows this reactor

  absl::Status end_status_ IBID_GUARDED_BY(mutex_);
  bool is_wanted_ IBID_GUARDED_BY(mutex_) = false;
  bool is_advancing_ IBID_GUARDED_BY(mutex_) = false;
};

// One that the client talks to as well: it reads a message when a Step says so, and takes it on
// gRPC's thread.
template <typename Request, typename Response>
class BidiCall : public StreamCall<grpc::ServerBidiReactor<Request, Response>> {
 public:
  void OnReadDone(bool ok) final {
    if (!ok) return this->End(absl::OkStatus());  // the client has said all it had to say
    {
      MutexLock lock(this->mutex_);
      is_taking_ = true;
    }
    Take(incoming_);
    {
      MutexLock lock(this->mutex_);
      is_taking_ = false;
      is_reading_ = false;
    }
    this->Advance();
  }

 protected:
  using StreamCall<grpc::ServerBidiReactor<Request, Response>>::StreamCall;

  // A message has come. Called without a lock, one message after the other.
  virtual void Take(Request& message) = 0;

  // For Step: starts a read unless one is under way, or nothing more is heard. A read that is under
  // way at the end ends by itself.
  bool Read() {
    {
      MutexLock lock(this->mutex_);
      if (is_reading_ || this->is_ending_) return false;
      is_reading_ = true;
    }
    this->StartRead(&incoming_);
    return true;
  }

  bool is_busy() const IBID_REQUIRES(this->mutex_) override { return is_taking_; }

 private:
  Request incoming_;  // belongs to gRPC while is_reading_ and not is_taking_
  bool is_reading_ IBID_GUARDED_BY(this->mutex_) = false;
  bool is_taking_ IBID_GUARDED_BY(this->mutex_) = false;
};

// The calls of one method that run, so that the server can end them. Thread-safe.
template <typename Reactor>
class RunningCalls {
 public:
  using CallPtr = std::shared_ptr<StreamCall<Reactor>>;

  // Errors: what Refuse or EndAll was given.
  absl::Status Add(const CallPtr& call) {
    MutexLock lock(mutex_);
    if (!refusal_.ok()) return refusal_;
    calls_.insert(call);
    return absl::OkStatus();
  }
  void Remove(const CallPtr& call) {
    MutexLock lock(mutex_);
    calls_.erase(call);
  }
  std::vector<CallPtr> All() const {
    MutexLock lock(mutex_);
    return {calls_.begin(), calls_.end()};
  }

  // Refuses new calls with `why`; those that run go on.
  void Refuse(const absl::Status& why) {
    MutexLock lock(mutex_);
    if (!has_ended_) refusal_ = why;
  }
  // Undoes Refuse, not EndAll.
  void Take() {
    MutexLock lock(mutex_);
    if (!has_ended_) refusal_ = absl::OkStatus();
  }
  // Ends all calls with `why` and refuses new ones with it: without this a server could not stop
  // before its clients do. Final.
  void EndAll(const absl::Status& why) {
    {
      MutexLock lock(mutex_);
      has_ended_ = true;
      refusal_ = why;
    }
    for (const CallPtr& call : All()) call->End(why);
  }

 private:
  mutable Mutex mutex_;
  absl::Status refusal_ IBID_GUARDED_BY(mutex_);
  bool has_ended_ IBID_GUARDED_BY(mutex_) = false;
  absl::flat_hash_set<CallPtr> calls_ IBID_GUARDED_BY(mutex_);
};

}  // namespace ibid
