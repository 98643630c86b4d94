// UcxLoop's endpoints, and the messages on them. What UCX calls here changes tables only; endpoints
// are closed and `done`s called later, by the loop.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/limit.h"
#include "core/log.h"
#include "transport/ucx_loop.h"

namespace ibid {
namespace {

// Of the whole program, as UCX's handlers are.
constexpr unsigned kGreetingMessage = 1;
constexpr unsigned kDataMessage = 2;
constexpr uint64_t kHelloMagic = 0x3130'6f6c'6c65'6869;    // "ihello01"
constexpr uint64_t kWelcomeMagic = 0x3130'6d6f'6377'6d69;  // "imwcom01"
constexpr uint64_t kDataMagic = 0x3130'6174'6164'6269;     // "ibdata01"

// Up to here a message goes with its bytes in one segment, and the receiver copies them; above, the
// receiver is asked first and the bytes come straight to their place (UCX's rendezvous). Measured
// by ucx_bench for 64 KiB over TCP in three rounds: in one piece 1.4 to 2.8 GB/s in two of them,
// asked 1.0 to 1.6; in one round, when the machine was slow, 0.4 to 1.2 and 0.6 to 1.4: no better.
constexpr size_t kSmallMessageBytesMax = size_t{256} << 10;

absl::Status Gone(const absl::Status& why) {
  return absl::UnavailableError(absl::StrCat("UCX: the peer is gone: ", why.message()));
}

}  // namespace

void UcxLoop::SetMessageHandlers() {
  const std::pair<unsigned, ucp_am_recv_callback_t> handlers[] = {
      {kGreetingMessage, &UcxLoop::OnGreeting}, {kDataMessage, &UcxLoop::OnData}};
  for (const auto& [id, callback] : handlers) {
    ucp_am_handler_param_t params{};
    params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                        UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
    params.id = id;
    params.cb = callback;
    params.arg = this;
    params.flags = UCP_AM_FLAG_WHOLE_MSG;
    IBID_CHECK(ucp_worker_set_am_recv_handler(context_->worker(), &params) == UCS_OK);
  }
}

void UcxLoop::BeginConnect(UcxPeerId id, const UcxAddress& address, absl::Time deadline,
                           std::shared_ptr<UcxConnecting> waiter) {
  if (peers_.size() >= options_.peers_max) {
    waiter->Finish(LimitReached("UCX connect", "peers_max", options_.peers_max));
    return;
  }
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_FLAGS;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = {reinterpret_cast<const sockaddr*>(&address.storage), address.bytes};
  absl::StatusOr<UcxPeer*> peer = MakePeer(params, deadline);
  if (!peer.ok()) {
    waiter->Finish(peer.status());
    return;
  }
  (*peer)->id = id;
  (*peer)->waiter = std::move(waiter);
  SendGreeting(*peer, kHelloMagic);
}

void UcxLoop::Accept(ucp_conn_request_h request) {
  if (peers_.size() >= options_.peers_max) {
    IBID_LOG_EVERY(10, warn, "UCX refuses a connection: peers_max={}", options_.peers_max);
    ucp_listener_reject(listener_, request);
    return;
  }
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  absl::StatusOr<UcxPeer*> peer = MakePeer(params, clock_.Now() + kUcxHelloTimeout);
  if (!peer.ok()) {
    IBID_LOG_EVERY(10, warn, "UCX cannot take a connection: {}", peer.status().message());
    return;
  }
  (*peer)->is_incoming = true;
}

absl::StatusOr<UcxPeer*> UcxLoop::MakePeer(ucp_ep_params_t params, absl::Time greeting_deadline) {
  auto peer = std::make_unique<UcxPeer>();
  peer->loop = this;
  peer->serial = next_serial_++;
  peer->greeting_deadline = greeting_deadline;
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&UcxLoop::OnEndpointError, peer.get()};
  IBID_RETURN_IF_ERROR(
      FromUcxStatus("ucp_ep_create", ucp_ep_create(context_->worker(), &params, &peer->ep)));
  timers_.emplace(greeting_deadline, TimerKind::kGreeting, peer->serial);
  by_ep_[peer->ep] = peer.get();
  peers_.push_back(std::move(peer));
  peers_count_ = peers_.size();
  return peers_.back().get();
}

