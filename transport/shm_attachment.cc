#include "transport/shm_attachment.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/clock.h"

namespace ibid {
namespace {

absl::StatusOr<ShmMessage> WaitForWelcome(int socket, absl::Duration timeout, ShmWelcome* welcome) {
  const SteadyClock clock;
  const absl::Time until = clock.Now() + timeout;
  while (true) {
    absl::StatusOr<ShmMessage> message = ReceiveShmMessage(
        socket, std::span<char>(reinterpret_cast<char*>(welcome), sizeof(*welcome)));
    if (!absl::IsDeadlineExceeded(message.status())) return message;
    const absl::Duration left = until - clock.Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError("shared memory: the server did not answer in time");
    }
    pollfd waited{socket, POLLIN, 0};
    (void)poll(&waited, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
  }
}

absl::Status CheckWelcome(const ShmMessage& message, const ShmAttachOptions& options,
                          ShmWelcome* welcome) {
  if (message.bytes != sizeof(*welcome) || welcome->magic != kShmMagic) {
    return absl::UnavailableError("shared memory: the server speaks another version, or hung up");
  }
  if (welcome->incarnation != options.incarnation) {
    return absl::UnavailableError(
        absl::StrCat("shared memory: another server answers at ", options.socket));
  }
  welcome->refusal[kShmTextBytes - 1] = '\0';
  if (welcome->refusal[0] != '\0') return absl::PermissionDeniedError(welcome->refusal);
  if (message.fds.size() != 2) {
    return absl::UnavailableError("shared memory: the server sent no descriptors");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<ShmAttachment>> ShmAttachment::Attach(
    const ShmAttachOptions& options) {
  IBID_ASSIGN_OR_RETURN(OwnedFd socket, ConnectToShmSocket(options.socket));
  const uint64_t staging_bytes = RoundUp(options.staging_bytes, kPageBytes);
  IBID_ASSIGN_OR_RETURN(HostMemory staging,
                        HostMemory::CreateForPeer("ibid-staging", staging_bytes));
  ShmHello hello;
  hello.session_id = options.session_id;
  hello.staging_bytes = staging_bytes;
  const int fds[] = {staging.fd()};
  IBID_RETURN_IF_ERROR(
      SendShmMessage(socket.get(), {reinterpret_cast<const char*>(&hello), sizeof(hello)}, fds));
  ShmWelcome welcome;
  IBID_ASSIGN_OR_RETURN(ShmMessage message,
                        WaitForWelcome(socket.get(), options.timeout, &welcome));
  IBID_RETURN_IF_ERROR(CheckWelcome(message, options, &welcome));
  IBID_ASSIGN_OR_RETURN(HostMemory arena,
                        HostMemory::MapOfPeer(message.fds[0].Release(), welcome.arena_bytes));
  const size_t pages = RoundUp(welcome.arena_bytes, kPageBytes) / kPageBytes;
  IBID_ASSIGN_OR_RETURN(HostMemory generations,
                        HostMemory::MapOfPeer(message.fds[1].Release(), pages * sizeof(uint32_t)));
  return std::shared_ptr<ShmAttachment>(new ShmAttachment(
      std::move(socket), std::move(arena), std::move(generations), std::move(staging)));
}

ShmAttachment::ShmAttachment(OwnedFd socket, HostMemory arena, HostMemory generations,
                             HostMemory staging)
    : socket_(std::move(socket)),
      arena_(std::move(arena)),
      generations_(std::move(generations)),
      staging_(std::move(staging)) {}

std::optional<ByteView> ShmAttachment::BytesAt(const ArenaPlace& place) const {
  if (place.bytes > arena_.size() || place.offset > arena_.size() - place.bytes) {
    return std::nullopt;
  }
  return arena_.view().subspan(place.offset, place.bytes);
}

// The slot's writer raises the generation before it writes: whoever sees a byte of the new block
// sees the new generation afterwards.
bool ShmAttachment::IsCurrent(const ArenaPlace& place) const {
  if (place.offset >= arena_.size()) return false;
  std::atomic_thread_fence(std::memory_order_acquire);
  const auto* const generations =
      reinterpret_cast<const std::atomic<uint32_t>*>(generations_.begin());
  return generations[place.offset / kPageBytes].load(std::memory_order_relaxed) == place.generation;
}

ShmAttachment::Staged ShmAttachment::Stage(size_t bytes_count) {
  const uint64_t needed = RoundUp(bytes_count, kPageBytes);
  Staged staged;
  {
    MutexLock lock(mutex_);
    // After the last piece that was given out, then from the start: pieces are freed about in the
    // order in which they were taken.
    std::optional<uint64_t> found;
    for (uint64_t begin : {next_, uint64_t{0}}) {
      auto after = used_.lower_bound(begin);
      if (after != used_.begin()) {
        const auto& [offset, bytes] = *std::prev(after);
        begin = std::max(begin, offset + bytes);
      }
      while (after != used_.end() && after->first - begin < needed) {
        begin = after->first + after->second;
        ++after;
      }
      if (begin + needed <= staging_.size()) found = begin;
      if (found.has_value()) break;
    }
    if (!found.has_value() || needed == 0) return staged;
    used_[*found] = needed;
    next_ = *found + needed;
    staged.offset = *found;
  }
  staged.bytes = staging_.view().subspan(staged.offset, bytes_count);
  staged.owner = std::shared_ptr<const void>(
      staging_.begin() + staged.offset,
      [self = shared_from_this(), offset = staged.offset](const void*) { self->GiveBack(offset); });
  return staged;
}

void ShmAttachment::GiveBack(uint64_t offset) {
  MutexLock lock(mutex_);
  used_.erase(offset);
}

}  // namespace ibid
