#include "transport/ucx_port.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/random_id.h"
#include "transport/ucx_loop.h"

namespace ibid {
namespace {

// Beyond a connection's own deadline, for UCX to close what it began.
constexpr absl::Duration kConnectGrace = absl::Seconds(1);

std::unique_ptr<UcxTransfer> MakeTransfer(UcxPeerId peer, uint64_t tag, MutableByteView bytes,
                                          UcxDone done) {
  IBID_CHECK(done != nullptr);
  auto transfer = std::make_unique<UcxTransfer>();
  transfer->peer_id = peer;
  transfer->tag = tag;
  transfer->bytes = bytes.data();
  transfer->bytes_count = bytes.size();
  transfer->done = std::move(done);
  return transfer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxPort>> UcxPort::Create(UcxPortOptions options) {
  IBID_ASSIGN_OR_RETURN(std::unique_ptr<UcxLoop> loop, UcxLoop::Start(std::move(options)));
  return std::unique_ptr<UcxPort>(new UcxPort(std::move(loop)));
}

UcxPort::UcxPort(std::unique_ptr<UcxLoop> loop) : loop_(std::move(loop)) {}
UcxPort::~UcxPort() = default;

int UcxPort::port() const { return loop_->port(); }

absl::StatusOr<UcxPeerId> UcxPort::Connect(const std::string& address, absl::Duration timeout) {
  IBID_CHECK(!loop_->is_own_thread()) << "a callback connects";
  IBID_ASSIGN_OR_RETURN(const UcxAddress resolved, ResolveUcxAddress(address));
  const UcxPeerId id{RandomId()};
  auto waiter = std::make_shared<UcxConnecting>();
  loop_->Connect(id, resolved, timeout, waiter);
  const SteadyClock clock;
  const absl::Time until = clock.Now() + timeout + kConnectGrace;
  MutexLock lock(waiter->mutex);
  while (!waiter->is_done && clock.Now() < until)
    waiter->changed.WaitFor(waiter->mutex, until - clock.Now());
  const absl::Status status =
      waiter->is_done ? waiter->status : absl::DeadlineExceededError("no answer");
  if (status.ok()) return id;
  return absl::Status(status.code(),
                      absl::StrCat("UCX connect to ", address, ": ", status.message()));
}

void UcxPort::Disconnect(UcxPeerId peer) { loop_->Disconnect(peer); }
bool UcxPort::is_connected(UcxPeerId peer) const { return loop_->is_connected(peer); }

absl::StatusOr<UcxTransferId> UcxPort::Send(UcxPeerId peer, uint64_t tag, ByteView bytes,
                                            std::shared_ptr<const void> owner,
                                            absl::Duration timeout, UcxDone done) {
  // UCX takes sent and received bytes by the same type.
  const MutableByteView view(const_cast<std::byte*>(bytes.data()), bytes.size());
  std::unique_ptr<UcxTransfer> transfer = MakeTransfer(peer, tag, view, std::move(done));
  transfer->is_send = true;
  transfer->owner = std::move(owner);
  return loop_->Submit(std::move(transfer), timeout);
}

absl::StatusOr<UcxTransferId> UcxPort::Receive(UcxPeerId peer, uint64_t tag, MutableByteView bytes,
                                               absl::Duration timeout, UcxDone done) {
  return loop_->Submit(MakeTransfer(peer, tag, bytes, std::move(done)), timeout);
}

void UcxPort::Cancel(UcxTransferId transfer) { loop_->Cancel(transfer); }
absl::Status UcxPort::Register(MutableByteView region) { return loop_->Register(region); }
size_t UcxPort::peers_count() const { return loop_->peers_count(); }
size_t UcxPort::transfers_count() const { return loop_->transfers_count(); }

}  // namespace ibid
