// Invariants: session_ is set exactly while the state is kUp. Epochs only grow, and a session
// belongs to one epoch. An entry of namespaces_ says something only about its `epoch`. Calls run
// without the lock, on copies of the pointers.
//
//   kFirstAttempt --connected, session and namespaces open--> kUp <--+
//        |                                                    |      | opened again, as another
//        epoch
//        +--connect_timeout, or a caller waited in vain--> kDown ----+
//
#include "client/server_link.h"

#include <pthread.h>

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/log.h"

namespace ibid {
namespace {

// WaitUntilConnected cannot be interrupted: this is how late an ending client notices.
constexpr absl::Duration kConnectSlice = absl::Milliseconds(100);
// A session is looked at this often even when nobody says that it broke.
constexpr absl::Duration kWatchInterval = absl::Milliseconds(500);
// A server that answers FailedPrecondition without end must not make its session be opened without
// end.
constexpr absl::Duration kReopenInterval = absl::Seconds(1);
constexpr absl::Duration kRetryDelay = absl::Milliseconds(10);
// Namespaces, of those opened last, that are agreed on before a session is used.
constexpr size_t kEagerHandshakesMax = 64;
// A call that was given less than this and got no answer says nothing about the server.
constexpr absl::Duration kBlamefulTimeout = absl::Milliseconds(20);

constexpr const char* kCallNames[kCallKindsCount] = {"open_namespace", "match", "offer", "fetch",
                                                     "publish",        "drop",  "stats"};

double Random() {
  thread_local std::minstd_rand engine{std::random_device{}()};
  return std::uniform_real_distribution<double>(0, 1)(engine);
}

}  // namespace

ChannelOptions ChannelOptionsOf(const ClientOptions& options) {
  ChannelOptions channel;
  channel.connect_timeout = options.connect_timeout;
  channel.reconnect_backoff_min = options.reconnect_backoff_min;
  channel.reconnect_backoff_max = options.reconnect_backoff_max;
  channel.tls = {options.tls_certificate_file, options.tls_key_file, options.tls_ca_file};
  return channel;
}

absl::StatusOr<std::unique_ptr<ServerLink>> ServerLink::Create(const std::string& address,
                                                               const ClientOptions* options,
                                                               const Clock* clock) {
  IBID_ASSIGN_OR_RETURN(auto channel, CacheChannel::Create(address, ChannelOptionsOf(*options)));
  std::unique_ptr<ServerLink> link(new ServerLink(address, std::move(channel), options, clock));
  link->thread_ = std::thread([raw = link.get()] { raw->Run(); });
  pthread_setname_np(link->thread_.native_handle(), "ibid-link");
  return link;
}

ServerLink::ServerLink(std::string address, std::shared_ptr<CacheChannel> channel,
                       const ClientOptions* options, const Clock* clock)
    : address_(std::move(address)),
      options_(options),
      clock_(clock),
      channel_(std::move(channel)),
      breaker_(options->breaker_failures_count, options->breaker_open),
      last_error_(absl::UnavailableError("no connection")) {
  RegisterMetrics();
  MutexLock lock(backlink_->mutex);
  backlink_->link = this;
}

ServerLink::~ServerLink() {
  StartStopping();
  thread_.join();
  MutexLock lock(backlink_->mutex);
  backlink_->link = nullptr;
}

void ServerLink::StartStopping() {
  MutexLock lock(mutex_);
  is_stopping_ = true;
  changed_.NotifyAll();
}

bool ServerLink::is_usable() const {
  MutexLock lock(mutex_);
  return state_ == State::kUp && breaker_.is_closed() && !session_->is_broken();
}

void ServerLink::Run() {
  const absl::Time started = clock_->Now();
  for (uint32_t attempt = 0;;) {
    std::shared_ptr<CacheChannel> channel;
    {
      MutexLock lock(mutex_);
      if (is_stopping_) return;
      channel = channel_;
    }
    if (!channel->WaitUntilConnected(kConnectSlice)) {
      MutexLock lock(mutex_);
      if (state_ == State::kFirstAttempt && clock_->Now() - started >= options_->connect_timeout)
        SetState(State::kDown);
      continue;
    }
    if (TryOpen()) {
      attempt = 0;
      WatchSession();
      continue;
    }
    const absl::Time next = clock_->Now() + BackoffDelay(attempt++, options_->reconnect_backoff_min,
                                                         options_->reconnect_backoff_max, Random());
    MutexLock lock(mutex_);
    if (state_ == State::kFirstAttempt) SetState(State::kDown);
    while (!is_stopping_ && clock_->Now() < next) changed_.WaitFor(mutex_, next - clock_->Now());
  }
}

bool ServerLink::TryOpen() {
  LinkCall call;
  call.timeout = options_->connect_timeout;
  {
    MutexLock lock(mutex_);
    call.channel = channel_;
  }
  call.epoch = ++last_epoch_;
  auto opened = call.channel->OpenSession(options_->client_name, call.timeout,
                                          [backlink = backlink_](absl::Status why) {
                                            MutexLock lock(backlink->mutex);
                                            if (backlink->link != nullptr)
                                              backlink->link->OnSessionBroken(std::move(why));
                                          });
  if (!opened.ok()) {
    const bool is_silent = absl::IsDeadlineExceeded(opened.status());
    {
      MutexLock lock(mutex_);
      last_error_ = std::move(opened).status();
    }
    if (is_silent) ReplaceChannel();
    return false;
  }
  // The session keeps its channel: whoever still holds it may be the last.
  struct SessionOnChannel {
    std::shared_ptr<CacheChannel> channel;
    std::unique_ptr<CacheSession> session;
  };
  auto both =
      std::make_shared<SessionOnChannel>(SessionOnChannel{call.channel, *std::move(opened)});
  call.session = std::shared_ptr<CacheSession>(both, both->session.get());
  const std::string no_shm_reason = Attach(&call);
  while (!call.session->is_broken()) {
    uint32_t index = 0;
    {
      MutexLock lock(mutex_);
      // The calls that need an older one agree on it then.
      index = static_cast<uint32_t>(std::max(namespaces_.size(), kEagerHandshakesMax) -
                                    kEagerHandshakesMax);
      while (index < namespaces_.size() &&
             (!namespaces_[index].is_known || namespaces_[index].epoch == call.epoch)) {
        ++index;
      }
      if (is_stopping_) return false;
      if (index == namespaces_.size()) {
        epoch_ = call.epoch;
        session_ = call.session;
        shm_ = call.shm;
        no_shm_reason_ = no_shm_reason;
        last_error_ = absl::UnavailableError("the connection ended");
        breaker_.OnSuccess();
        ShowBreaker();
        SetState(State::kUp);
        IBID_LOG(info, "cache server {}: connected, incarnation {:x}, transport {}", address_,
                 session_->incarnation(), shm_ == nullptr ? "grpc" : "shm");
        return true;
      }
    }
    const absl::Status status = ShakeHands(call, index);
    if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) return false;
  }
  return false;
}

