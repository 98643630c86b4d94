// Watch over loopback: what a client of the wire is told, and how a watch ends. 42: pictures that
// never recovered.
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>

#include <map>

#include "core/limit.h"
#include "tests/cache_server/service/server_fixture.h"
#include "transport/limits.h"

namespace ibid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class WatchTest : public ServerFixture {
 protected:
  // Takes replies until `is_enough`, which sees the events so far.
  struct Told {
    std::vector<WatchReply> replies;
    std::map<BlockKey, BlockReport> last;  // of each block
    uint64_t sequence() const { return replies.empty() ? 0 : replies.back().sequence; }
    bool has(WatchNotice notice) const {
      for (const WatchReply& reply : replies) {
        if (reply.notice == notice) return true;
      }
      return false;
    }
    size_t held_count() const {
      size_t count = 0;
      for (const auto& [key, event] : last) count += event.tiers.empty() ? 0 : 1;
      return count;
    }
  };
  static Told TakeUntil(CacheWatch& watch, const std::function<bool(const Told&)>& is_enough) {
    Told told;
    while (!is_enough(told)) {
      absl::StatusOr<WatchReply> reply = watch.Next(kPatience);
      EXPECT_TRUE(reply.ok()) << reply.status();
      if (!reply.ok()) return told;
      for (const BlockReport& event : reply->events) told.last[event.key] = event;
      told.replies.push_back(*std::move(reply));
    }
    return told;
  }
  static bool IsExact(const Told& told) { return told.has(WatchNotice::kSnapshotEnd); }
  static std::function<bool(const Told&)> Held(size_t count) {
    return [count](const Told& told) {
      return told.has(WatchNotice::kSnapshotEnd) && told.held_count() == count;
    };
  }

  const NamespaceSpec spec_ = SpecOf(SmallLayout());
};

TEST_F(WatchTest, TellsASnapshotAndThenEvents) {
  StartServer();
  const auto client = Connect(spec_);
  const SampleBlocks before = MakeBlocks(spec_, 3);
  client->Publish(before);
  const auto watch = client->channel->Watch({});
  const Told snapshot = TakeUntil(*watch, Held(3));
  EXPECT_EQ(snapshot.replies.front().notice, WatchNotice::kSnapshotBegin);
  EXPECT_FALSE(snapshot.replies.front().is_gap);
  for (const ChainLink& link : before.links) {
    const BlockReport& event = snapshot.last.at(link.key);
    EXPECT_EQ(event.change, BlockChange::kHeld);
    EXPECT_EQ(event.parent, link.parent);
    EXPECT_EQ(event.position, link.position);
    EXPECT_EQ(event.token_count, link.token_count);
    EXPECT_EQ(event.ns, before.ns);
    EXPECT_EQ(event.tier, "host");
    EXPECT_THAT(event.tiers, ElementsAre("host"));
  }
  const SampleBlocks after = MakeBlocks(spec_, 2, 50'000);
  client->Publish(after);
  const auto dropped = client->channel->Drop(&before.ns, before.keys(), kPatience);
  ASSERT_TRUE(dropped.ok());
  const Told events = TakeUntil(*watch, [](const Told& told) { return told.last.size() == 5; });
  EXPECT_EQ(events.last.at(after.links[1].key).change, BlockChange::kStored);
  EXPECT_EQ(events.last.at(before.links[0].key).change, BlockChange::kRemoved);
  EXPECT_EQ(events.replies.back().incarnation, server->store().incarnation());
}

TEST_F(WatchTest, AnIdleWatchHearsHeartbeats) {
  ServerOptions options = SmallServer();
  options.session_ttl = options.lease_ttl = absl::Milliseconds(500);
  StartServer(options);
  const auto client = Connect(spec_);
  const auto watch = client->channel->Watch({.has_snapshot = false});
  for (int i = 0; i < 4; ++i) {
    const auto reply = watch->Next(kPatience);
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->notice, i == 0 ? WatchNotice::kStarted : WatchNotice::kNone);
    EXPECT_TRUE(reply->events.empty());
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(watch->Next(absl::ZeroDuration()).status()));
}

