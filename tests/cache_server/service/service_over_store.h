// The services over a store of the test's own: a disk that can be told to stand still, and what a
// server would do on request replaced by functions of the test.
#pragma once

#include <grpcpp/client_context.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache_server/admin_service.h"
#include "cache_server/cache_service.h"
#include "ibid/v1/admin.grpc.pb.h"
#include "tests/cache_server/service/server_fixture.h"
#include "tests/cache_server/store/faulty_extent_io.h"
#include "tests/cache_server/store/store_harness.h"
#include "transport/server_setup.h"

namespace ibid {

class ServiceOverStore : public StoreFixture {
 protected:
  void OpenAll(BlockStoreOptions options) {
    options.wrap_extent_io = [faults = faults_](std::unique_ptr<ExtentIo> real) {
      return std::make_unique<FaultyExtentIo>(std::move(real), faults);
    };
    OpenStore(options);
    if (HasFatalFailure()) return;
    WaitForRecovery();
    service_options_.store = store_.get();
    service_options_.metrics = &metrics_;
    service_ = CacheService::Create(service_options_);
    admin_options_.state = service_->state();
    admin_ = AdminService::Create(admin_options_);
    grpc::Service* const services[] = {service_->grpc_service(), admin_->grpc_service()};
    auto server = GrpcServer::Start({}, services);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    const auto channel = *MakeChannel(address(), {});
    stub_ = v1::CacheService::NewStub(channel);
    admin_stub_ = v1::AdminService::NewStub(channel);
  }

  // In the order of a server's stop. Nothing may be left that refers to the store.
  void StopServices() {
    if (server_ == nullptr) return;
    server_->Shutdown(absl::ZeroDuration());
    EXPECT_TRUE(service_->WaitForNoHolds(kPatience));
    server_.reset();
    admin_.reset();
    service_.reset();
  }

  void TearDown() override {
    faults_->reads_stall = false;
    faults_->writes_stall = false;
    StopServices();
    store_.reset();  // before the metrics
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", server_->port()); }

  uint64_t CallsInProgress(absl::string_view method) {
    for (const MethodCounts& counts : service_->state()->metrics.Counts()) {
      if (counts.method == method) return counts.calls_in_progress;
    }
    return 0;
  }

  v1::PublishRequest PublishOf(const ChainLink& link, bool is_durable) const {
    const std::vector<std::byte> payload = PayloadOf(link.key, layout_.PayloadBytes());
    v1::PublishRequest request;
    request.set_session_id(session_.value);
    request.set_namespace_id(DigestString(ns_.digest));
    request.set_durable(is_durable);
    v1::BlockFrame& frame = *request.add_frames();
    frame.set_key(DigestString(link.key.digest));
    frame.set_parent(DigestString(link.parent.digest));
    frame.set_token_count(link.token_count);
    frame.set_position(link.position);
    frame.set_checksum(Checksum(payload));
    frame.set_payload(payload.data(), payload.size());
    return request;
  }

  static AdminServiceOptions NothingOnRequest() {
    AdminServiceOptions options;
    options.drain = [](absl::Duration, const std::function<bool()>&) { return KeepResult{}; };
    options.undrain = [] { return absl::OkStatus(); };
    options.reload_quotas = [] { return absl::OkStatus(); };
    return options;
  }

  MetricsRegistry metrics_;
  std::shared_ptr<DiskFaults> faults_ = std::make_shared<DiskFaults>();
  CacheServiceOptions service_options_;
  AdminServiceOptions admin_options_ = NothingOnRequest();
  std::unique_ptr<CacheService> service_;
  std::unique_ptr<AdminService> admin_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<v1::CacheService::Stub> stub_;
  std::unique_ptr<v1::AdminService::Stub> admin_stub_;
};

}  // namespace ibid