void UcxLoop::SendGreeting(UcxPeer* peer, uint64_t magic) {
  peer->greeting = {magic, static_cast<uint64_t>(peer->id), 0};
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = &UcxLoop::OnGreetingSent;
  param.user_data = peer;
  ++peer->greetings_in_flight;
  const ucs_status_ptr_t request = ucp_am_send_nbx(peer->ep, kGreetingMessage, &peer->greeting,
                                                   sizeof(UcxHeader), nullptr, 0, &param);
  if (UCS_PTR_IS_PTR(request)) return;
  OnGreetingSent(nullptr, UCS_PTR_STATUS(request), peer);
}

void UcxLoop::OnGreetingSent(void* request, ucs_status_t status, void* peer_arg) {
  auto* const peer = static_cast<UcxPeer*>(peer_arg);
  if (request != nullptr) ucp_request_free(request);
  --peer->greetings_in_flight;
  if (status != UCS_OK)
    peer->loop->failed_peers_.emplace_back(peer->serial, FromUcxStatus("UCX greeting", status));
}

void UcxLoop::BecomeReady(UcxPeer* peer) {
  peer->state = UcxPeer::State::kReady;
  timers_.erase({peer->greeting_deadline, TimerKind::kGreeting, peer->serial});
  by_id_[peer->id] = peer;
  MutexLock lock(mutex_);
  ready_.insert(peer->id);
}

// The first half of a peer's end; ReapPeers is the second.
void UcxLoop::Close(UcxPeer* peer, absl::Status why) {
  if (peer->state == UcxPeer::State::kClosing) return;
  if (peer->state == UcxPeer::State::kReady) {
    by_id_.erase(peer->id);
    MutexLock lock(mutex_);
    ready_.erase(peer->id);
  } else {
    timers_.erase({peer->greeting_deadline, TimerKind::kGreeting, peer->serial});
  }
  peer->state = UcxPeer::State::kClosing;
  peer->end = std::move(why);
  by_ep_.erase(peer->ep);
  for (auto& [tag, transfer] : std::exchange(peer->receives, {}))
    FinishTransfer(transfer, Gone(peer->end));
  for (auto& [tag, arrival] : std::exchange(peer->arrivals, {})) Refuse(std::move(arrival));
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.cb.send = &UcxLoop::OnClosed;
  param.user_data = peer;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(peer->ep, &param);
  if (!UCS_PTR_IS_PTR(request)) peer->is_closed = true;
}

void UcxLoop::OnClosed(void* request, ucs_status_t, void* peer) {
  ucp_request_free(request);
  static_cast<UcxPeer*>(peer)->is_closed = true;
}

void UcxLoop::ReapPeers() {
  for (size_t i = 0; i < peers_.size();) {
    UcxPeer* const peer = peers_[i].get();
    const bool is_gone = peer->state == UcxPeer::State::kClosing && peer->is_closed &&
                         peer->greetings_in_flight == 0 && peer->held.size() == peer->active.size();
    if (!is_gone) {
      ++i;
      continue;
    }
    for (const auto& [transfer, why] : std::exchange(peer->held, {}))
      FinishTransfer(transfer, transfer->end.ok() ? Gone(peer->end) : transfer->end);
    if (peer->waiter != nullptr) peer->waiter->Finish(peer->end);
    std::swap(peers_[i], peers_.back());
    peers_.pop_back();
    peers_count_ = peers_.size();
  }
}

void UcxLoop::BeginSend(UcxTransfer* transfer) {
  transfer->header = {kDataMagic, static_cast<uint64_t>(transfer->peer->id), transfer->tag};
  transfer->is_active = true;
  transfer->peer->active.insert(transfer);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.flags = UCP_AM_SEND_FLAG_REPLY |
                (transfer->bytes_count <= kSmallMessageBytesMax ? UCP_AM_SEND_FLAG_EAGER
                                                                : UCP_AM_SEND_FLAG_RNDV);
  param.cb.send = &UcxLoop::OnSent;
  param.user_data = transfer;
  param.memh = context_->HandleOf({transfer->bytes, transfer->bytes_count});
  if (param.memh != nullptr) param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(transfer->peer->ep, kDataMessage, &transfer->header, sizeof(UcxHeader),
                      transfer->bytes, transfer->bytes_count, &param);
  if (!UCS_PTR_IS_PTR(request)) OnRequestDone(transfer, UCS_PTR_STATUS(request));
}

void UcxLoop::OnSent(void* request, ucs_status_t status, void* transfer_arg) {
  auto* const transfer = static_cast<UcxTransfer*>(transfer_arg);
  ucp_request_free(request);
  transfer->peer->loop->OnRequestDone(transfer, status);
}

