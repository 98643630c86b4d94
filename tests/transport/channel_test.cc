#include "transport/channel.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "core/limit.h"
#include "ibid/v1/cache.grpc.pb.h"
#include "ibid/v1/error.pb.h"
#include "transport/cache_channel.h"
#include "transport/limits.h"
#include "transport/server_setup.h"
#include "transport/status_conversion.h"

namespace ibid {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);  // only a broken test waits this long

// Answers GetStats and nothing else.
class StatsOnly final : public v1::CacheService::Service {
 public:
  grpc::Status GetStats(grpc::ServerContext*, const v1::GetStatsRequest*,
                        v1::GetStatsResponse* response) override {
    response->set_incarnation(42);
    return grpc::Status::OK;
  }
};

struct RunningServer {
  StatsOnly service;
  std::unique_ptr<GrpcServer> server;
  std::string address() const { return absl::StrCat("127.0.0.1:", server->port()); }
};

std::unique_ptr<RunningServer> StartServer(ServerSetup setup = {}) {
  auto running = std::make_unique<RunningServer>();
  grpc::Service* const services[] = {&running->service};
  auto server = GrpcServer::Start(setup, services);
  EXPECT_TRUE(server.ok()) << server.status();
  if (server.ok()) running->server = *std::move(server);
  return running;
}

std::unique_ptr<CacheChannel> ChannelTo(const std::string& address,
                                        const ChannelOptions& options = {}) {
  auto channel = CacheChannel::Create(address, options);
  EXPECT_TRUE(channel.ok()) << channel.status();
  return *std::move(channel);
}

// Answers each message of Publish with what the test says.
class LyingServer final : public v1::CacheService::Service {
 public:
  std::vector<std::pair<uint32_t, int>> results;  // index, outcome

  grpc::Status Publish(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::PublishResponse, v1::PublishRequest>* stream) override {
    v1::PublishRequest request;
    while (stream->Read(&request)) {
      v1::PublishResponse response;
      for (const auto& [index, outcome] : results) {
        v1::PublishResult& result = *response.add_results();
        result.set_index(index);
        result.set_outcome(static_cast<v1::BlockOutcome>(outcome));
      }
      stream->Write(response);
    }
    return grpc::Status::OK;
  }
};

TEST(ChannelTest, ResultsThatFitNoBlockAreAnError) {
  LyingServer service;
  grpc::Service* const services[] = {&service};
  const auto server = GrpcServer::Start({}, services);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto channel = ChannelTo(absl::StrCat("127.0.0.1:", (*server)->port()));
  const std::vector<std::byte> payload(64);
  const std::vector<PublishBlock> blocks(3, PublishBlock{{}, payload, std::nullopt, nullptr});
  const auto publish = [&](std::vector<std::pair<uint32_t, int>> results) {
    service.results = std::move(results);
    return channel->Publish({}, blocks, kPatience, [](const PublishBlockResult&) {}).status();
  };
  EXPECT_TRUE(publish({{2, 1}, {0, 1}, {1, 8}}).ok());
  EXPECT_TRUE(absl::IsInternal(publish({{0, 1}, {0, 1}, {1, 1}}))) << "twice";
  EXPECT_TRUE(absl::IsInternal(publish({{0, 1}, {1, 1}, {3, 1}}))) << "of no block";
  EXPECT_TRUE(absl::IsInternal(publish({{0, 1}, {1, 1}, {2, 257}}))) << "no outcome";
  EXPECT_TRUE(absl::IsInternal(publish({{0, 1}, {1, 1}, {2, 1}, {2, 1}}))) << "too many";
  EXPECT_TRUE(absl::IsInternal(publish({{0, 1}, {1, 1}}))) << "too few";
}