TEST_F(WatchTest, ResumesAndTellsAnotherEpoch) {
  StartServer();
  auto client = Connect(spec_);
  const SampleBlocks blocks = MakeBlocks(spec_, 2);
  auto watch = client->channel->Watch({});
  const Told first = TakeUntil(*watch, IsExact);
  watch.reset();
  client->Publish(blocks);
  WatchCall resume;
  resume.resume_incarnation = first.replies.back().incarnation;
  resume.resume_sequence = first.sequence();
  watch = client->channel->Watch(resume);
  const Told second = TakeUntil(*watch, [](const Told& told) { return told.held_count() == 2; });
  EXPECT_EQ(second.replies.front().notice, WatchNotice::kResumed);
  EXPECT_FALSE(second.has(WatchNotice::kSnapshotBegin));

  watch.reset();
  client.reset();
  server.reset();
  StartServer();
  client = Connect(spec_);
  watch = client->channel->Watch(resume);
  const Told third = TakeUntil(*watch, IsExact);
  EXPECT_TRUE(third.replies.front().is_gap);
  EXPECT_NE(third.replies.front().incarnation, resume.resume_incarnation);
  EXPECT_EQ(third.held_count(), 0u);
}

TEST_F(WatchTest, FiltersByNamespace) {
  StartServer();
  const auto client = Connect(spec_);
  const NamespaceSpec other = SpecOf(SmallLayout(), "other");
  ASSERT_TRUE(client->channel->OpenNamespace(other, kPatience).ok());
  const SampleBlocks theirs = MakeBlocks(other, 3);
  const SampleBlocks ours = MakeBlocks(spec_, 2);
  const auto watch = client->channel->Watch({.namespaces = {ours.ns}});
  client->Publish(theirs);
  client->Publish(ours);
  const Told told = TakeUntil(*watch, Held(2));
  EXPECT_EQ(told.last.size(), 2u);
}