void UcxLoop::OnReceived(void* request, ucs_status_t status, size_t length, void* transfer_arg) {
  auto* const transfer = static_cast<UcxTransfer*>(transfer_arg);
  ucp_request_free(request);
  transfer->peer->loop->OnRequestDone(transfer, status);
}

void UcxLoop::OnRequestDone(UcxTransfer* transfer, ucs_status_t status) {
  UcxPeer* const peer = transfer->peer;
  if (status == UCS_OK) {
    FinishTransfer(transfer, transfer->is_send ? transfer->bytes_count : transfer->received_count);
    return;
  }
  const bool is_refused = transfer->is_send && peer->state != UcxPeer::State::kClosing &&
                          (status == UCS_ERR_CANCELED || status == UCS_ERR_MESSAGE_TRUNCATED);
  if (is_refused) {
    FinishTransfer(transfer, FromUcxStatus("UCX: the receiver refused the message", status));
    return;
  }
  const absl::Status why = FromUcxStatus("UCX transfer", status);
  peer->held.emplace_back(transfer, why);
  failed_peers_.emplace_back(peer->serial, why);
}

// A message and its receive have met.
void UcxLoop::TakeBytes(UcxTransfer* transfer, UcxArrival arrival) {
  UcxPeer* const peer = transfer->peer;
  if (arrival.length > transfer->bytes_count) {
    FinishTransfer(transfer, absl::InvalidArgumentError(
                                 absl::StrCat("UCX: a message of ", arrival.length,
                                              " bytes for a receive of ", transfer->bytes_count)));
    Refuse(std::move(arrival));
    return;
  }
  transfer->received_count = arrival.length;
  if (arrival.descriptor == nullptr) {
    std::memcpy(transfer->bytes, arrival.bytes.data(), arrival.length);
    FinishTransfer(transfer, arrival.length);
    return;
  }
  peer->receives.erase(transfer->tag);
  peer->active.insert(transfer);
  transfer->is_active = true;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.cb.recv_am = &UcxLoop::OnReceived;
  param.user_data = transfer;
  param.memh = context_->HandleOf({transfer->bytes, transfer->bytes_count});
  if (param.memh != nullptr) param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
  const ucs_status_ptr_t request = ucp_am_recv_data_nbx(context_->worker(), arrival.descriptor,
                                                        transfer->bytes, arrival.length, &param);
  if (!UCS_PTR_IS_PTR(request)) OnRequestDone(transfer, UCS_PTR_STATUS(request));
}

void UcxLoop::Refuse(UcxArrival arrival) {
  if (arrival.descriptor != nullptr) ucp_am_data_release(context_->worker(), arrival.descriptor);
}

void UcxLoop::DropOldArrivals(uint64_t serial) {
  UcxPeer* const peer = PeerBySerial(serial);
  if (peer == nullptr || peer->arrivals.empty()) return;
  const absl::Time old = clock_.Now() - kUcxArrivalWait;
  std::vector<uint64_t> tags;
  for (const auto& [tag, arrival] : peer->arrivals) {
    if (arrival.since <= old) tags.push_back(tag);
  }
  for (const uint64_t tag : tags) {
    const auto it = peer->arrivals.find(tag);
    UcxArrival arrival = std::move(it->second);
    peer->arrival_bytes -= arrival.bytes.size();
    peer->arrivals.erase(it);
    Refuse(std::move(arrival));
  }
  if (!peer->arrivals.empty())
    timers_.emplace(clock_.Now() + kUcxArrivalWait / 4, TimerKind::kArrivals, serial);
}

UcxPeer* UcxLoop::PeerOf(ucp_ep_h ep) {
  const auto it = by_ep_.find(ep);
  return it == by_ep_.end() ? nullptr : it->second;
}

UcxPeer* UcxLoop::PeerBySerial(uint64_t serial) {
  for (const auto& peer : peers_) {
    if (peer->serial == serial) return peer.get();
  }
  return nullptr;
}

void UcxLoop::OnConnection(ucp_conn_request_h request, void* loop) {
  static_cast<UcxLoop*>(loop)->new_connections_.push_back(request);
}

void UcxLoop::OnEndpointError(void* peer_arg, ucp_ep_h, ucs_status_t status) {
  auto* const peer = static_cast<UcxPeer*>(peer_arg);
  peer->loop->failed_peers_.emplace_back(peer->serial, FromUcxStatus("UCX connection", status));
}

