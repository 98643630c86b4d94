// StoreWatch: what the servers of a client hold and how it changes, for schedulers and routers that
// keep a picture of it.
//
// It watches all servers side by side, each in an order of its own, and comes back to one that was
// away by itself: without a snapshot when the server still knows what was missed, else it says that
// all that was known of that server is void, and tells it anew. A block is in the store while any
// server has it in a tier.
//
// Thread safety: Take belongs to one thread, the rest to any. It needs its Client no more once it
// was made.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "core/block_change.h"
#include "core/clock.h"
#include "core/mutex.h"

namespace ibid {

class CacheChannel;
class CacheWatch;
struct WatchReply;

enum class StoreNews : uint8_t {
  kBlock,    // `block` has changed, or is held
  kBegin,    // all that was known of this server is void; what it holds follows, or is not told
  kExact,    // all that it holds has been told
  kResumed,  // it is back, and nothing was missed
  kAway,     // it cannot be reached: what is known of it may be out of date
};

// "block", "begin", "exact", "resumed", "away".
absl::string_view NameOf(StoreNews news);

struct StoreEvent {
  uint32_t server = 0;  // in ClientOptions::servers
  StoreNews news = StoreNews::kBlock;
  uint64_t epoch = 0;     // the server's incarnation
  uint64_t sequence = 0;  // in this epoch; of kBlock that of the change, 0 when held
  bool is_gap = false;    // kBegin: the server was watched before, and changes were missed
  BlockReport block;      // kBlock
  absl::Status status;    // kAway: why
};

class StoreWatch {
 public:
  ~StoreWatch();
  StoreWatch(const StoreWatch&) = delete;
  StoreWatch& operator=(const StoreWatch&) = delete;

  // At most `count` events, each server's in their order. Waits for the first until `timeout`. Who
  // takes nothing for long is cut off by the servers, and told of the gap.
  std::vector<StoreEvent> Take(size_t count, absl::Duration timeout);
  // Servers that are being watched now.
  uint32_t connected_count() const { return connected_count_.load(std::memory_order_relaxed); }

 private:
  friend class ClientImpl;
  struct Server;

  StoreWatch(const ClientOptions& client, StoreWatchOptions options);
  absl::Status Start();

  // The threads, one a server.
  void Run(Server& server);
  bool WatchOnce(Server& server);
  void TakeReply(Server& server, WatchReply reply);
  void SayAway(Server& server, absl::Status why);
  void Push(std::vector<StoreEvent> events);
  void Pause(absl::Duration duration);

  const ClientOptions client_;
  const StoreWatchOptions options_;
  const SteadyClock clock_;
  std::atomic<uint32_t> connected_count_{0};
  std::atomic<bool> is_stopping_{false};
  std::vector<std::unique_ptr<Server>> servers_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<StoreEvent> queue_ IBID_GUARDED_BY(mutex_);
};

}  // namespace ibid