TEST_F(WatchTest, RefusesWhatIsNoNamespace) {
  StartServer();
  const auto stub = PlainStub();
  grpc::ClientContext context;
  v1::WatchRequest request;
  request.add_namespace_ids("short");
  v1::WatchResponse response;
  const auto stream = stub->Watch(&context, request);
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

// Far more than gRPC buffers between both ends, made in the store itself: no client is as quick.
void MakeEvents(BlockStore& store, const SampleBlocks& blocks, uint64_t events_count) {
  const SessionId session = *store.OpenSession("events");
  const ChainLink& link = blocks.links[0];
  for (uint64_t i = 0; i < events_count; i += 2) {
    auto room = store.Reserve(session, blocks.ns, link);
    ASSERT_TRUE(room.ok()) << room.status();
    std::move(*room).Commit(1, 1, /*durable=*/false, [](const absl::Status&) {});
    ASSERT_EQ(store.Drop(blocks.ns, {&link.key, 1}), 1u);
  }
  store.EndSession(session);
}

// One that does not read: nothing waits for it, and it is told when it reads again.
TEST_F(WatchTest, AClientThatDoesNotReadIsCutOffWithANotice) {
  ServerOptions options = SmallServer();
  options.event_log_max = 64;
  StartServer(options);
  const auto client = Connect(spec_);
  const auto slow = client->channel->Watch({.has_snapshot = false});
  ASSERT_TRUE(slow->Next(kPatience).ok());
  MakeEvents(server->store(), MakeBlocks(spec_, 1), 60'000);
  WatchNotice last_notice = WatchNotice::kNone;
  absl::StatusOr<WatchReply> reply;
  do {
    reply = slow->Next(kPatience);
    if (reply.ok()) last_notice = reply->notice;
  } while (reply.ok());
  EXPECT_EQ(last_notice, WatchNotice::kCutOff);
  EXPECT_TRUE(absl::IsResourceExhausted(reply.status())) << reply.status();
  ASSERT_TRUE(LimitOf(reply.status()).has_value());
  EXPECT_EQ(*LimitOf(reply.status()), (Limit{"event_log_max", 64}));
  EXPECT_THAT(SerializeMetrics(server->metrics()),
              HasSubstr("ibid_store_watchers_cut_off_total 1"));
}

TEST_F(WatchTest, OfTooManyNamespacesIsRefusedWithTheLimit) {
  StartServer();
  const auto client = Connect(spec_);
  WatchCall call;
  call.namespaces.resize(kWatchNamespacesMax);
  EXPECT_TRUE(client->channel->Watch(call)->Next(kPatience).ok());
  call.namespaces.emplace_back();
  const absl::StatusOr<WatchReply> refused = client->channel->Watch(call)->Next(kPatience);
  EXPECT_EQ(LimitOf(refused.status()), (Limit{"kWatchNamespacesMax", kWatchNamespacesMax}))
      << refused.status();
}

// One that never reads again takes no watcher's place for long, though not even the notice reaches
// it.
TEST_F(WatchTest, AClientThatNeverReadsIsLetGo) {
  constexpr uint64_t kLogMax = 16'384;
  ServerOptions options = SmallServer();
  options.event_log_max = kLogMax;
  StartServer(options);
  const SampleBlocks blocks = MakeBlocks(spec_, 1);
  Connect(spec_);
  grpc::ChannelArguments small_window;
  small_window.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  small_window.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16 << 10);
  const auto stub = v1::CacheService::NewStub(grpc::CreateCustomChannel(
      server->address(), grpc::InsecureChannelCredentials(), small_window));
  grpc::ClientContext context;
  v1::WatchRequest request;
  request.set_no_snapshot(true);
  const auto stream = stub->Watch(&context, request);
  const auto metric = [this](const std::string& line) {
    return SerializeMetrics(server->metrics()).find(line) != std::string::npos;
  };
  ASSERT_TRUE(Eventually([&] { return metric("ibid_store_watchers 1\n"); }));
  // Much more than the connection takes, and less than the log keeps: now a write stands still.
  for (int i = 0; i < 10; ++i) {
    MakeEvents(server->store(), blocks, kLogMax / 16);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(metric("ibid_store_watchers_cut_off_total 0\n"));
  MakeEvents(server->store(), blocks, 2 * kLogMax);
  EXPECT_TRUE(Eventually([&] { return metric("ibid_store_watchers 0\n"); }));
  v1::WatchResponse response;
  while (stream->Read(&response)) EXPECT_NE(response.notice(), v1::WATCH_NOTICE_CUT_OFF);
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(WatchTest, AServersStopEndsItsWatches) {
  StartServer();
  const auto client = Connect(spec_);
  const auto watch = client->channel->Watch({});
  TakeUntil(*watch, IsExact);
  std::thread stop([this] { server->Shutdown(absl::Seconds(5)); });
  absl::StatusOr<WatchReply> reply;
  do {
    reply = watch->Next(kPatience);
  } while (reply.ok());
  EXPECT_TRUE(absl::IsUnavailable(reply.status())) << reply.status();
  EXPECT_THAT(std::string(reply.status().message()), HasSubstr("the server is shutting down"))
      << "the watch's own end, not that of its connection";
  stop.join();
}

TEST_F(WatchTest, ACancelledWatchEndsAtTheServerToo) {
  StartServer();
  const auto client = Connect(spec_);
  const auto watch = client->channel->Watch({});
  TakeUntil(*watch, IsExact);
  watch->Cancel();
  absl::StatusOr<WatchReply> reply;
  do {
    reply = watch->Next(kPatience);
  } while (reply.ok());
  EXPECT_FALSE(absl::IsDeadlineExceeded(reply.status()));
  EXPECT_TRUE(Eventually([this] {
    return SerializeMetrics(server->metrics()).find("ibid_store_watchers 0") != std::string::npos;
  }));
}

}  // namespace
}  // namespace ibid
