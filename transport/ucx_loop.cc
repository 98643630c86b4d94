#include "transport/ucx_loop.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/limit.h"
#include "core/log.h"

namespace ibid {
namespace {

// UCX's progress calls between looks at commands and timers.
constexpr int kProgressBurst = 32;
// The port's end waits so long for UCX to close what is open.
constexpr absl::Duration kStopTimeout = absl::Seconds(10);

int PollTimeout(absl::Duration left) {
  return static_cast<int>(std::clamp<int64_t>(
      absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))), 0, 1'000));
}

}  // namespace

void UcxConnecting::Finish(absl::Status with) {
  {
    MutexLock lock(mutex);
    is_done = true;
    status = std::move(with);
  }
  changed.NotifyAll();
}

absl::StatusOr<std::unique_ptr<UcxLoop>> UcxLoop::Start(UcxPortOptions options) {
  std::unique_ptr<UcxLoop> loop(new UcxLoop(std::move(options)));
  loop->wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (loop->wake_fd_ < 0)
    return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", std::strerror(errno)));
  IBID_ASSIGN_OR_RETURN(loop->context_, UcxContext::Create(loop->options_));
  loop->SetMessageHandlers();
  if (!loop->options_.listen.empty()) IBID_RETURN_IF_ERROR(loop->Listen());
  loop->thread_ = std::thread([raw = loop.get()] { raw->Run(); });
  return loop;
}

UcxLoop::UcxLoop(UcxPortOptions options) : options_(std::move(options)) {}

UcxLoop::~UcxLoop() {
  if (thread_.joinable()) {
    IBID_CHECK(!is_own_thread()) << "a callback destroys its UcxPort";
    {
      MutexLock lock(mutex_);
      is_stopping_ = true;
    }
    Post([] {});
    thread_.join();
  } else if (listener_ != nullptr) {
    ucp_listener_destroy(listener_);
  }
  context_.reset();
  // Without its worker UCX reaches no memory: what it did not let go in time ends here.
  for (auto& [id, transfer] : std::exchange(transfers_, {}))
    transfer->done(absl::UnavailableError("UCX: the port was closed"));
  if (wake_fd_ >= 0) close(wake_fd_);
}

void UcxLoop::Post(Command command) {
  {
    MutexLock lock(mutex_);
    commands_.push_back(std::move(command));
    if (std::exchange(is_woken_, true)) return;
  }
  eventfd_write(wake_fd_, 1);
}

void UcxLoop::Connect(UcxPeerId id, const UcxAddress& address, absl::Duration timeout,
                      std::shared_ptr<UcxConnecting> waiter) {
  Post(
      [this, id, address, deadline = clock_.Now() + timeout, waiter = std::move(waiter)]() mutable {
        BeginConnect(id, address, deadline, std::move(waiter));
      });
}

void UcxLoop::Disconnect(UcxPeerId id) {
  Post([this, id] {
    const auto it = by_id_.find(id);
    if (it != by_id_.end()) Close(it->second, absl::UnavailableError("UCX: disconnected"));
  });
}

bool UcxLoop::is_connected(UcxPeerId id) const {
  MutexLock lock(mutex_);
  return ready_.contains(id);
}

absl::StatusOr<UcxTransferId> UcxLoop::Submit(std::unique_ptr<UcxTransfer> transfer,
                                              absl::Duration timeout) {
  const char* const what = transfer->is_send ? "UCX send" : "UCX receive";
  const size_t bytes_count = transfer->bytes_count;
  if (bytes_count == 0 || bytes_count > kUcxMessageBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, " of ", bytes_count, " bytes: 1 to kUcxMessageBytesMax=", kUcxMessageBytesMax));
  }
  if (transfers_count_.fetch_add(1) >= options_.transfers_max) {
    --transfers_count_;
    return LimitReached(what, "transfers_max", options_.transfers_max);
  }
  if (transfer_bytes_.fetch_add(bytes_count) + bytes_count > options_.transfer_bytes_max) {
    transfer_bytes_ -= bytes_count;
    --transfers_count_;
    return LimitReached(what, "transfer_bytes_max", options_.transfer_bytes_max);
  }
  const UcxTransferId id{next_transfer_.fetch_add(1)};
  transfer->id = id;
  transfer->deadline = clock_.Now() + std::clamp(timeout, absl::ZeroDuration(), absl::Hours(24));
  Post([this, transfer = std::move(transfer)]() mutable { Begin(std::move(transfer)); });
  return id;
}

