// Invariants: a server's fields belong to its thread, but `current`. A server is resumed only from
// a place at which its picture was exact, or none was wanted: a snapshot that broke off is told
// anew.
#include "client/store_watch.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/circuit_breaker.h"
#include "client/server_link.h"
#include "core/check.h"
#include "core/log.h"
#include "transport/cache_channel.h"

namespace ibid {
namespace {

// WaitUntilConnected cannot be interrupted: this is how late an ending watch notices.
constexpr absl::Duration kConnectSlice = absl::Milliseconds(100);
// A server says something every few seconds (WatchResponse): one that does not is left.
constexpr absl::Duration kSilenceMax = absl::Seconds(15);

}  // namespace

absl::string_view NameOf(StoreNews news) {
  switch (news) {
    case StoreNews::kBlock:
      return "block";
    case StoreNews::kBegin:
      return "begin";
    case StoreNews::kExact:
      return "exact";
    case StoreNews::kResumed:
      return "resumed";
    case StoreNews::kAway:
      return "away";
  }
  return "";
}

struct StoreWatch::Server {
  uint32_t index = 0;
  std::string address;
  std::unique_ptr<CacheChannel> channel;
  bool can_resume = false;
  uint64_t epoch = 0;  // that can be resumed, and the place in it
  uint64_t sequence = 0;
  bool is_said_away = false;
  Mutex mutex;
  CacheWatch* current IBID_GUARDED_BY(mutex) = nullptr;
  std::thread thread;
};

StoreWatch::StoreWatch(const ClientOptions& client, StoreWatchOptions options)
    : client_(client), options_(std::move(options)) {}

absl::Status StoreWatch::Start() {
  for (const std::string& address : client_.servers) {
    auto server = std::make_unique<Server>();
    server->index = static_cast<uint32_t>(servers_.size());
    server->address = address;
    IBID_ASSIGN_OR_RETURN(server->channel,
                          CacheChannel::Create(address, ChannelOptionsOf(client_)));
    servers_.push_back(std::move(server));
  }
  for (auto& server : servers_) {
    server->thread = std::thread([this, raw = server.get()] { Run(*raw); });
    pthread_setname_np(server->thread.native_handle(), "ibid-watch");
  }
  return absl::OkStatus();
}

StoreWatch::~StoreWatch() {
  {
    MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  changed_.NotifyAll();
  for (auto& server : servers_) {
    MutexLock lock(server->mutex);
    if (server->current != nullptr) server->current->Cancel();
  }
  for (auto& server : servers_) {
    if (server->thread.joinable()) server->thread.join();
  }
}

std::vector<StoreEvent> StoreWatch::Take(size_t count, absl::Duration timeout) {
  const absl::Time until = clock_.Now() + timeout;
  std::vector<StoreEvent> events;
  {
    MutexLock lock(mutex_);
    while (queue_.empty()) {
      const absl::Duration left = until - clock_.Now();
      if (left <= absl::ZeroDuration()) return events;
      changed_.WaitFor(mutex_, left);
    }
    const auto end = queue_.begin() + static_cast<std::ptrdiff_t>(std::min(count, queue_.size()));
    events.assign(std::make_move_iterator(queue_.begin()), std::make_move_iterator(end));
    queue_.erase(queue_.begin(), end);
  }
  changed_.NotifyAll();
  return events;
}

void StoreWatch::Run(Server& server) {
  std::minstd_rand random{std::random_device{}()};
  absl::Time since = clock_.Now();
  for (uint32_t attempt = 0; !is_stopping_;) {
    if (!server.channel->WaitUntilConnected(kConnectSlice)) {
      if (clock_.Now() - since >= client_.connect_timeout) {
        SayAway(server, absl::UnavailableError("no connection"));
      }
      continue;
    }
    if (WatchOnce(server)) attempt = 0;
    since = clock_.Now();
    Pause(BackoffDelay(attempt++, client_.reconnect_backoff_min, client_.reconnect_backoff_max,
                       std::uniform_real_distribution<double>(0, 1)(random)));
  }
}

// True when the server told something.
bool StoreWatch::WatchOnce(Server& server) {
  WatchCall call;
  call.namespaces = options_.namespaces;
  call.has_snapshot = options_.has_snapshot;
  if (server.can_resume) {
    call.resume_incarnation = server.epoch;
    call.resume_sequence = server.sequence;
  }
  const std::unique_ptr<CacheWatch> watch = server.channel->Watch(call);
  {
    MutexLock lock(server.mutex);
    server.current = watch.get();
  }
  // The destructor either sees `current`, or has stopped before it was set.
  absl::Status end = is_stopping_ ? absl::CancelledError("") : absl::OkStatus();
  bool is_told = false;
  while (end.ok()) {
    absl::StatusOr<WatchReply> reply = watch->Next(kSilenceMax);
    end = reply.status();
    if (!reply.ok()) break;
    if (!is_told) ++connected_count_;
    is_told = true;
    server.is_said_away = false;
    TakeReply(server, *std::move(reply));
    if (is_stopping_) break;
  }
  if (is_told) --connected_count_;
  {
    MutexLock lock(server.mutex);
    server.current = nullptr;
  }
  if (!is_stopping_) SayAway(server, end);
  return is_told;
}

void StoreWatch::TakeReply(Server& server, WatchReply reply) {
  std::vector<StoreEvent> events;
  const auto say = [&](StoreNews news) {
    StoreEvent& event = events.emplace_back();
    event.server = server.index;
    event.news = news;
    event.epoch = reply.incarnation;
    event.sequence = reply.sequence;
    return &event;
  };
  const bool is_beginning =
      reply.notice == WatchNotice::kSnapshotBegin || reply.notice == WatchNotice::kStarted;
  if (is_beginning) say(StoreNews::kBegin)->is_gap = reply.is_gap;
  if (reply.notice == WatchNotice::kResumed) say(StoreNews::kResumed);
  for (BlockReport& block : reply.events) {
    StoreEvent* const event = say(StoreNews::kBlock);
    event->sequence = block.sequence;
    event->block = std::move(block);
  }
  if (reply.notice == WatchNotice::kSnapshotEnd) say(StoreNews::kExact);
  if (reply.notice == WatchNotice::kSnapshotBegin) server.can_resume = false;
  if (reply.notice == WatchNotice::kSnapshotEnd || reply.notice == WatchNotice::kStarted) {
    server.can_resume = true;
  }
  server.epoch = reply.incarnation;
  server.sequence = reply.sequence;
  Push(std::move(events));
}

void StoreWatch::SayAway(Server& server, absl::Status why) {
  if (server.is_said_away) return;
  server.is_said_away = true;
  IBID_LOG(warn, "cache server {}: its watch ended: {}", server.address, why.message());
  std::vector<StoreEvent> events(1);
  events[0].server = server.index;
  events[0].news = StoreNews::kAway;
  events[0].epoch = server.epoch;
  events[0].sequence = server.sequence;
  events[0].status = std::move(why);
  Push(std::move(events));
}

// Waits for room: then the server's stream is not read, and what it sends waits there.
void StoreWatch::Push(std::vector<StoreEvent> events) {
  if (events.empty()) return;
  {
    MutexLock lock(mutex_);
    while (queue_.size() >= options_.queue_events_max && !is_stopping_) changed_.Wait(mutex_);
    queue_.insert(queue_.end(), std::make_move_iterator(events.begin()),
                  std::make_move_iterator(events.end()));
  }
  changed_.NotifyAll();
}

void StoreWatch::Pause(absl::Duration duration) {
  const absl::Time until = clock_.Now() + duration;
  MutexLock lock(mutex_);
  while (!is_stopping_ && clock_.Now() < until) changed_.WaitFor(mutex_, until - clock_.Now());
}

}  // namespace ibid