std::string ServerLink::Attach(LinkCall* call) {
  if (options_->transport == TransportChoice::kGrpc) return "grpc was asked for";
  if (!options_->tls_ca_file.empty()) return "with TLS all bytes go by grpc";
  ShmAttachOptions attach;
  attach.socket = call->session->shm_socket();
  attach.session_id = call->session->session_id();
  attach.incarnation = call->session->incarnation();
  attach.staging_bytes = options_->shm_staging_bytes;
  attach.timeout = options_->connect_timeout;
  std::string reason = "the server shares no memory";
  if (!attach.socket.empty()) {
    auto attached = ShmAttachment::Attach(attach);
    if (attached.ok()) {
      call->shm = *std::move(attached);
      return "";
    }
    reason = std::string(attached.status().message());
  }
  if (options_->transport == TransportChoice::kShm) {
    IBID_LOG(warn, "cache server {}: grpc instead of shm: {}", address_, reason);
  }
  return reason;
}

ServerLink::Transport ServerLink::transport() const {
  MutexLock lock(mutex_);
  if (state_ != State::kUp) return {};
  return {shm_ == nullptr ? "grpc" : "shm", no_shm_reason_};
}

void ServerLink::OnSessionBroken(absl::Status why) {
  MutexLock lock(mutex_);
  last_error_ = std::move(why);
  changed_.NotifyAll();
}

