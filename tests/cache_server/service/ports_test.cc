// The other ways to ask a server how it is: HTTP, the health service, reflection, metrics.
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>

#include <filesystem>

#include "tests/cache_server/service/server_fixture.h"
#include "tests/harness/http.h"
#include "tests/harness/process.h"
#include "transport/call_deadline.h"

namespace ibid {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// One call of a method that this program has no generated classes for: one message in, one out.
std::string CallRaw(const std::string& address, const std::string& method,
                    const std::string& request) {
  grpc::GenericStub stub(*MakeChannel(address, {}));
  grpc::ClientContext context;
  SetTimeout(kPatience, &context);
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, method, &queue);
  void* tag = nullptr;
  bool ok = false;
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  const grpc::Slice slice(request);
  call->Write(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions().set_last_message(), nullptr);
  queue.Next(&tag, &ok);
  grpc::ByteBuffer reply;
  call->Read(&reply, nullptr);
  queue.Next(&tag, &ok);
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  EXPECT_TRUE(status.ok()) << status.error_message();
  grpc::Slice flat;
  return reply.Valid() && reply.DumpToSingleSlice(&flat).ok()
             ? std::string(reinterpret_cast<const char*>(flat.begin()), flat.size())
             : "";
}

using PortsTest = ServerFixture;

TEST_F(PortsTest, TheHttpPortSaysHealthAndMetricsUntilTheStop) {
  StartServer();
  const int port = server->http_port();
  ASSERT_GT(port, 0);
  EXPECT_THAT(HttpGet(port, "/healthz"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(HttpGet(port, "/healthz"), HasSubstr("\r\n\r\nok\n"));
  EXPECT_THAT(HttpGet(port, "/metrics"), HasSubstr("ibid_cache_service_calls_total"));
  server->Shutdown(absl::Seconds(1));
  EXPECT_EQ(HttpGet(port, "/healthz"), "");
}

// A disk in trouble is said in health and metrics, heals, and fails nobody.
TEST_F(PortsTest, ADiskInTroubleIsSaidInHealthAndMetricsAndHeals) {
  const TempFolder folder;
  static ManualClock clock;  // outlives the server of the fixture
  ServerOptions options = SmallServer();
  options.disk_dir = folder / "disk";
  options.disk_bytes_max = ByteCount{uint64_t{128} << 20};
  auto started = CacheServer::Start(options, &clock);
  ASSERT_TRUE(started.ok()) << started.status();
  server = *std::move(started);
  const auto health = [&] { return HttpGet(server->http_port(), "/healthz"); };
  const auto has_metric = [&](const std::string& line) {
    return HttpGet(server->http_port(), "/metrics").find(line) != std::string::npos;
  };
  const NamespaceSpec spec = SpecOf(SmallLayout());
  const auto client = Connect(spec);
  ASSERT_TRUE(Eventually([&] { return has_metric("ibid_store_disk_is_ok 1"); }));
  std::filesystem::remove_all(folder / "disk" + "/extents");
  const SampleBlocks blocks = MakeBlocks(spec, 4);
  EXPECT_THAT(client->Publish(blocks), Each(BlockOutcome::kOk));
  EXPECT_TRUE(Eventually([&] { return health().find("disk: full:") != std::string::npos; }));
  EXPECT_TRUE(Eventually([&] { return has_metric("ibid_store_disk_is_ok 0"); }));
  EXPECT_EQ(client->Match(blocks.ns, blocks.keys()).matched_count, 4u);

  std::filesystem::create_directory(folder / "disk" + "/extents");
  clock.Advance(absl::Seconds(11));
  EXPECT_TRUE(Eventually([&] { return health().find("disk:") == std::string::npos; }));
  EXPECT_TRUE(Eventually([&] { return has_metric("ibid_store_disk_is_ok 1"); }));
}

TEST_F(PortsTest, WithoutAnHttpAddressThereIsNoPort) {
  ServerOptions options = SmallServer();
  options.http_listen = "";
  StartServer(options);
  EXPECT_EQ(server->http_port(), 0);
}

TEST_F(PortsTest, ATakenPortIsAnErrorThatNamesItAndItsFlag) {
  StartServer();
  ServerOptions grpc_taken = SmallServer();
  grpc_taken.listen = server->address();
  const auto first = CacheServer::Start(grpc_taken);
  EXPECT_TRUE(absl::IsUnavailable(first.status())) << first.status();
  EXPECT_THAT(std::string(first.status().message()), HasSubstr(server->address()));
  EXPECT_THAT(std::string(first.status().message()), HasSubstr("give another --listen"));
  ServerOptions http_taken = SmallServer();
  http_taken.http_listen = absl::StrCat("127.0.0.1:", server->http_port());
  const auto second = CacheServer::Start(http_taken);
  EXPECT_TRUE(absl::IsUnavailable(second.status())) << second.status();
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(http_taken.http_listen));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("give another --http_listen"));
}

