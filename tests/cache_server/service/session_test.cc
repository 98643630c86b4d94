// Sessions: what lives and dies with them.
#include <grpcpp/client_context.h>
#include <grpcpp/server_builder.h>

#include "tests/cache_server/service/server_fixture.h"
#include "transport/call_deadline.h"

namespace ibid {
namespace {

using ::testing::Each;

using SessionTest = ServerFixture;

ServerOptions ShortSessions() {
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.http_listen = "";
  options.host_bytes_max = ByteCount{uint64_t{64} << 20};
  options.extent_bytes = ByteCount{uint64_t{4} << 20};
  options.session_ttl = absl::Milliseconds(400);
  options.lease_ttl = absl::Milliseconds(400);
  return options;
}

TEST_F(SessionTest, HeartbeatsKeepSessionAndLeasesAlive) {
  StartServer(ShortSessions());
  const NamespaceSpec spec = SpecOf(SmallLayout());
  const auto client = Connect(spec);
  const SampleBlocks blocks = MakeBlocks(spec, 2);
  client->Publish(blocks);
  EXPECT_EQ(client->session->heartbeat(), absl::Milliseconds(80));
  EXPECT_EQ(client->session->lease_ttl(), absl::Milliseconds(400));
  const MatchReply match = client->Match(blocks.ns, blocks.keys(), /*lease=*/true);
  std::this_thread::sleep_for(std::chrono::milliseconds(1'000));
  EXPECT_FALSE(client->session->is_broken());
  EXPECT_THAT(client->Fetch({client->session_id(), blocks.ns, match.lease_id}, blocks.keys(),
                            SmallLayout().PayloadBytes()),
              Each(BlockOutcome::kOk));
}

// 16: a client of which nothing is heard loses its session, and is told so when it speaks again.
TEST_F(SessionTest, ASilentSessionExpires) {
  StartServer(ShortSessions());
  const auto stub = PlainStub();
  grpc::ClientContext context;
  SetTimeout(kPatience, &context);
  const auto stream = stub->Session(&context);
  v1::SessionRequest request;
  v1::SessionResponse response;
  request.set_client_name("silent");
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_NE(response.session_id(), 0u);
  EXPECT_TRUE(Eventually([&] { return server->store().stats().sessions == 0; }));
  stream->Write(request);
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

// 27: the end of a session, however it comes, makes its keys free for others.
TEST_F(SessionTest, TheEndOfASessionFreesItsReservationsAndLeases) {
  ServerOptions options = SmallServer();
  options.session_ttl = absl::Hours(1);  // so that nothing but the end can have freed them
  StartServer(options);
  const NamespaceSpec spec = SpecOf(SmallLayout());
  const SampleBlocks offered = MakeBlocks(spec, 4);
  const SampleBlocks stored = MakeBlocks(spec, 4, 50'000);
  auto dying = Connect(spec);
  const auto other = Connect(spec);
  dying->Publish(stored);
  ASSERT_EQ(dying->Match(stored.ns, stored.keys(), /*lease=*/true).matched_count, 4u);
  ASSERT_TRUE(
      dying->channel->Offer(dying->session_id(), offered.ns, offered.keys(), kPatience).ok());
  EXPECT_EQ(other->Match(offered.ns, offered.keys()).pending_count, 4u);
  EXPECT_EQ(server->store().stats().leases, 1u);

  dying.reset();
  EXPECT_TRUE(
      Eventually([&] { return other->Match(offered.ns, offered.keys()).pending_count == 0; }));
  EXPECT_TRUE(Eventually([&] {
    const BlockStoreStats stats = server->store().stats();
    return stats.leases == 0 && stats.reservations == 0 && stats.sessions == 1;
  }));
  EXPECT_THAT(other->Publish(offered), Each(BlockOutcome::kOk));
}

TEST_F(SessionTest, AnEndedSessionPublishesNothing) {
  StartServer();
  const NamespaceSpec spec = SpecOf(SmallLayout());
  const SampleBlocks blocks = MakeBlocks(spec, 2);
  const auto client = Connect(spec);
  const auto published =
      client->channel->Publish({client->session_id() ^ 1, blocks.ns}, blocks.ToPublish(), kPatience,
                               [](const PublishBlockResult&) {});
  EXPECT_TRUE(absl::IsFailedPrecondition(published.status())) << published.status();
  const auto offered =
      client->channel->Offer(client->session_id() ^ 1, blocks.ns, blocks.keys(), kPatience);
  EXPECT_TRUE(absl::IsFailedPrecondition(offered.status())) << offered.status();
  EXPECT_EQ(client->Match(blocks.ns, blocks.keys()).matched_count, 0u);
}

// The plainest server of sessions: it counts the messages.
class CountingService final : public v1::CacheService::Service {
 public:
  grpc::Status Session(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::SessionResponse, v1::SessionRequest>* stream) override {
    v1::SessionRequest request;
    v1::SessionResponse response;
    response.set_session_id(1);
    response.set_heartbeat_ms(3'600'000);
    response.set_lease_ttl_ms(3'600'000);
    while (stream->Read(&request)) {
      ++messages_count;
      released_count += request.release_lease_ids_size();
      stream->Write(response);
    }
    return grpc::Status::OK;
  }
  std::atomic<int> messages_count{0}, released_count{0};
};

TEST(SessionClientTest, ManyReleasesGoOutInOneMessage) {
  CountingService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  {
    TestClient client(absl::StrCat("127.0.0.1:", port));
    ASSERT_EQ(client.session_id(), 1u);
    EXPECT_EQ(service.messages_count, 1);
    std::vector<uint64_t> leases(200);
    client.session->ReleaseLeases(leases);
    EXPECT_TRUE(Eventually([&] { return service.released_count == 200; }));
    EXPECT_EQ(service.messages_count, 2);
    // Those that come while a message is being sent go together in the next one: never more
    // messages than calls, and none is forgotten.
    for (const uint64_t lease : leases) client.session->ReleaseLeases({&lease, 1});
    EXPECT_TRUE(Eventually([&] { return service.released_count == 400; }));
    EXPECT_LE(service.messages_count, 2 + 200);
  }
  server->Shutdown();
}

TEST_F(SessionTest, ReleasesGiveBackEachOfManyLeases) {
  StartServer();
  const NamespaceSpec spec = SpecOf(SmallLayout());
  const SampleBlocks blocks = MakeBlocks(spec, 1);
  const auto client = Connect(spec);
  client->Publish(blocks);
  std::vector<uint64_t> leases;
  for (int i = 0; i < 200; ++i)
    leases.push_back(client->Match(blocks.ns, blocks.keys(), /*lease=*/true).lease_id);
  EXPECT_EQ(server->store().stats().leases, 200u);
  for (const uint64_t lease : leases) client->session->ReleaseLeases({&lease, 1});
  EXPECT_TRUE(Eventually([&] {
    return server->store().stats().leases == 0 && server->store().stats().pinned_bytes == 0;
  }));
}

// One message renews all leases of a session, those that it does not name; those of another session
// end meanwhile.
TEST_F(SessionTest, OneMessageRenewsAHundredLeases) {
  ServerOptions options = ShortSessions();
  options.session_ttl = absl::Hours(1);
  options.lease_ttl = absl::Seconds(4);
  StartServer(options);
  const NamespaceSpec spec = SpecOf(SmallLayout());
  const SampleBlocks blocks = MakeBlocks(spec, 2);
  const auto client = Connect(spec);
  client->Publish(blocks);
  const auto stub = PlainStub();
  grpc::ClientContext context, other_context;
  SetTimeout(kPatience, &context);
  SetTimeout(kPatience, &other_context);
  const auto stream = stub->Session(&context), other_stream = stub->Session(&other_context);
  v1::SessionRequest request;
  v1::SessionResponse response, other_response;
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  ASSERT_TRUE(other_stream->Write(request));
  ASSERT_TRUE(other_stream->Read(&other_response));
  const auto lease = [&](uint64_t session) {
    const auto reply =
        client->channel->Match({session, blocks.ns, /*lease=*/true}, blocks.keys(), kPatience);
    ASSERT_TRUE(reply.ok()) << reply.status();
    ASSERT_NE(reply->lease_id, 0u);
  };
  for (int i = 0; i < 100; ++i) lease(response.session_id());
  lease(other_response.session_id());
  ASSERT_EQ(server->store().stats().leases, 101u);
  std::this_thread::sleep_for(std::chrono::seconds(2));
  request.set_renew_leases(true);
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_TRUE(Eventually([&] { return server->store().stats().leases == 100; }))
      << server->store().stats().leases << " leases";
  context.TryCancel();
  other_context.TryCancel();
}

// 17: a restart, however fast, ends the sessions of the run before it.
TEST_F(SessionTest, AServersStopBreaksItsSessionsOnceAndARestartIsAnotherIncarnation) {
  StartServer();
  const NamespaceSpec spec = SpecOf(SmallLayout());
  const auto client = Connect(spec);
  const uint64_t before = client->session->incarnation();
  const SteadyClock clock;
  const absl::Time stopping = clock.Now();
  server->Shutdown(absl::Seconds(10));
  EXPECT_LT(clock.Now() - stopping, absl::Seconds(5));
  EXPECT_TRUE(Eventually([&] { return client->session->is_broken(); }));
  EXPECT_TRUE(Eventually([&] { return client->broken_count == 1; }));
  const uint64_t lease[] = {1};
  client->session->ReleaseLeases(lease);  // is nothing any more

  StartServer();
  const auto again = Connect(spec);
  EXPECT_NE(again->session->incarnation(), before);
  EXPECT_EQ(client->broken_count, 1);
}

TEST_F(SessionTest, AClientThatEndsItsSessionHearsNothingOfIt) {
  StartServer();
  const auto client = Connect(SpecOf(SmallLayout()));
  client->session.reset();
  EXPECT_TRUE(Eventually([&] { return server->store().stats().sessions == 0; }));
  EXPECT_EQ(client->broken_count, 0);
}

// Sessions that open and end at the same time, from several threads, with the server stopping in
// the middle.
TEST_F(SessionTest, SessionsMayComeAndGoWhileTheServerStops) {
  StartServer();
  std::atomic<bool> is_over{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const auto channel = *CacheChannel::Create(server->address(), {});
      while (!is_over) {
        const auto session = channel->OpenSession("busy", absl::Seconds(1), [](absl::Status) {});
        if (!session.ok()) return;
        const uint64_t lease[] = {7};
        (*session)->ReleaseLeases(lease);
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  server->Shutdown(absl::Seconds(5));
  is_over = true;
  for (std::thread& thread : threads) thread.join();
}

// Messages that are on their way into gRPC when the stream ends must not reach a call that is gone.
TEST_F(SessionTest, ReleasesWhileTheServerEndsTheSessionAreHarmless) {
  for (int round = 0; round < 20; ++round) {
    StartServer();
    std::vector<std::thread> threads;
    std::atomic<int> ready_count{0};
    const auto channel = *CacheChannel::Create(server->address(), {});
    const auto session = channel->OpenSession("busy", kPatience, [](absl::Status) {});
    ASSERT_TRUE(session.ok()) << session.status();
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&] {
        ready_count.fetch_add(1);
        const uint64_t lease[] = {7};
        while (!(*session)->is_broken()) (*session)->ReleaseLeases(lease);
      });
    }
    ASSERT_TRUE(Eventually([&] { return ready_count == 8; }));
    server->Shutdown(absl::Seconds(5));
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace ibid