void ServerLink::WatchSession() {
  std::shared_ptr<CacheSession> session;
  std::shared_ptr<ShmAttachment> shm;
  while (true) {
    bool is_probe_due = false;
    {
      MutexLock lock(mutex_);
      const absl::Time now = clock_->Now();
      if (is_stopping_ || is_reopen_wanted_ || session_->is_broken()) {
        session = std::move(session_);
        session_ = nullptr;
        shm = std::move(shm_);
        is_reopen_wanted_ = false;
        SetState(State::kDown);
        if (!is_stopping_)
          IBID_LOG(warn, "cache server {}: session lost: {}", address_, last_error_.message());
        break;
      }
      is_probe_due = breaker_.probe_at() <= now;
      if (!is_probe_due)
        changed_.WaitFor(mutex_, std::min(kWatchInterval, breaker_.probe_at() - now));
    }
    if (is_probe_due) Probe();
  }
  // The session ends here, without the lock, unless a call still uses it.
}

void ServerLink::Probe() {
  (void)CallServer(
      CallKind::kStats, clock_->Now() + std::max(options_->breaker_open, absl::Milliseconds(100)),
      [](const LinkCall& call) { return call.channel->GetStats(call.timeout).status(); });
}

// A server that was replaced without closing its connections leaves one that is silent for long: a
// new channel makes a new connection at once.
void ServerLink::ReplaceChannel() {
  auto channel = CacheChannel::Create(address_, ChannelOptionsOf(*options_));
  if (!channel.ok()) return;
  std::shared_ptr<CacheChannel> fresh = *std::move(channel);
  MutexLock lock(mutex_);
  channel_.swap(fresh);
}

absl::StatusOr<LinkCall> ServerLink::Admit(absl::Time deadline, bool needs_closed_breaker) {
  MutexLock lock(mutex_);
  absl::Time now = clock_->Now();
  while (state_ == State::kFirstAttempt && now < deadline && !is_stopping_) {
    changed_.WaitFor(mutex_, deadline - now);
    now = clock_->Now();
  }
  // Only the first callers wait for a server that may be away.
  if (state_ == State::kFirstAttempt) SetState(State::kDown);
  if (state_ != State::kUp || session_->is_broken()) {
    return absl::UnavailableError(absl::StrCat(address_, ": ", last_error_.message()));
  }
  if (needs_closed_breaker && !breaker_.is_closed()) {
    return absl::UnavailableError(absl::StrCat(address_, ": circuit breaker is open"));
  }
  if (now >= deadline) return absl::DeadlineExceededError(absl::StrCat(address_, ": no time left"));
  LinkCall call;
  call.channel = channel_;
  call.session = session_;
  call.shm = shm_;
  call.epoch = epoch_;
  call.timeout = deadline - now;
  return call;
}

absl::Status ServerLink::Call(CallKind kind, std::span<const uint32_t> indices, absl::Time deadline,
                              const std::function<absl::Status(const LinkCall&)>& attempt) {
  for (bool is_retry = false;; is_retry = true) {
    IBID_ASSIGN_OR_RETURN(LinkCall call, Admit(deadline, /*needs_closed_breaker=*/true));
    for (const uint32_t index : indices) IBID_RETURN_IF_ERROR(EnsureNamespace(call, index));
    call.timeout = deadline - clock_->Now();  // the handshake may have taken some of it
    if (call.timeout <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrCat(address_, ": no time left"));
    }
    const absl::Status status = attempt(call);
    Report(kind, status, call.timeout);
    if (status.ok() || is_retry || kind == CallKind::kFetch) return status;
    if (absl::IsFailedPrecondition(status)) {
      if (!Reopen(call.epoch, deadline)) return status;
    } else if (absl::IsUnavailable(status)) {
      PauseBeforeRetry(deadline);
    } else {
      return status;
    }
  }
}

absl::Status ServerLink::CallOnce(CallKind kind, absl::Time deadline,
                                  const std::function<absl::Status(const LinkCall&)>& attempt) {
  IBID_ASSIGN_OR_RETURN(const LinkCall call, Admit(deadline, /*needs_closed_breaker=*/true));
  const absl::Status status = attempt(call);
  Report(kind, status, call.timeout);
  return status;
}

