// The one thread of a UcxPort: all of UCX and all state of peers and transfers belong to it. Other
// threads leave commands and wake it.
//
// A transfer:
//   Send:     submitted -> active (UCX has its bytes) ------------------------> done
//   Receive:  submitted -> waiting (in its peer's `receives`) -> active -------> done
//                                  (a small message is copied at once) --------> done
// Invariants: a waiting receive is known to nobody outside this thread, so it can end at any time.
// An active transfer ends only when UCX has completed its request, and, unless it succeeded or was
// refused, only when the peer's endpoint is closed, too: this is the fence.
//
// A peer:  greeting -> ready -> closing (its endpoint is no longer used) -> gone, once the endpoint
// is closed and UCX has completed all of the peer's requests.
#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <memory>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "transport/ucx_context.h"
#include "transport/ucx_port.h"

namespace ibid {

// Before each message, in the byte order of the machine, as UCX's own headers.
struct UcxHeader {
  uint64_t magic = 0;  // the kind of message and its version
  uint64_t token = 0;  // the peer's id
  uint64_t tag = 0;
};

// The outcome of a Connect, for the thread that waits.
struct UcxConnecting {
  Mutex mutex;
  CondVar changed;
  bool is_done IBID_GUARDED_BY(mutex) = false;
  absl::Status status IBID_GUARDED_BY(mutex);
  void Finish(absl::Status with);
};

struct UcxPeer;
class UcxLoop;

struct UcxTransfer {
  UcxTransferId id{};
  UcxPeerId peer_id{};
  bool is_send = false;
  uint64_t tag = 0;
  std::byte* bytes = nullptr;
  size_t bytes_count = 0;
  std::shared_ptr<const void> owner;
  absl::Time deadline;
  UcxDone done;

  // From here on the loop's.
  UcxHeader header;         // UCX reads it until the request is complete
  UcxPeer* peer = nullptr;  // of an active or waiting one
  bool is_active = false;
  size_t received_count = 0;
  absl::Status end;  // why it is being stopped
};

// What came before its receive. `descriptor`: a large message, whose bytes are still at the sender.
struct UcxArrival {
  void* descriptor = nullptr;
  std::vector<std::byte> bytes;
  size_t length = 0;
  absl::Time since;
};

struct UcxPeer {
  enum class State { kGreeting, kReady, kClosing };

  UcxLoop* loop = nullptr;
  uint64_t serial = 0;
  bool is_incoming = false;
  UcxPeerId id{};
  ucp_ep_h ep = nullptr;
  State state = State::kGreeting;
  UcxHeader greeting;
  absl::Time greeting_deadline;
  std::shared_ptr<UcxConnecting> waiter;                 // of who connects
  absl::flat_hash_map<uint64_t, UcxTransfer*> receives;  // waiting, by tag
  absl::flat_hash_set<UcxTransfer*> active;
  absl::flat_hash_map<uint64_t, UcxArrival> arrivals;  // by tag
  size_t arrival_bytes = 0;
  size_t greetings_in_flight = 0;

  absl::Status end;  // why it is closing
  bool is_closed = false;
  // Active transfers that UCX has let go, with their ends, until the endpoint is closed.
  std::vector<std::pair<UcxTransfer*, absl::Status>> held;
};

class UcxLoop {
 public:
  static absl::StatusOr<std::unique_ptr<UcxLoop>> Start(UcxPortOptions options);
  ~UcxLoop();

  const UcxPortOptions& options() const { return options_; }
  int port() const { return port_; }

  // From any thread.
  void Connect(UcxPeerId id, const UcxAddress& address, absl::Duration timeout,
               std::shared_ptr<UcxConnecting> waiter);
  void Disconnect(UcxPeerId id);
  bool is_connected(UcxPeerId id) const;
  absl::StatusOr<UcxTransferId> Submit(std::unique_ptr<UcxTransfer> transfer,
                                       absl::Duration timeout);
  void Cancel(UcxTransferId id);
  absl::Status Register(MutableByteView region);
  size_t peers_count() const { return peers_count_; }
  size_t transfers_count() const { return transfers_count_; }
  bool is_own_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  using Command = absl::AnyInvocable<void()>;
  enum class TimerKind { kTransfer, kGreeting, kArrivals };
  using Timer = std::tuple<absl::Time, TimerKind, uint64_t>;

  struct Finished {
    std::unique_ptr<UcxTransfer> transfer;
    absl::StatusOr<size_t> result;
  };

