// A client's watch of one cache server's blocks, in core types.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/block_change.h"
#include "core/block_key.h"

namespace ibid {

struct WatchCall {
  std::vector<NamespaceId> namespaces;  // empty: all; at most kWatchNamespacesMax
  bool has_snapshot = true;
  // Of the last reply that was taken of an earlier watch, once it had said kSnapshotEnd, kStarted
  // or kResumed: go on after it. 0: from the start.
  uint64_t resume_incarnation = 0;
  uint64_t resume_sequence = 0;
};

// As WatchResponse: covers the events in (previous_sequence, sequence], then says the notice.
struct WatchReply {
  uint64_t incarnation = 0;
  uint64_t sequence = 0;
  uint64_t previous_sequence = 0;
  WatchNotice notice = WatchNotice::kNone;
  bool is_gap = false;
  std::vector<BlockReport> events;
};

// Thread safety: Next belongs to one thread, Cancel to any. Ends when it dies, without waiting for
// the server. A watch that is not read holds one message and what gRPC has received; the server
// cuts it off when it falls behind.
class CacheWatch {
 public:
  virtual ~CacheWatch() = default;
  // Waits for the next reply. Errors: DeadlineExceeded (nothing came within `timeout`; the watch
  // goes on), Unavailable (the server or the network is gone), ResourceExhausted (event_log_max:
  // cut off; watchers_max), else what the server said. After any but the first it is over. Also
  // Internal: the server's replies do not follow each other.
  virtual absl::StatusOr<WatchReply> Next(absl::Duration timeout) = 0;
  // Makes Next return an error soon.
  virtual void Cancel() = 0;
};

}  // namespace ibid