// Speaks just enough HTTP/2 to answer each request of one connection with headers, and with
// trailers that lack grpc-status: what a bit that flips on the wire makes of them.
class NoStatusServer {
 public:
  NoStatusServer() : listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in where = {};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(where);
    auto* const address = reinterpret_cast<sockaddr*>(&where);
    EXPECT_EQ(bind(listener_, address, length), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    EXPECT_EQ(getsockname(listener_, address, &length), 0);
    port_ = ntohs(where.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~NoStatusServer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  enum FrameType : uint8_t { kHeaders = 1, kSettings = 4 };
  static constexpr uint8_t kEndStream = 1, kAck = 1, kEndHeaders = 4;

  void Serve() {
    const int peer = accept(listener_, nullptr, nullptr);
    if (peer < 0) return;
    std::string preface(24, 0), frame(9, 0);
    bool is_open = Receive(peer, &preface);
    Send(peer, kSettings, 0, 0, "");
    while (is_open && Receive(peer, &frame)) {
      const auto byte = [&](int at) {
        return static_cast<uint32_t>(static_cast<uint8_t>(frame[at]));
      };
      std::string payload(byte(0) << 16 | byte(1) << 8 | byte(2), 0);
      const uint32_t stream = byte(5) << 24 | byte(6) << 16 | byte(7) << 8 | byte(8);
      is_open = Receive(peer, &payload);
      if (byte(3) == kSettings && (byte(4) & kAck) == 0) Send(peer, kSettings, kAck, 0, "");
      if (byte(3) != kHeaders) continue;
      // HPACK: ":status: 200" by its index, the rest literal and not indexed.
      Send(peer, kHeaders, kEndHeaders, stream,
           "\x88" + Literal("content-type", "application/grpc"));
      Send(peer, kHeaders, kEndHeaders | kEndStream, stream, Literal("grpc-statut", "0"));
    }
    close(peer);
  }

  static std::string Literal(const std::string& name, const std::string& value) {
    return std::string(1, '\0') + static_cast<char>(name.size()) + name +
           static_cast<char>(value.size()) + value;
  }
  static bool Receive(int peer, std::string* bytes) {
    return bytes->empty() || recv(peer, bytes->data(), bytes->size(), MSG_WAITALL) ==
                                 static_cast<ssize_t>(bytes->size());
  }
  static void Send(int peer, FrameType type, uint8_t flags, uint32_t stream,
                   const std::string& payload) {
    const std::string head = {0,
                              0,
                              static_cast<char>(payload.size()),
                              static_cast<char>(type),
                              static_cast<char>(flags),
                              static_cast<char>(stream >> 24),
                              static_cast<char>(stream >> 16),
                              static_cast<char>(stream >> 8),
                              static_cast<char>(stream)};
    const std::string bytes = head + payload;
    (void)send(peer, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

  const int listener_;
  uint16_t port_ = 0;
  std::thread thread_;
};

// gRPC 1.51 aborts the process in its retries when it looks for a status that is not there.
TEST(ChannelTest, AnAnswerWithoutAStatusIsAnError) {
  NoStatusServer server;
  const auto channel = ChannelTo(server.address());
  ASSERT_TRUE(channel->WaitUntilConnected(kPatience));
  const auto stats = channel->GetStats(kPatience);
  EXPECT_FALSE(stats.ok());
  EXPECT_FALSE(absl::IsDeadlineExceeded(stats.status())) << stats.status();
}

TEST(StatusConversionTest, EveryCodeKeepsItsMeaningBothWays) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    const grpc::Status wire = ToGrpcStatus(status);
    EXPECT_EQ(static_cast<int>(wire.error_code()), code);
    EXPECT_EQ(FromGrpcStatus(wire), status);
  }
}

// A typed detail, in the form that every gRPC library reads.
TEST(StatusConversionTest, ErrorsCarryTheIncarnationAndTheLimit) {
  const absl::Status status = LimitReached("too many sessions are open", "sessions_max", 7);
  EXPECT_EQ(status.message(), "too many sessions are open: sessions_max=7");
  const grpc::Status wire = ToGrpcStatus(status, 42);
  v1::ErrorStatus typed;
  ASSERT_TRUE(typed.ParseFromString(wire.error_details()));
  EXPECT_EQ(typed.code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  ASSERT_EQ(typed.details_size(), 1);
  EXPECT_EQ(typed.details(0).type_url(), "type.googleapis.com/ibid.v1.ErrorDetail");
  v1::ErrorDetail detail;
  ASSERT_TRUE(typed.details(0).UnpackTo(&detail));
  EXPECT_EQ(detail.incarnation(), 42u);
  EXPECT_EQ(detail.limit(), "sessions_max");
  EXPECT_EQ(detail.limit_value(), 7u);
  EXPECT_EQ(LimitOf(FromGrpcStatus(wire)), (Limit{"sessions_max", 7}));
  EXPECT_EQ(LimitOf(FromGrpcStatus(ToGrpcStatus(absl::InternalError("x"), 42))), std::nullopt);
  const grpc::Status rubbish(grpc::StatusCode::INTERNAL, "x", "not protobuf");
  EXPECT_EQ(FromGrpcStatus(rubbish), absl::InternalError("x"));
}

TEST(StatusConversionTest, LongMessagesAreCutToFitIntoTrailers) {
  const grpc::Status wire = ToGrpcStatus(absl::InternalError(std::string(100'000, 'x')));
  EXPECT_EQ(wire.error_message().size(), kStatusMessageBytesMax);
}

TEST(ChannelTest, PortZeroBecomesARealPortAndASecondServerCannotTakeIt) {
  const auto running = StartServer();
  ASSERT_GT(running->server->port(), 0);
  StatsOnly other;
  grpc::Service* const services[] = {&other};
  ServerSetup setup;
  setup.listen = running->address();
  const auto second = GrpcServer::Start(setup, services);
  EXPECT_TRUE(absl::IsUnavailable(second.status())) << second.status();
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(running->address()));
}

// 18: a server that is away is an error within the deadline, and is found again within a heartbeat
// once it is back.
TEST(ChannelTest, FindsAServerAgainSoonAfterItIsBack) {
  auto running = StartServer();
  ServerSetup setup;
  setup.listen = running->address();
  ChannelOptions options;
  options.reconnect_backoff_max = absl::Milliseconds(200);
  const auto channel = ChannelTo(running->address(), options);
  ASSERT_TRUE(channel->WaitUntilConnected(kPatience));
  ASSERT_TRUE(channel->GetStats(kPatience).ok());

  running.reset();
  const SteadyClock clock;
  const absl::Time down = clock.Now();
  const auto refused = channel->GetStats(absl::Seconds(2));
  EXPECT_TRUE(absl::IsUnavailable(refused.status()) || absl::IsDeadlineExceeded(refused.status()))
      << refused.status();
  EXPECT_LT(clock.Now() - down, absl::Seconds(5));

  running = StartServer(setup);
  const absl::Time up = clock.Now();
  ASSERT_TRUE(channel->WaitUntilConnected(kPatience));
  EXPECT_TRUE(channel->GetStats(kPatience).ok());
  EXPECT_LT(clock.Now() - up, absl::Seconds(3));
}

TEST(ChannelTest, CallsWithoutAServerEndByTheirDeadline) {
  const auto channel = ChannelTo("127.0.0.1:1");
  const SteadyClock clock;
  const absl::Time began = clock.Now();
  EXPECT_FALSE(channel->is_connected());
  EXPECT_FALSE(channel->GetStats(absl::Milliseconds(300)).ok());
  EXPECT_FALSE(channel->WaitUntilConnected(absl::Milliseconds(100)));
  EXPECT_FALSE(channel->OpenSession("test", absl::Milliseconds(300), [](absl::Status) {}).ok());
  std::vector<std::byte> bytes(64);
  const MutableByteView into[] = {bytes};
  const BlockKey keys[1] = {};
  EXPECT_FALSE(
      channel->Fetch({}, keys, into, absl::Milliseconds(300), [](uint32_t, BlockOutcome) {}).ok());
  const PublishBlock blocks[] = {PublishBlock{{}, bytes}};
  EXPECT_FALSE(
      channel->Publish({}, blocks, absl::Milliseconds(300), [](const PublishBlockResult&) {}).ok());
  EXPECT_LT(clock.Now() - began, absl::Seconds(10));
}

TEST(ChannelTest, MessagesOverTheLimitAreRefusedByName) {
  const auto running = StartServer();
  const auto channel = ChannelTo(running->address());
  const std::vector<BlockKey> keys(kRequestKeysMax + 1);
  const auto match = channel->Match({}, keys, kPatience);
  EXPECT_TRUE(absl::IsResourceExhausted(match.status()));
  EXPECT_THAT(std::string(match.status().message()), HasSubstr("kRequestKeysMax"));

  const std::vector<std::byte> bytes(kBlockPayloadBytesMax + 1);
  const PublishBlock blocks[] = {PublishBlock{{}, bytes}};
  const auto publish = channel->Publish({}, blocks, kPatience, [](const PublishBlockResult&) {});
  EXPECT_TRUE(absl::IsInvalidArgument(publish.status()));
  EXPECT_THAT(std::string(publish.status().message()), HasSubstr("kBlockPayloadBytesMax"));
}

// Makes PEM files with the openssl program of the system.
class TlsFiles {
 public:
  explicit TlsFiles(const std::string& folder) : folder_(folder) {}
  bool Make() const {
    const std::string command = absl::StrCat(
        "cd ", folder_,
        " && openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 1 "
        "-subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 >/dev/null 2>&1");
    return std::system(command.c_str()) == 0;
  }
  std::string certificate() const { return folder_ + "/cert.pem"; }
  std::string key() const { return folder_ + "/key.pem"; }

 private:
  const std::string folder_;
};

TEST(TlsTest, AServerWithACertificateIsReachedByThoseWhoTrustIt) {
  std::string folder = ::testing::TempDir() + "ibid_tls_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const TlsFiles files(folder);
  if (!files.Make()) GTEST_SKIP() << "no openssl program";
  ServerSetup setup;
  setup.tls = {files.certificate(), files.key(), ""};
  const auto running = StartServer(setup);
  ChannelOptions trusting;
  trusting.tls.ca_file = files.certificate();
  EXPECT_TRUE(ChannelTo(running->address(), trusting)->GetStats(kPatience).ok());
  EXPECT_FALSE(ChannelTo(running->address())->GetStats(absl::Seconds(2)).ok());
}

TEST(TlsTest, NamesTheFileThatCannotBeRead) {
  ChannelOptions options;
  options.tls.ca_file = "/nowhere/ca.pem";
  const auto channel = CacheChannel::Create("127.0.0.1:1", options);
  EXPECT_TRUE(absl::IsInvalidArgument(channel.status()));
  EXPECT_THAT(std::string(channel.status().message()), HasSubstr("/nowhere/ca.pem"));
}

}  // namespace
}  // namespace ibid
