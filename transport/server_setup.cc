#include "transport/server_setup.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "transport/http2_settings.h"

namespace ibid {
namespace {

// Clients send keepalive pings each 10 s by default; faster than this is abuse, and the connection
// is closed.
constexpr int kClientPingIntervalMinMs = 1'000;

void SetArguments(const ServerSetup& setup, grpc::ServerBuilder* builder) {
  SetHttp2Arguments([&](const char* name, int value) { builder->AddChannelArgument(name, value); });
  builder->SetMaxReceiveMessageSize(static_cast<int>(kMessageBytesMax));
  builder->SetMaxSendMessageSize(static_cast<int>(kMessageBytesMax));
  const auto set_ms = [&](const char* name, absl::Duration duration) {
    builder->AddChannelArgument(name, static_cast<int>(absl::ToInt64Milliseconds(duration)));
  };
  set_ms(GRPC_ARG_KEEPALIVE_TIME_MS, setup.keepalive_interval);
  set_ms(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, setup.keepalive_timeout);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kClientPingIntervalMinMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kConnectionStreamsMax);
  // Two servers on one port would share its clients at random.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    const ServerSetup& setup, std::span<grpc::Service* const> services) {
  IBID_ASSIGN_OR_RETURN(std::shared_ptr<grpc::ServerCredentials> credentials,
                        MakeServerCredentials(setup.tls));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetArguments(setup, &builder);
  int port = 0;
  builder.AddListeningPort(setup.listen, credentials, &port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", setup.listen,
                     ": the port may be in use, or the address not this machine's; give another "
                     "--listen"));
  }
  std::unique_ptr<GrpcServer> started(new GrpcServer(std::move(server), port));
  started->SetServing(true);
  return started;
}

GrpcServer::~GrpcServer() { Shutdown(absl::ZeroDuration()); }

void GrpcServer::SetServing(bool is_serving) {
  server_->GetHealthCheckService()->SetServingStatus(is_serving);
}

void GrpcServer::Shutdown(absl::Duration grace) {
  SetServing(false);
  server_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(grace));
}

}  // namespace ibid
