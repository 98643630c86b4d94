// Moves the bytes of blocks between processes by UCX: RDMA where there is hardware, TCP elsewhere.
// Which block, lease and checksum travel by gRPC; here are only peers, tags and bytes.
//
// A receive names the place of the bytes before they come; the sender's message finds it by peer
// and tag. A tag serves one transfer of a peer in each direction, once in the peer's life: late
// bytes of a cancelled transfer then never match another. Post the receive first: a message that
// comes early is kept for kUcxArrivalWait and then dropped.
//
// The fence: `done` is called once for each transfer, and from then on neither UCX nor the peer
// touches its bytes. Where UCX cannot take a transfer back, because the peer is in the middle of
// it, its end costs the whole peer: the connection is closed by force, `done` comes after that, and
// the peer's other transfers end with Unavailable.
//
// Trust: UCX checks nobody. Over TCP any process that reaches its ports can write into this one's
// memory, as by RDMA one that knows a key. Only for closed networks, by the operator's choice.
//
// Thread safety: every method, from any thread; the port's one thread alone calls UCX and `done`,
// holding no lock. `done` must not block, Connect, Register, or destroy the port.
// Ownership: the port keeps a send's `owner` until just before its `done`. Bytes of a receive are
// the caller's, who keeps them until `done`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/checksum.h"
#include "core/kv_layout.h"

namespace ibid {

// The limits, each with its unit. Reaching one is ResourceExhausted with its name in UcxPortOptions
// or here.
inline constexpr size_t kUcxPeersMax = 1'024;
inline constexpr size_t kUcxTransfersMax = 16'384;                   // of a port, not yet done
inline constexpr uint64_t kUcxTransferBytesMax = uint64_t{8} << 30;  // of these together
inline constexpr size_t kUcxMessageBytesMax = kBlockPayloadBytesMax;
// Messages of one peer that no receive waits for; more are refused.
inline constexpr size_t kUcxArrivalsPerPeerMax = 1'024;
// Of these, the bytes that came along with small ones.
inline constexpr size_t kUcxArrivalBytesPerPeerMax = size_t{16} << 20;
inline constexpr absl::Duration kUcxArrivalWait = absl::Seconds(1);
// For a connected process to say hello.
inline constexpr absl::Duration kUcxHelloTimeout = absl::Seconds(5);

// A connection. Made by who connects, unguessable, known to both ends: this is what gRPC calls it.
enum class UcxPeerId : uint64_t {};
// One Send or Receive of this port; never used again.
enum class UcxTransferId : uint64_t {};

// The bytes that were sent or received; or an error: Cancelled, DeadlineExceeded, Unavailable (the
// peer is gone, or refused the message), NotFound (no such peer), AlreadyExists (the tag is in
// use), InvalidArgument (the message is longer than the receive's bytes). A send that succeeded
// says that its bytes are free again, not that a receive took them: the receiver's `done` says
// that.
using UcxDone = std::function<void(absl::StatusOr<size_t> bytes)>;

struct UcxPortOptions {
  // host:port, port 0 for any free one. Empty: the port only connects.
  std::string listen;
  // UCX_TLS. With shm or rdma transports both ends need them.
  std::string transports = "tcp";
  // More of UCX's settings, by their names without UCX_ and the transport's prefix.
  std::vector<std::pair<std::string, std::string>> settings;

  size_t peers_max = kUcxPeersMax;
  size_t transfers_max = kUcxTransfersMax;
  uint64_t transfer_bytes_max = kUcxTransferBytesMax;
};

class UcxLoop;

class UcxPort {
 public:
  // The first in a process sets an environment variable (UCX_TCP_CM_REUSEADDR), routes UCX's own
  // messages to the log and takes its signal handlers away: make it early. Other UCX_ variables of
  // the environment count where this sets nothing. Errors: InvalidArgument (an option), Unavailable
  // (the address cannot be listened on, or UCX has none of the transports).
  static absl::StatusOr<std::unique_ptr<UcxPort>> Create(UcxPortOptions options);
  // Closes all peers; every `done` is called before this returns.
  ~UcxPort();

  // Where it listens; 0 when it does not.
  int port() const;

  // Blocks until the other end knows this peer too. Errors: InvalidArgument (address), Unavailable
  // (nobody there, or it refused), DeadlineExceeded, ResourceExhausted (peers_max).
  absl::StatusOr<UcxPeerId> Connect(const std::string& address, absl::Duration timeout);
  // By force: the peer's transfers end with Unavailable. Does not wait.
  void Disconnect(UcxPeerId peer);
  // Whether transfers with it may succeed, as far as is known.
  bool is_connected(UcxPeerId peer) const;

  // Errors, without a call of `done`: ResourceExhausted (transfers_max, transfer_bytes_max),
  // InvalidArgument (no bytes, or over kUcxMessageBytesMax).
  absl::StatusOr<UcxTransferId> Send(UcxPeerId peer, uint64_t tag, ByteView bytes,
                                     std::shared_ptr<const void> owner, absl::Duration timeout,
                                     UcxDone done);
  absl::StatusOr<UcxTransferId> Receive(UcxPeerId peer, uint64_t tag, MutableByteView bytes,
                                        absl::Duration timeout, UcxDone done);
  // Has the transfer end soon, with Cancelled if it was not done before. Does not wait: `done`
  // tells. A transfer that the peer is in the middle of costs the peer.
  void Cancel(UcxTransferId transfer);

  // Tells the network cards of `region`, an arena: transfers inside it need no registration of
  // their own. `region` must outlive the port. Errors: ResourceExhausted (locked memory).
  absl::Status Register(MutableByteView region);

  // Those in any state, and transfers that are not done.
  size_t peers_count() const;
  size_t transfers_count() const;

 private:
  explicit UcxPort(std::unique_ptr<UcxLoop> loop);
  std::unique_ptr<UcxLoop> loop_;
};

}  // namespace ibid
