// AdminService over real loopback connections: drain, flush, verify, and who may ask for them.
#include <fstream>

#include "core/host_memory.h"
#include "tests/cache_server/service/server_fixture.h"
#include "tests/harness/http.h"
#include "tests/harness/outward_address.h"
#include "tests/harness/process.h"
#include "transport/admin_channel.h"

namespace ibid {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

class AdminTest : public ServerFixture {
 protected:
  ServerOptions OnDemotion() {
    ServerOptions options = SmallServer();
    options.disk_dir = folder_ / "disk";
    options.disk_bytes_max = ByteCount{uint64_t{128} << 20};
    options.disk_write = "on_demotion";
    return options;
  }
  std::unique_ptr<AdminChannel> Admin(const std::string& address = "") {
    return *AdminChannel::Create(address.empty() ? server->address() : address, {});
  }
  static bool GoOn(const VerifyState&) { return true; }

  TempFolder folder_;
  const NamespaceSpec spec_ = SpecOf(SmallLayout());
};

TEST_F(AdminTest, ADrainingServerKeepsItsBlocksTakesNothingNewAndServesOn) {
  StartServer(OnDemotion());
  const auto client = Connect(spec_);
  const SampleBlocks blocks = MakeBlocks(spec_, 5);
  ASSERT_THAT(client->Publish(blocks), Each(BlockOutcome::kOk));
  const auto drained = Admin()->Drain(kPatience);
  ASSERT_TRUE(drained.ok()) << drained.status();
  EXPECT_EQ(drained->incarnation, server->store().incarnation());
  EXPECT_EQ(drained->written_blocks, 5u);
  EXPECT_EQ(drained->remaining_blocks, 0u);
  EXPECT_THAT(HttpGet(server->http_port(), "/healthz"), HasSubstr("503"));
  EXPECT_THAT(HttpGet(server->http_port(), "/healthz"), HasSubstr("draining"));

  // The session that is open reads, and may publish nothing.
  EXPECT_EQ(client->Match(blocks.ns, blocks.keys(), /*lease=*/true).matched_count, 5u);
  EXPECT_THAT(
      client->Fetch({client->session_id(), blocks.ns}, blocks.keys(), SmallLayout().PayloadBytes()),
      Each(BlockOutcome::kOk));
  const SampleBlocks more = MakeBlocks(spec_, 2, /*first_token=*/9'000);
  EXPECT_THAT(client->Publish(more), Each(BlockOutcome::kRejected));
  EXPECT_THAT(client->details[0], HasSubstr("draining"));
  const auto channel = *CacheChannel::Create(server->address(), {});
  const auto refused = channel->OpenSession("late", kPatience, [](absl::Status) {});
  EXPECT_TRUE(absl::IsUnavailable(refused.status())) << refused.status();
  // Again: nothing is left to be done.
  const auto again = Admin()->Drain(kPatience);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->written_blocks, 0u);
}

TEST_F(AdminTest, AnUndrainedServerIsHealthyAndTakesSessionsAndBlocks) {
  StartServer(OnDemotion());
  const auto client = Connect(spec_);
  EXPECT_TRUE(Admin()->Undrain(kPatience).ok()) << "nothing to undo";
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(Admin()->Drain(kPatience).ok());
    EXPECT_TRUE(server->is_draining());
    ASSERT_TRUE(Admin()->Undrain(kPatience).ok());
    EXPECT_FALSE(server->is_draining());
    EXPECT_THAT(HttpGet(server->http_port(), "/healthz"), HasSubstr("200"));
    const SampleBlocks blocks = MakeBlocks(spec_, 2, /*first_token=*/1'000 * (round + 1));
    EXPECT_THAT(client->Publish(blocks), Each(BlockOutcome::kOk));
    const auto channel = *CacheChannel::Create(server->address(), {});
    EXPECT_TRUE(channel->OpenSession("late", kPatience, [](absl::Status) {}).ok());
  }
}

TEST_F(AdminTest, AFlushWritesAndTheServerTakesMore) {
  StartServer(OnDemotion());
  const auto client = Connect(spec_);
  client->Publish(MakeBlocks(spec_, 3));
  const auto flushed = Admin()->Flush(kPatience);
  ASSERT_TRUE(flushed.ok()) << flushed.status();
  EXPECT_EQ(flushed->written_blocks, 3u);
  EXPECT_THAT(client->Publish(MakeBlocks(spec_, 2, 9'000)), Each(BlockOutcome::kOk));
  EXPECT_THAT(HttpGet(server->http_port(), "/healthz"), HasSubstr("200"));
}

// What a shutdown finds in memory only is there after the restart.
TEST_F(AdminTest, AGracefulStopKeepsWhatOnlyMemoryHad) {
  StartServer(OnDemotion());
  const SampleBlocks blocks = MakeBlocks(spec_, 5);
  Connect(spec_)->Publish(blocks);
  server->Shutdown(kPatience);
  server.reset();
  StartServer(OnDemotion());
  const auto client = Connect(spec_);
  EXPECT_EQ(client->Match(blocks.ns, blocks.keys()).matched_count, 5u);
}

TEST_F(AdminTest, AVerifyReportsToTheEnd) {
  StartServer(OnDemotion());
  Connect(spec_)->Publish(MakeBlocks(spec_, 5));
  ASSERT_TRUE(Admin()->Flush(kPatience).ok());
  int messages = 0;
  const auto end =
      Admin()->Verify(0, kPatience, [&](const VerifyState&) { return ++messages > 0; });
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_GE(messages, 1);
  EXPECT_TRUE(end->is_done);
  EXPECT_EQ(end->checked_copies, 10u);
  EXPECT_EQ(end->bad_copies(), 0u);
  EXPECT_THAT(HttpGet(server->http_port(), "/metrics"),
              HasSubstr("ibid_store_verified_copies_total 10"));
}

TEST_F(AdminTest, OneVerifyAtATimeWhichEndsWhenItsCallerGoes) {
  StartServer();
  Connect(spec_)->Publish(MakeBlocks(spec_, 5));
  // At a byte a second the first one lasts until it is cancelled.
  absl::Status second;
  const auto first = Admin()->Verify(1, kPatience, [&](const VerifyState&) {
    second = Admin()->Verify(0, kPatience, GoOn).status();
    return false;
  });
  EXPECT_TRUE(absl::IsCancelled(first.status())) << first.status();
  EXPECT_TRUE(absl::IsResourceExhausted(second)) << second;
  EXPECT_THAT(std::string(second.message()), HasSubstr("kVerifiesMax=1"));
  EXPECT_TRUE(Eventually([&] { return Admin()->Verify(0, kPatience, GoOn).ok(); }));
}

TEST_F(AdminTest, AServerThatStopsDoesNotWaitForAVerify) {
  StartServer();
  Connect(spec_)->Publish(MakeBlocks(spec_, 5));
  std::atomic<bool> has_begun{false};
  absl::Status ended;
  std::thread caller([&, admin = Admin()] {
    ended =
        admin->Verify(1, kPatience, [&](const VerifyState&) { return has_begun = true; }).status();
  });
  EXPECT_TRUE(Eventually([&] { return has_begun.load(); }));
  const SteadyClock clock;
  const absl::Time began = clock.Now();
  server->Shutdown(kPatience);
  EXPECT_LT(clock.Now() - began, kPatience / 4);
  caller.join();
  EXPECT_FALSE(ended.ok());
}

TEST_F(AdminTest, APinIsKeptOverARestart) {
  StartServer(OnDemotion());
  const SampleBlocks blocks = MakeBlocks(spec_, 5);
  Connect(spec_)->Publish(blocks);
  const std::vector<BlockKey> keys = blocks.keys();
  const PinCall call{0xA1, blocks.ns, keys, KeepPriority::kHigh, absl::Hours(1)};
  const auto pinned = Admin()->Pin(call, kPatience);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_EQ(pinned->stored_blocks, 5u);
  EXPECT_TRUE(pinned->survives_restart);
  server->store().RunMaintenance();
  EXPECT_THAT(HttpGet(server->http_port(), "/metrics"), HasSubstr("ibid_store_pins 1"));

  server->Shutdown(kPatience);
  server.reset();
  StartServer(OnDemotion());
  const auto pins = Admin()->ListPins(kPatience);
  ASSERT_TRUE(pins.ok()) << pins.status();
  ASSERT_EQ(pins->size(), 1u);
  EXPECT_EQ((*pins)[0].id, 0xA1u);
  EXPECT_EQ((*pins)[0].ns, blocks.ns);
  EXPECT_EQ((*pins)[0].priority, KeepPriority::kHigh);
  EXPECT_EQ((*pins)[0].blocks, 5u);
  EXPECT_LE((*pins)[0].left, absl::Hours(1));
  EXPECT_TRUE(Admin()->Unpin(0xA1, kPatience).ok());
  EXPECT_TRUE(absl::IsNotFound(Admin()->Unpin(0xA1, kPatience)));
}

// 24: over its quota a client is told so block by block, and its stream goes on.
TEST_F(AdminTest, AQuotaRefusesBlocksAndNothingElse) {
  ServerOptions options = SmallServer();
  options.tenants_file = folder_ / "tenants.json";
  std::ofstream(options.tenants_file)
      << R"({"tenants": {"batch": {"publish_bytes_per_second_max": 0}}})";
  StartServer(options);
  const auto channel = *CacheChannel::Create(server->address(), {});
  ASSERT_TRUE(channel->OpenNamespace(spec_, "batch", kPatience).ok());
  const auto client = Connect(spec_);  // of no tenant: it shares the namespace of "batch"
  const SampleBlocks blocks = MakeBlocks(spec_, 3);
  EXPECT_THAT(client->Publish(blocks), Each(BlockOutcome::kRejected));
  EXPECT_THAT(client->details[0], HasSubstr("tenant \"batch\" publishes faster than its quota: "
                                            "publish_bytes_per_second_max=0"));
  ASSERT_TRUE(Admin()->SetQuota("batch", QuotaValues{}, kPatience).ok());
  EXPECT_THAT(client->Publish(blocks), Each(BlockOutcome::kOk));
  ASSERT_TRUE(Admin()->SetDefaultQuota({uint64_t{0}}, kPatience).ok());
  ASSERT_TRUE(Admin()->SetQuota("batch", std::nullopt, kPatience).ok());
  EXPECT_THAT(client->Publish(MakeBlocks(spec_, 2, 9'000)), Each(BlockOutcome::kRejected));
  EXPECT_EQ(client->Match(blocks.ns, blocks.keys()).matched_count, 3u) << "reads are free";

  const auto list = Admin()->ListQuotas(kPatience);
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->default_quota.publish_bytes_per_second_max, 0u);
  ASSERT_EQ(list->tenants.size(), 2u);
  EXPECT_EQ(list->tenants[1].tenant, "batch");
  EXPECT_TRUE(list->tenants[1].has_default);
  EXPECT_EQ(list->tenants[1].refused_blocks, 5u);
  EXPECT_EQ(list->tenants[1].published_bytes, 3 * SmallLayout().PayloadBytes());
}

TEST_F(AdminTest, QuotasAreReadAgainOnRequestAndAWrongFileChangesNothing) {
  ServerOptions options = SmallServer();
  options.tenants_file = folder_ / "tenants.json";
  const auto write = [&](const char* text) { std::ofstream(options.tenants_file) << text; };
  write(R"({"tenants": {"batch": {"host_bytes_max": 4096}}})");
  StartServer(options);
  write(R"({"tenants": {"batch": {"host_bytes_max": "much"}, "new": {}}})");
  const absl::Status wrong = Admin()->ReloadQuotas(kPatience);
  EXPECT_TRUE(absl::IsInvalidArgument(wrong)) << wrong;
  EXPECT_THAT(std::string(wrong.message()),
              HasSubstr("tenants.batch.host_bytes_max: use a number"));
  EXPECT_EQ(Admin()->ListQuotas(kPatience)->tenants.size(), 1u);
  write(R"({"default": {"gpu_bytes_max": 5}, "tenants": {"new": {"disk_bytes_max": 7}}})");
  ASSERT_TRUE(Admin()->SetQuota("batch", QuotaValues{uint64_t{1}}, kPatience).ok());
  ASSERT_TRUE(Admin()->ReloadQuotas(kPatience).ok());
  const auto list = Admin()->ListQuotas(kPatience);
  EXPECT_EQ(list->default_quota.gpu_bytes_max, 5u);
  ASSERT_EQ(list->tenants.size(), 2u);
  EXPECT_TRUE(list->tenants[0].has_default) << "what was set meanwhile is replaced too";
  EXPECT_EQ(list->tenants[1].quota.disk_bytes_max, 7u);
  EXPECT_EQ(list->tenants[1].quota.host_bytes_max, std::nullopt);
}

TEST_F(AdminTest, AServerWithoutAFileOfQuotasSaysSo) {
  StartServer(SmallServer());
  const absl::Status status = Admin()->ReloadQuotas(kPatience);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("--tenants_file"));
}

// What a tenant's blocks take is counted in slots and shown with the limit.
TEST_F(AdminTest, AQuotaOfBytesIsKeptAndShown) {
  StartServer(SmallServer());
  const uint64_t slot_bytes = RoundUp(SmallLayout().PayloadBytes(), kPageBytes);
  QuotaValues quota;
  quota.host_bytes_max = 2 * slot_bytes;
  ASSERT_TRUE(Admin()->SetQuota("batch", quota, kPatience).ok());
  const auto channel = *CacheChannel::Create(server->address(), {});
  ASSERT_TRUE(channel->OpenNamespace(spec_, "batch", kPatience).ok());
  const auto client = Connect(spec_);
  for (int i = 0; i < 4; ++i) {
    EXPECT_THAT(client->Publish(MakeBlocks(spec_, 1, 1'000 + 100 * i)), Each(BlockOutcome::kOk));
  }
  const auto list = Admin()->ListQuotas(kPatience);
  ASSERT_EQ(list->tenants.size(), 2u);
  EXPECT_EQ(list->tenants[1].host_used_bytes, 2 * slot_bytes);
  EXPECT_EQ(list->tenants[1].quota.host_bytes_max, 2 * slot_bytes);
  EXPECT_EQ(list->tenants[0].host_used_bytes, 0u) << "who shares it is not billed";
}

// 43: the counters count what happened, once.
TEST_F(AdminTest, EachCallIsCountedWithItsOutcome) {
  StartServer(OnDemotion());
  Connect(spec_)->Publish(MakeBlocks(spec_, 5));
  ASSERT_TRUE(Admin()->Flush(kPatience).ok());
  ASSERT_TRUE(Admin()->Flush(kPatience).ok());
  ASSERT_TRUE(Admin()->Verify(0, kPatience, GoOn).ok());
  ASSERT_TRUE(Admin()->SetQuota("batch", QuotaValues{}, kPatience).ok());
  ASSERT_TRUE(Admin()->ListQuotas(kPatience).ok());
  ASSERT_TRUE(Admin()->ListPins(kPatience).ok());
  ASSERT_TRUE(absl::IsNotFound(Admin()->Unpin(1, kPatience)));
  ASSERT_TRUE(absl::IsInvalidArgument(Admin()->Pin({}, kPatience).status()));
  ASSERT_TRUE(absl::IsFailedPrecondition(Admin()->ReloadQuotas(kPatience)));
  ASSERT_TRUE(Admin()->Drain(kPatience).ok());
  const auto metrics = [&] { return HttpGet(server->http_port(), "/metrics"); };
  // A stream's end is counted after its caller knows it.
  EXPECT_TRUE(Eventually([&] {
    return metrics().find("ibid_admin_service_calls_total{code=\"OK\",method=\"Verify\"} 1\n") !=
           std::string::npos;
  }));
  const std::string text = metrics();
  for (const char* line : {"calls_total{code=\"OK\",method=\"Flush\"} 2\n",
                           "calls_total{code=\"OK\",method=\"SetQuota\"} 1\n",
                           "calls_total{code=\"OK\",method=\"ListQuotas\"} 1\n",
                           "calls_total{code=\"OK\",method=\"ListPins\"} 1\n",
                           "calls_total{code=\"NOT_FOUND\",method=\"Unpin\"} 1\n",
                           "calls_total{code=\"INVALID_ARGUMENT\",method=\"Pin\"} 1\n",
                           "calls_total{code=\"FAILED_PRECONDITION\",method=\"ReloadQuotas\"} 1\n",
                           "calls_total{code=\"OK\",method=\"Drain\"} 1\n",
                           "latency_seconds_count{method=\"Verify\"} 1\n",
                           "calls_in_progress{method=\"Verify\"} 0\n"}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("ibid_admin_service_", line)));
  }
  EXPECT_THAT(text, Not(HasSubstr("ibid_admin_service_sent_bytes_total{method=\"Verify\"} 0\n")));
  EXPECT_THAT(text, Not(HasSubstr("ibid_admin_service_calls_total{code=\"OK\",method=\"Match\"}")));
}

// 44: who comes from elsewhere commands nothing.
TEST_F(AdminTest, CallsFromAnotherAddressAreRefusedWithoutClientCertificates) {
  const std::string outward = OutwardAddress();
  if (outward.empty()) GTEST_SKIP() << "this machine has only loopback addresses";
  ServerOptions options = OnDemotion();
  options.listen = "0.0.0.0:0";
  StartServer(options);
  const auto admin = Admin(absl::StrCat(outward, ":", server->port()));
  for (const absl::Status& status :
       {admin->Drain(kPatience).status(), admin->Undrain(kPatience),
        admin->Flush(kPatience).status(), admin->Verify(0, kPatience, GoOn).status(),
        admin->Pin({}, kPatience).status(), admin->Unpin(1, kPatience),
        admin->ListPins(kPatience).status(), admin->SetQuota("", std::nullopt, kPatience),
        admin->ListQuotas(kPatience).status(), admin->ReloadQuotas(kPatience)}) {
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--tls_ca"));
  }
  EXPECT_FALSE(server->is_draining());
  EXPECT_TRUE(Admin(absl::StrCat("127.0.0.1:", server->port()))->Flush(kPatience).ok());
}

// 44: and with them, whoever has one commands from anywhere.
TEST_F(AdminTest, AClientCertificateCommandsFromAnyAddress) {
  const std::string outward = OutwardAddress();
  if (outward.empty()) GTEST_SKIP() << "this machine has only loopback addresses";
  const std::string command = absl::StrCat(
      "cd ", folder_.path(),
      " && openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 1 "
      "-subj /CN=ibid -addext subjectAltName=IP:",
      outward, " >/dev/null 2>&1");
  if (std::system(command.c_str()) != 0) GTEST_SKIP() << "no openssl program";
  ServerOptions options = OnDemotion();
  options.listen = outward + ":0";
  options.tls_cert = folder_ / "cert.pem";
  options.tls_key = folder_ / "key.pem";
  ChannelOptions trusting;
  trusting.tls = {options.tls_cert, options.tls_key, options.tls_cert};
  StartServer(options);  // one's own certificate proves nothing to a server that asks for none
  const auto refused = (*AdminChannel::Create(server->address(), trusting))->Flush(kPatience);
  EXPECT_TRUE(absl::IsPermissionDenied(refused.status())) << refused.status();
  server.reset();

  options.tls_ca = options.tls_cert;
  StartServer(options);
  const auto flushed = (*AdminChannel::Create(server->address(), trusting))->Flush(kPatience);
  EXPECT_TRUE(flushed.ok()) << flushed.status();
  ChannelOptions without;
  without.tls.ca_file = options.tls_cert;
  EXPECT_FALSE((*AdminChannel::Create(server->address(), without))->Flush(kPatience).ok());
}

}  // namespace
}  // namespace ibid