  explicit UcxLoop(UcxPortOptions options);

  // ucx_loop.cc: the thread.
  absl::Status Listen();
  void Post(Command command);
  void Run();
  bool RunCommands();
  bool RunDeferred();
  bool RunTimers();
  void Wait();
  void StopAll();
  void Begin(std::unique_ptr<UcxTransfer> transfer);
  void BeginSend(UcxTransfer* transfer);
  void BeginReceive(UcxTransfer* transfer);
  void Stop(UcxTransferId id, absl::Status why);
  void FinishTransfer(UcxTransfer* transfer, absl::StatusOr<size_t> result);
  void CallDone();

  // ucx_peers.cc: endpoints and what they say.
  void BeginConnect(UcxPeerId id, const UcxAddress& address, absl::Time deadline,
                    std::shared_ptr<UcxConnecting> waiter);
  void Accept(ucp_conn_request_h request);
  absl::StatusOr<UcxPeer*> MakePeer(ucp_ep_params_t params, absl::Time greeting_deadline);
  void SendGreeting(UcxPeer* peer, uint64_t magic);
  void BecomeReady(UcxPeer* peer);
  void Close(UcxPeer* peer, absl::Status why);
  void ReapPeers();
  void OnRequestDone(UcxTransfer* transfer, ucs_status_t status);
  void TakeBytes(UcxTransfer* transfer, UcxArrival arrival);
  void Refuse(UcxArrival arrival);
  void DropOldArrivals(uint64_t serial);
  UcxPeer* PeerOf(ucp_ep_h ep);
  UcxPeer* PeerBySerial(uint64_t serial);

  void SetMessageHandlers();
  static void OnConnection(ucp_conn_request_h request, void* loop);
  static void OnEndpointError(void* peer, ucp_ep_h ep, ucs_status_t status);
  static void OnSent(void* request, ucs_status_t status, void* transfer);
  static void OnReceived(void* request, ucs_status_t status, size_t length, void* transfer);
  static void OnGreetingSent(void* request, ucs_status_t status, void* peer);
  static void OnClosed(void* request, ucs_status_t status, void* peer);
  static ucs_status_t OnGreeting(void* loop, const void* header, size_t header_length, void* data,
                                 size_t length, const ucp_am_recv_param_t* param);
  static ucs_status_t OnData(void* loop, const void* header, size_t header_length, void* data,
                             size_t length, const ucp_am_recv_param_t* param);
  ucs_status_t OnMessage(UcxPeer* peer, uint64_t tag, void* data, size_t length, bool is_large);

  const UcxPortOptions options_;
  const SteadyClock clock_;
  std::unique_ptr<UcxContext> context_;
  ucp_listener_h listener_ = nullptr;
  int port_ = 0;
  int wake_fd_ = -1;
  std::atomic<size_t> peers_count_{0};
  std::atomic<size_t> transfers_count_{0};
  std::atomic<uint64_t> transfer_bytes_{0};
  std::atomic<uint64_t> next_transfer_{1};

  mutable Mutex mutex_;
  std::vector<Command> commands_
      IBID_GUARDED_BY(mutex_);  // bounded by the limits of what they make
  absl::flat_hash_set<UcxTransferId> cancels_ IBID_GUARDED_BY(mutex_);
  absl::flat_hash_set<UcxPeerId> ready_ IBID_GUARDED_BY(mutex_);
  bool is_woken_ IBID_GUARDED_BY(mutex_) = false;
  bool is_stopping_ IBID_GUARDED_BY(mutex_) = false;

  // Owned by the thread.
  std::vector<std::unique_ptr<UcxPeer>> peers_;
  absl::flat_hash_map<ucp_ep_h, UcxPeer*> by_ep_;   // not those that are closing
  absl::flat_hash_map<UcxPeerId, UcxPeer*> by_id_;  // ready ones
  absl::flat_hash_map<UcxTransferId, std::unique_ptr<UcxTransfer>> transfers_;
  std::set<Timer> timers_;
  uint64_t next_serial_ = 1;
  // What UCX's callbacks leave for RunDeferred: they must not close endpoints themselves.
  std::vector<ucp_conn_request_h> new_connections_;
  std::vector<std::pair<uint64_t, absl::Status>> failed_peers_;
  std::vector<std::pair<uint64_t, uint64_t>> matches_;  // peer's serial, tag
  std::vector<Finished> finished_;

  std::thread thread_;
};

}  // namespace ibid
