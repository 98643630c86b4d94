// ServerLink: one cache server as the client sees it. It keeps a session and the namespaces open,
// opens them again when the server comes back as another incarnation, and says at once, without a
// call, when the server is not worth one.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "client/circuit_breaker.h"
#include "client/client.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "transport/cache_channel.h"

namespace ibid {

// Between two lines of IBID_LOG_EVERY at one place.
inline constexpr int64_t kLogPeriodSeconds = 5;

enum class CallKind : uint8_t { kOpenNamespace, kMatch, kOffer, kFetch, kPublish, kDrop, kStats };
inline constexpr size_t kCallKindsCount = 7;

// How a connection to a server of this client is made.
ChannelOptions ChannelOptionsOf(const ClientOptions& options);

// One way to the server that was good when the call began.
struct LinkCall {
  std::shared_ptr<CacheChannel> channel;
  std::shared_ptr<CacheSession> session;
  std::shared_ptr<ShmAttachment> shm;  // of the session; null: bytes go by gRPC
  uint64_t epoch = 0;                  // grows each time the session is opened again
  absl::Duration timeout;
};

// Thread safety: thread-safe. One thread of its own connects, opens and probes: a server that does
// not answer delays no other server's link.
class ServerLink {
 public:
  // `options` and `clock` must outlive it. Errors: those of CacheChannel::Create.
  static absl::StatusOr<std::unique_ptr<ServerLink>> Create(const std::string& address,
                                                            const ClientOptions* options,
                                                            const Clock* clock);
  ~ServerLink();

  // Asks the thread to end, without waiting: many links stop side by side.
  void StartStopping();

  const std::string& address() const { return address_; }
  // How block bytes travel now: "shm", "grpc", or "" without a session; and why it is not shm.
  struct Transport {
    std::string name, reason;
  };
  Transport transport() const;
  // A session is open and the circuit breaker is closed.
  bool is_usable() const;

  // Adds namespace `index` of the client, unless it is known, and agrees on it with the server if
  // that is there. Errors: FailedPrecondition, InvalidArgument: refused. A server that is away is
  // no error.
  absl::Status OpenNamespace(uint32_t index, const NamespaceSpec& spec, uint64_t payload_bytes,
                             absl::Time deadline);

  // Runs `attempt` with a usable session in which namespace `index` is open, and tells breaker and
  // metrics of its end. FailedPrecondition means to the server an unknown session or namespace:
  // they are opened again and `attempt` runs once more, as it does after Unavailable (not for
  // kFetch: its leases would be void). Errors: those of `attempt`; Unavailable at once when the
  // server is away, or the breaker open, or the namespace refused.
  absl::Status Call(CallKind kind, uint32_t index, absl::Time deadline,
                    const std::function<absl::Status(const LinkCall&)>& attempt) {
    return Call(kind, std::span<const uint32_t>(&index, 1), deadline, attempt);
  }
  // The same for a call that names several namespaces.
  absl::Status Call(CallKind kind, std::span<const uint32_t> indices, absl::Time deadline,
                    const std::function<absl::Status(const LinkCall&)>& attempt);

  // The same for calls that name no open namespace: one attempt, and what fails is not opened
  // again. The second kind looks past the breaker.
  absl::Status CallOnce(CallKind kind, absl::Time deadline,
                        const std::function<absl::Status(const LinkCall&)>& attempt);
  absl::Status CallServer(CallKind kind, absl::Time deadline,
                          const std::function<absl::Status(const LinkCall&)>& attempt);

  // To be called with the incarnation of each reply. FailedPrecondition when it is not that of
  // `call`'s session: the link then opens everything again.
  absl::Status CheckIncarnation(const LinkCall& call, uint64_t incarnation);

 private:
  enum class State { kFirstAttempt, kDown, kUp };
  enum class Handshake { kNotDone, kOpen, kRefused };
  struct OpenedNamespace {
    bool is_known = false;  // false: a gap that another thread is about to fill
    NamespaceSpec spec;
    uint64_t payload_bytes = 0;
    uint64_t epoch = 0;  // that `handshake` is about
    Handshake handshake = Handshake::kNotDone;
    absl::Time retry_at = absl::InfinitePast();
  };
  struct Backlink {
    Mutex mutex;
    ServerLink* link IBID_GUARDED_BY(mutex) = nullptr;  // null once it has ended
  };
  struct Metrics {
    std::array<prometheus::Counter*, kCallKindsCount> requests{}, failures{};
    prometheus::Gauge* is_up = nullptr;
    prometheus::Gauge* is_breaker_open = nullptr;
  };

  ServerLink(std::string address, std::shared_ptr<CacheChannel> channel,
             const ClientOptions* options, const Clock* clock);

  // The thread.
  void Run();
  bool TryOpen();
  // Tries to share memory with the server of `call`'s session. Returns why that is not done.
  std::string Attach(LinkCall* call);
  void WatchSession();
  void Probe();
  void ReplaceChannel();

  absl::StatusOr<LinkCall> Admit(absl::Time deadline, bool needs_closed_breaker);
  // In server_handshake.cc.
  absl::Status EnsureNamespace(const LinkCall& call, uint32_t index);
  absl::Status ShakeHands(const LinkCall& call, uint32_t index);
  void NoteHandshake(const LinkCall& call, uint32_t index, const absl::Status& status);
  void Report(CallKind kind, const absl::Status& status, absl::Duration timeout);
  bool Reopen(uint64_t epoch, absl::Time deadline);
  void WantReopen(absl::string_view why) IBID_REQUIRES(mutex_);
  void OnSessionBroken(absl::Status why);
  void PauseBeforeRetry(absl::Time deadline);
  void SetState(State state) IBID_REQUIRES(mutex_);
  void ShowBreaker() IBID_REQUIRES(mutex_);
  void RegisterMetrics();

  const std::string address_;
  const ClientOptions* const options_;
  const Clock* const clock_;
  Metrics metrics_;

  mutable Mutex mutex_;
  CondVar changed_;  // any of the below
  State state_ IBID_GUARDED_BY(mutex_) = State::kFirstAttempt;
  std::shared_ptr<CacheChannel> channel_ IBID_GUARDED_BY(mutex_);
  std::shared_ptr<CacheSession> session_ IBID_GUARDED_BY(mutex_);  // null unless kUp
  std::shared_ptr<ShmAttachment> shm_ IBID_GUARDED_BY(mutex_);     // of session_
  std::string no_shm_reason_ IBID_GUARDED_BY(mutex_);
  uint64_t epoch_ IBID_GUARDED_BY(mutex_) = 0;  // of session_
  bool is_reopen_wanted_ IBID_GUARDED_BY(mutex_) = false;
  absl::Time reopened_at_ IBID_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool is_stopping_ IBID_GUARDED_BY(mutex_) = false;
  std::vector<OpenedNamespace> namespaces_ IBID_GUARDED_BY(mutex_);
  CircuitBreaker breaker_ IBID_GUARDED_BY(mutex_);
  absl::Status last_error_ IBID_GUARDED_BY(mutex_);  // why the server is away
  // What a session may call back: it can outlive the link by a moment, in the hands of a match.
  const std::shared_ptr<Backlink> backlink_ = std::make_shared<Backlink>();

  uint64_t last_epoch_ =
      0;  // owned by the thread: no attempt to open shares its number with another
  std::thread thread_;
};

}  // namespace ibid