absl::Status ServerLink::CallServer(CallKind kind, absl::Time deadline,
                                    const std::function<absl::Status(const LinkCall&)>& attempt) {
  IBID_ASSIGN_OR_RETURN(const LinkCall call, Admit(deadline, /*needs_closed_breaker=*/false));
  const absl::Status status = attempt(call);
  Report(kind, status, call.timeout);
  return status;
}

void ServerLink::Report(CallKind kind, const absl::Status& status, absl::Duration timeout) {
  const bool is_silent = absl::IsDeadlineExceeded(status);
  const bool is_failure = absl::IsUnavailable(status) || is_silent;
  const size_t k = static_cast<size_t>(kind);
  if (metrics_.requests[k] != nullptr) {
    metrics_.requests[k]->Increment();
    if (!status.ok()) metrics_.failures[k]->Increment();
  }
  if (is_silent && timeout < kBlamefulTimeout) return;
  MutexLock lock(mutex_);
  if (!is_failure) {
    breaker_.OnSuccess();
  } else if (breaker_.OnFailure(clock_->Now())) {
    IBID_LOG_EVERY(kLogPeriodSeconds, warn, "cache server {}: circuit breaker opens: {}", address_,
                   status.message());
    changed_.NotifyAll();
  }
  ShowBreaker();
}

absl::Status ServerLink::CheckIncarnation(const LinkCall& call, uint64_t incarnation) {
  if (incarnation == 0 || incarnation == call.session->incarnation()) return absl::OkStatus();
  MutexLock lock(mutex_);
  if (epoch_ == call.epoch && state_ == State::kUp) WantReopen("the server was restarted");
  return absl::FailedPreconditionError(absl::StrCat(address_, ": the server was restarted"));
}

void ServerLink::WantReopen(absl::string_view why) {
  is_reopen_wanted_ = true;
  last_error_ = absl::UnavailableError(why);
  changed_.NotifyAll();
}

bool ServerLink::Reopen(uint64_t epoch, absl::Time deadline) {
  MutexLock lock(mutex_);
  if (epoch_ == epoch && state_ == State::kUp && !is_reopen_wanted_) {
    if (clock_->Now() - reopened_at_ < kReopenInterval) return false;
    reopened_at_ = clock_->Now();
    WantReopen("the server does not know the session");
  }
  while (!(epoch_ > epoch && state_ == State::kUp)) {
    const absl::Duration left = deadline - clock_->Now();
    if (is_stopping_ || left <= absl::ZeroDuration()) return false;
    changed_.WaitFor(mutex_, left);
  }
  return true;
}

void ServerLink::PauseBeforeRetry(absl::Time deadline) {
  const absl::Time until = std::min(deadline, clock_->Now() + kRetryDelay * (0.5 + Random() / 2));
  MutexLock lock(mutex_);
  while (!is_stopping_ && clock_->Now() < until) changed_.WaitFor(mutex_, until - clock_->Now());
}

void ServerLink::SetState(State state) {
  state_ = state;
  if (metrics_.is_up != nullptr) metrics_.is_up->Set(state == State::kUp ? 1 : 0);
  changed_.NotifyAll();
}

void ServerLink::ShowBreaker() {
  if (metrics_.is_breaker_open != nullptr)
    metrics_.is_breaker_open->Set(breaker_.is_closed() ? 0 : 1);
}

void ServerLink::RegisterMetrics() {
  if (options_->metrics == nullptr) return;
  MetricsRegistry& registry = *options_->metrics;
  for (size_t k = 0; k < kCallKindsCount; ++k) {
    const MetricLabels labels = {{"server", address_}, {"call", kCallNames[k]}};
    metrics_.requests[k] = &MakeCounter(registry, "ibid_client_requests_total",
                                        "Calls sent to a cache server", labels);
    metrics_.failures[k] = &MakeCounter(registry, "ibid_client_failures_total",
                                        "Calls that a cache server or the network failed", labels);
  }
  const MetricLabels labels = {{"server", address_}};
  metrics_.is_up = &MakeGauge(registry, "ibid_client_server_up",
                              "1 while a session to the cache server is open", labels);
  metrics_.is_breaker_open = &MakeGauge(registry, "ibid_client_breaker_open",
                                        "1 while the server's circuit breaker is open", labels);
}

}  // namespace ibid