void UcxLoop::Cancel(UcxTransferId id) {
  {
    MutexLock lock(mutex_);
    if (!cancels_.insert(id).second) return;
    if (std::exchange(is_woken_, true)) return;
  }
  eventfd_write(wake_fd_, 1);
}

absl::Status UcxLoop::Register(MutableByteView region) {
  IBID_CHECK(!is_own_thread()) << "a callback registers memory";
  UcxConnecting waiter;
  Post([this, region, &waiter] { waiter.Finish(context_->Map(region)); });
  MutexLock lock(waiter.mutex);
  while (!waiter.is_done) waiter.changed.Wait(waiter.mutex);
  return waiter.status;
}

absl::Status UcxLoop::Listen() {
  IBID_ASSIGN_OR_RETURN(UcxAddress address, ResolveUcxAddress(options_.listen));
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr = {reinterpret_cast<sockaddr*>(&address.storage), address.bytes};
  params.conn_handler = {&UcxLoop::OnConnection, this};
  const absl::Status listening =
      FromUcxStatus(absl::StrCat("UCX cannot listen on ", options_.listen),
                    ucp_listener_create(context_->worker(), &params, &listener_));
  if (!listening.ok()) return absl::UnavailableError(listening.message());
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  IBID_RETURN_IF_ERROR(
      FromUcxStatus("ucp_listener_query", ucp_listener_query(listener_, &attributes)));
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&attributes.sockaddr);
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&attributes.sockaddr);
  port_ = ntohs(attributes.sockaddr.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port);
  return absl::OkStatus();
}

void UcxLoop::Run() {
  while (true) {
    bool is_busy = RunCommands();
    for (int i = 0; i < kProgressBurst && ucp_worker_progress(context_->worker()) != 0; ++i)
      is_busy = true;
    is_busy |= RunDeferred();
    is_busy |= RunTimers();
    CallDone();
    {
      MutexLock lock(mutex_);
      if (is_stopping_ && commands_.empty()) break;
    }
    if (!is_busy) Wait();
  }
  StopAll();
}

bool UcxLoop::RunCommands() {
  std::vector<Command> commands;
  absl::flat_hash_set<UcxTransferId> cancels;
  {
    MutexLock lock(mutex_);
    if (!is_woken_) return false;
    is_woken_ = false;
    commands.swap(commands_);
    cancels.swap(cancels_);
  }
  eventfd_t ignored = 0;
  eventfd_read(wake_fd_, &ignored);
  for (Command& command : commands) command();
  for (const UcxTransferId id : cancels) Stop(id, absl::CancelledError("UCX: cancelled"));
  return true;
}

bool UcxLoop::RunDeferred() {
  bool is_busy = !new_connections_.empty() || !failed_peers_.empty() || !matches_.empty();
  for (ucp_conn_request_h request : std::exchange(new_connections_, {})) Accept(request);
  for (const auto& [serial, tag] : std::exchange(matches_, {})) {
    UcxPeer* const peer = PeerBySerial(serial);
    if (peer == nullptr || peer->state != UcxPeer::State::kReady) continue;
    const auto arrival = peer->arrivals.find(tag);
    const auto receive = peer->receives.find(tag);
    if (arrival == peer->arrivals.end() || receive == peer->receives.end()) continue;
    UcxArrival taken = std::move(arrival->second);
    peer->arrival_bytes -= taken.bytes.size();
    peer->arrivals.erase(arrival);
    TakeBytes(receive->second, std::move(taken));
  }
  for (auto& [serial, why] : std::exchange(failed_peers_, {})) {
    UcxPeer* const peer = PeerBySerial(serial);
    if (peer != nullptr) Close(peer, std::move(why));
  }
  ReapPeers();
  return is_busy || !finished_.empty();
}

bool UcxLoop::RunTimers() {
  if (timers_.empty()) return false;
  const absl::Time now = clock_.Now();
  bool is_busy = false;
  while (!timers_.empty() && std::get<absl::Time>(*timers_.begin()) <= now) {
    is_busy = true;
    const auto [at, kind, id] = *timers_.begin();
    timers_.erase(timers_.begin());
    if (kind == TimerKind::kTransfer) {
      Stop(UcxTransferId{id}, absl::DeadlineExceededError("UCX: the transfer's time is over"));
      continue;
    }
    if (kind == TimerKind::kArrivals) {
      DropOldArrivals(id);
      continue;
    }
    UcxPeer* const peer = PeerBySerial(id);
    if (peer != nullptr && peer->state == UcxPeer::State::kGreeting)
      Close(peer, absl::DeadlineExceededError("UCX: no greeting in time"));
  }
  return is_busy;
}

