// ShmAttachment: what one session of a client shares with a server on the same host. It reads the
// server's arena where it lies, and publishes from staging memory that the server reads.
//
// Thread safety: every method, from any thread. Ownership: the mappings are the client's own; they
// outlive the server, whose blocks then are misses by their generations or by the session's end.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/checksum.h"
#include "core/host_memory.h"
#include "core/mutex.h"
#include "transport/shm_socket.h"

namespace ibid {

// Where a block lies in the server's arena. Good for as long as the lease that it is under; after
// that its generation tells.
struct ArenaPlace {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint32_t generation = 0;
};

struct ShmAttachOptions {
  std::string socket;  // as ListenOnShmSocket
  uint64_t session_id = 0;
  uint64_t incarnation = 0;  // of the server that is meant
  uint64_t staging_bytes = uint64_t{64} << 20;
  absl::Duration timeout = absl::Seconds(1);
};

class ShmAttachment : public std::enable_shared_from_this<ShmAttachment> {
 public:
  // Errors: Unavailable (no such socket on this host, or another server's), DeadlineExceeded,
  // PermissionDenied and others with the server's words (it refuses), ResourceExhausted (memory).
  static absl::StatusOr<std::shared_ptr<ShmAttachment>> Attach(const ShmAttachOptions& options);

  // The bytes at `place`, to be read only while the generation holds; nothing when that is not in
  // the arena.
  std::optional<ByteView> BytesAt(const ArenaPlace& place) const;
  // The slot has not been freed up to now: what was read of it before is the block's.
  bool IsCurrent(const ArenaPlace& place) const;

  // A piece of the staging memory, until its last owner drops it. Empty (no owner) when there is no
  // room now: then others hold it, or it is larger than all.
  struct Staged {
    MutableByteView bytes;
    uint64_t offset = 0;
    std::shared_ptr<const void> owner;
  };
  Staged Stage(size_t bytes_count);
  uint64_t staging_bytes() const { return staging_.size(); }

 private:
  ShmAttachment(OwnedFd socket, HostMemory arena, HostMemory generations, HostMemory staging);
  void GiveBack(uint64_t offset);

  const OwnedFd socket_;  // its end tells the server
  const HostMemory arena_, generations_;
  const HostMemory staging_;

  Mutex mutex_;
  std::map<uint64_t, uint64_t> used_ IBID_GUARDED_BY(mutex_);  // by offset: bytes, whole pages
  uint64_t next_ IBID_GUARDED_BY(mutex_) = 0;                  // where the search begins
};

}  // namespace ibid
