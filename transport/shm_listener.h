// The server's end of shared memory on one host: a Unix socket at which clients of the users that
// the operator allows get the arena, to read, and leave the staging memory that they publish from.
//
// The arena's mapping shows all of it, whatever namespace a block is of: that is why the user
// counts, as the kernel tells it, and not what the client says of itself.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/host_memory.h"
#include "core/mutex.h"
#include "transport/limits.h"
#include "transport/shm_socket.h"

namespace ibid {

struct ShmListenerOptions {
  std::string socket;       // see ListenOnShmSocket
  std::vector<uid_t> uids;  // who may have the arena
  uint64_t incarnation = 0;
  const HostMemory* arena = nullptr;        // must outlive the listener
  const HostMemory* generations = nullptr;  // of the arena's pages; likewise
};

// Thread-safe. One thread of its own; no client can hold it up.
class ShmListener {
 public:
  // Errors: those of ListenOnShmSocket and HostMemory::OpenReadOnly.
  static absl::StatusOr<std::unique_ptr<ShmListener>> Start(ShmListenerOptions options);
  // What clients have mapped stays theirs.
  ~ShmListener();

  const std::string& socket() const { return options_.socket; }
  // Of the client that named this session; null: it has none, or is gone.
  std::shared_ptr<const HostMemory> StagingOf(uint64_t session_id) const;
  size_t clients_count() const;

 private:
  struct Peer {
    OwnedFd socket;
    uint64_t session_id = 0;  // 0: it has not said hello
    absl::Time hello_until;
  };

  ShmListener(ShmListenerOptions options, OwnedFd listening, OwnedFd wake, OwnedFd arena,
              OwnedFd generations);
  void Run();
  void Accept();
  // False: the peer is to be forgotten.
  bool Serve(Peer& peer);
  absl::Status Welcome(Peer& peer, const ShmHello& hello, ShmMessage message);
  absl::Status CheckUser(const Peer& peer) const;
  void Forget(const Peer& peer);

  const ShmListenerOptions options_;
  const OwnedFd listening_, wake_, arena_, generations_;
  std::atomic<bool> is_stopping_{false};
  std::vector<Peer> peers_;  // of the thread

  mutable Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<const HostMemory>> stagings_ IBID_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace ibid