TEST_F(PortsTest, TheHealthServiceSaysServing) {
  StartServer();
  // HealthCheckResponse{status: SERVING}
  EXPECT_EQ(CallRaw(server->address(), "/grpc.health.v1.Health/Check", ""), "\x08\x01");
}

TEST_F(PortsTest, ReflectionListsTheService) {
  StartServer();
  // ServerReflectionRequest{list_services: "*"}
  const std::string reply =
      CallRaw(server->address(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
              "\x3a\x01*");
  EXPECT_THAT(reply, HasSubstr("ibid.v1.CacheService"));
}

// 43: the counters count what happened, once.
TEST_F(PortsTest, TheMetricsOfCallsMatchTheCallsMade) {
  StartServer();
  const NamespaceSpec spec = SpecOf(SmallLayout());
  const SampleBlocks blocks = MakeBlocks(spec, 3);
  {
    const auto client = Connect(spec);
    client->Publish(blocks);
    client->Fetch({0, blocks.ns}, blocks.keys(), SmallLayout().PayloadBytes());
    client->Match(blocks.ns, blocks.keys());
    client->Match(blocks.ns, blocks.keys());
    MatchCall unknown{0, NamespaceId{}};
    EXPECT_TRUE(absl::IsFailedPrecondition(
        client->channel->Match(unknown, blocks.keys(), kPatience).status()));
  }
  const auto metrics = [&] { return HttpGet(server->http_port(), "/metrics"); };
  ASSERT_TRUE(Eventually([&] {
    return metrics().find("ibid_cache_service_latency_seconds_count{method=\"Session\"} 1") !=
           std::string::npos;
  }));
  const std::string text = metrics();
  for (const char* line :
       {"ibid_cache_service_calls_total{code=\"OK\",method=\"OpenNamespace\"} 1",
        "ibid_cache_service_calls_total{code=\"OK\",method=\"Publish\"} 1",
        "ibid_cache_service_calls_total{code=\"OK\",method=\"Fetch\"} 1",
        "ibid_cache_service_calls_total{code=\"OK\",method=\"Match\"} 2",
        "ibid_cache_service_calls_total{code=\"FAILED_PRECONDITION\",method=\"Match\"} 1",
        "ibid_cache_service_latency_seconds_count{method=\"Match\"} 3"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  const auto value = [&](const std::string& name) {
    const size_t at = text.find(name + " ");
    return at == std::string::npos ? -1.0 : std::stod(text.substr(at + name.size() + 1));
  };
  const double payload = 3.0 * static_cast<double>(SmallLayout().PayloadBytes());
  EXPECT_GT(value("ibid_cache_service_received_bytes_total{method=\"Publish\"}"), payload);
  EXPECT_LT(value("ibid_cache_service_received_bytes_total{method=\"Publish\"}"), payload + 1'000);
  EXPECT_GT(value("ibid_cache_service_sent_bytes_total{method=\"Fetch\"}"), payload);
  EXPECT_LT(value("ibid_cache_service_sent_bytes_total{method=\"Fetch\"}"), payload + 1'000);
}

}  // namespace
}  // namespace ibid