ucs_status_t UcxLoop::OnGreeting(void* loop_arg, const void* header_bytes, size_t header_length,
                                 void*, size_t, const ucp_am_recv_param_t* param) {
  auto* const loop = static_cast<UcxLoop*>(loop_arg);
  UcxPeer* const peer = (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0
                            ? loop->PeerOf(param->reply_ep)
                            : nullptr;
  UcxHeader header;
  if (header_length == sizeof header) std::memcpy(&header, header_bytes, sizeof header);
  const UcxPeerId id{header.token};
  bool is_right = peer != nullptr && peer->state == UcxPeer::State::kGreeting;
  if (is_right && peer->is_incoming) {
    is_right = header.magic == kHelloMagic && header.token != 0 && !loop->by_id_.contains(id);
  } else if (is_right) {
    is_right = header.magic == kWelcomeMagic && id == peer->id;
  }
  if (!is_right) {
    IBID_LOG_EVERY(10, warn, "UCX drops a malformed greeting of {} bytes", header_length);
    if (peer != nullptr) {
      loop->failed_peers_.emplace_back(peer->serial,
                                       absl::UnavailableError("UCX: a malformed greeting"));
    }
    return UCS_OK;
  }
  peer->id = id;
  loop->BecomeReady(peer);
  if (peer->is_incoming) {
    loop->SendGreeting(peer, kWelcomeMagic);
  } else {
    std::exchange(peer->waiter, nullptr)->Finish(absl::OkStatus());
  }
  return UCS_OK;
}

ucs_status_t UcxLoop::OnData(void* loop_arg, const void* header_bytes, size_t header_length,
                             void* data, size_t length, const ucp_am_recv_param_t* param) {
  auto* const loop = static_cast<UcxLoop*>(loop_arg);
  UcxPeer* const peer = (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0
                            ? loop->PeerOf(param->reply_ep)
                            : nullptr;
  const bool is_large = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  UcxHeader header;
  if (header_length == sizeof header) std::memcpy(&header, header_bytes, sizeof header);
  const bool is_right = peer != nullptr && peer->state == UcxPeer::State::kReady &&
                        header.magic == kDataMagic && UcxPeerId{header.token} == peer->id;
  if (is_right) return loop->OnMessage(peer, header.tag, data, length, is_large);
  IBID_LOG_EVERY(10, warn, "UCX drops a message of {} bytes of an unknown peer", length);
  return is_large ? UCS_ERR_CANCELED : UCS_OK;
}

ucs_status_t UcxLoop::OnMessage(UcxPeer* peer, uint64_t tag, void* data, size_t length,
                                bool is_large) {
  const auto waiting = peer->receives.find(tag);
  if (waiting != peer->receives.end()) {
    UcxTransfer* const transfer = waiting->second;
    if (length > transfer->bytes_count) {
      TakeBytes(transfer, {nullptr, {}, length, {}});
      return is_large ? UCS_ERR_MESSAGE_TRUNCATED : UCS_OK;
    }
    if (!is_large) {
      std::memcpy(transfer->bytes, data, length);
      FinishTransfer(transfer, length);
      return UCS_OK;
    }
  }
  const size_t kept_bytes = is_large ? 0 : length;
  if (peer->arrivals.contains(tag) || peer->arrivals.size() >= kUcxArrivalsPerPeerMax ||
      peer->arrival_bytes + kept_bytes > kUcxArrivalBytesPerPeerMax) {
    IBID_LOG_EVERY(10, warn,
                   "UCX refuses a message of {} bytes that no receive waits for: {} such, limits "
                   "kUcxArrivalsPerPeerMax={} kUcxArrivalBytesPerPeerMax={}",
                   length, peer->arrivals.size(), kUcxArrivalsPerPeerMax,
                   kUcxArrivalBytesPerPeerMax);
    return is_large ? UCS_ERR_CANCELED : UCS_OK;
  }
  if (peer->arrivals.empty())
    timers_.emplace(clock_.Now() + kUcxArrivalWait, TimerKind::kArrivals, peer->serial);
  UcxArrival& arrival = peer->arrivals[tag];
  arrival.since = clock_.Now();
  arrival.length = length;
  if (waiting != peer->receives.end()) matches_.emplace_back(peer->serial, tag);
  if (is_large) {
    arrival.descriptor = data;
    return UCS_INPROGRESS;
  }
  const auto* const bytes = static_cast<const std::byte*>(data);
  arrival.bytes.assign(bytes, bytes + length);
  peer->arrival_bytes += length;
  return UCS_OK;
}

}  // namespace ibid