void UcxLoop::Wait() {
  const ucs_status_t armed = ucp_worker_arm(context_->worker());
  if (armed == UCS_ERR_BUSY) return;
  if (armed != UCS_OK) IBID_LOG_EVERY(10, error, "ucp_worker_arm: {}", ucs_status_string(armed));
  const absl::Duration left = timers_.empty()
                                  ? absl::InfiniteDuration()
                                  : std::get<absl::Time>(*timers_.begin()) - clock_.Now();
  pollfd fds[] = {{context_->event_fd(), POLLIN, 0}, {wake_fd_, POLLIN, 0}};
  poll(fds, 2, PollTimeout(left));
}

void UcxLoop::StopAll() {
  const absl::Time until = clock_.Now() + kStopTimeout;
  if (listener_ != nullptr) ucp_listener_destroy(listener_);
  new_connections_.clear();
  std::vector<UcxPeer*> all;
  for (const auto& peer : peers_) all.push_back(peer.get());
  for (UcxPeer* const peer : all) Close(peer, absl::UnavailableError("UCX: the port is closing"));
  while (true) {
    RunCommands();
    while (ucp_worker_progress(context_->worker()) != 0) {
    }
    RunDeferred();
    CallDone();
    bool is_idle = false;
    {
      MutexLock lock(mutex_);
      is_idle = commands_.empty();
    }
    if (is_idle && peers_.empty() && transfers_.empty()) return;
    if (clock_.Now() > until) {
      IBID_LOG(error, "UCX did not close {} peers in time", peers_.size());
      return;
    }
    if (!peers_.empty()) Wait();
  }
}

void UcxLoop::Begin(std::unique_ptr<UcxTransfer> transfer) {
  UcxTransfer* const raw = transfer.get();
  transfers_.emplace(raw->id, std::move(transfer));
  timers_.emplace(raw->deadline, TimerKind::kTransfer, static_cast<uint64_t>(raw->id));
  const auto it = by_id_.find(raw->peer_id);
  if (it == by_id_.end()) {
    FinishTransfer(raw, absl::NotFoundError("UCX: no such peer is connected"));
    return;
  }
  raw->peer = it->second;
  raw->is_send ? BeginSend(raw) : BeginReceive(raw);
}

void UcxLoop::BeginReceive(UcxTransfer* transfer) {
  UcxPeer* const peer = transfer->peer;
  if (!peer->receives.emplace(transfer->tag, transfer).second) {
    transfer->peer = nullptr;
    FinishTransfer(transfer, absl::AlreadyExistsError(absl::StrCat(
                                 "UCX: another receive waits for tag ", transfer->tag)));
    return;
  }
  if (peer->arrivals.contains(transfer->tag)) matches_.emplace_back(peer->serial, transfer->tag);
}

void UcxLoop::Stop(UcxTransferId id, absl::Status why) {
  const auto it = transfers_.find(id);
  if (it == transfers_.end()) return;
  UcxTransfer* const transfer = it->second.get();
  if (!transfer->is_active) {
    FinishTransfer(transfer, std::move(why));
    return;
  }
  if (!transfer->end.ok()) return;
  transfer->end = std::move(why);
  Close(transfer->peer,
        absl::UnavailableError("UCX: the connection was closed to stop another transfer of it"));
}

// Takes the transfer out of all tables; CallDone does the rest.
void UcxLoop::FinishTransfer(UcxTransfer* transfer, absl::StatusOr<size_t> result) {
  timers_.erase({transfer->deadline, TimerKind::kTransfer, static_cast<uint64_t>(transfer->id)});
  if (UcxPeer* const peer = transfer->peer; peer != nullptr) {
    peer->active.erase(transfer);
    const auto waiting = peer->receives.find(transfer->tag);
    if (waiting != peer->receives.end() && waiting->second == transfer)
      peer->receives.erase(waiting);
  }
  const auto it = transfers_.find(transfer->id);
  IBID_CHECK(it != transfers_.end());
  std::unique_ptr<UcxTransfer> owned = std::move(it->second);
  transfers_.erase(it);
  finished_.push_back({std::move(owned), std::move(result)});
}

void UcxLoop::CallDone() {
  for (Finished& finished : std::exchange(finished_, {})) {
    UcxTransfer& transfer = *finished.transfer;
    transfer.owner.reset();
    transfer_bytes_ -= transfer.bytes_count;
    --transfers_count_;
    transfer.done(std::move(finished.result));
  }
}

}  // namespace ibid
