#include "transport/admin_channel.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "ibid/v1/admin.grpc.pb.h"
#include "transport/call_deadline.h"
#include "transport/key_bytes.h"
#include "transport/status_conversion.h"

namespace ibid {
namespace {

// What a call may take beyond the time that the server was given: the way there and back, and its
// turn.
constexpr absl::Duration kCallExtra = absl::Seconds(10);
constexpr absl::Duration kKeepTimeoutMax = absl::Hours(1);

class GrpcAdminChannel final : public AdminChannel {
 public:
  explicit GrpcAdminChannel(std::shared_ptr<grpc::Channel> channel)
      : stub_(v1::AdminService::NewStub(std::move(channel))) {}

  absl::StatusOr<KeepReply> Drain(absl::Duration timeout) override {
    return Keep<v1::DrainRequest, v1::DrainResponse>(&v1::AdminService::Stub::Drain, timeout);
  }

  absl::Status Undrain(absl::Duration timeout) override {
    grpc::ClientContext context;
    SetTimeout(timeout, &context);
    v1::UndrainResponse response;
    return FromGrpcStatus(stub_->Undrain(&context, {}, &response));
  }

  absl::StatusOr<KeepReply> Flush(absl::Duration timeout) override {
    return Keep<v1::FlushRequest, v1::FlushResponse>(&v1::AdminService::Stub::Flush, timeout);
  }

  absl::StatusOr<VerifyState> Verify(
      uint64_t bytes_per_second, absl::Duration timeout,
      const std::function<bool(const VerifyState&)>& on_progress) override {
    grpc::ClientContext context;
    SetTimeout(timeout, &context);
    v1::VerifyRequest request;
    request.set_bytes_per_second(bytes_per_second);
    const auto reader = stub_->Verify(&context, request);
    VerifyState state;
    v1::VerifyProgress message;
    while (reader->Read(&message)) {
      state = StateOf(message);
      if (!on_progress(state)) context.TryCancel();
    }
    IBID_RETURN_IF_ERROR(FromGrpcStatus(reader->Finish()));
    return state;
  }

  absl::StatusOr<PinReply> Pin(const PinCall& call, absl::Duration timeout) override {
    v1::PinRequest request;
    request.set_pin_id(call.id);
    request.set_namespace_id(DigestString(call.ns.digest));
    request.set_keys(EncodeKeys(call.keys));
    request.set_priority(static_cast<v1::PinPriority>(call.priority));
    if (call.duration < absl::InfiniteDuration()) {
      // At least one: 0 would be for ever.
      request.set_duration_ms(std::max<int64_t>(1, absl::ToInt64Milliseconds(call.duration)));
    }
    grpc::ClientContext context;
    SetTimeout(timeout, &context);
    v1::PinResponse response;
    IBID_RETURN_IF_ERROR(FromGrpcStatus(stub_->Pin(&context, request, &response)));
    return PinReply{response.incarnation(), response.stored_blocks(), response.survives_restart()};
  }

  absl::Status Unpin(uint64_t pin_id, absl::Duration timeout) override {
    grpc::ClientContext context;
    SetTimeout(timeout, &context);
    v1::UnpinRequest request;
    request.set_pin_id(pin_id);
    v1::UnpinResponse response;
    return FromGrpcStatus(stub_->Unpin(&context, request, &response));
  }

  absl::StatusOr<std::vector<PinState>> ListPins(absl::Duration timeout) override {
    grpc::ClientContext context;
    SetTimeout(timeout, &context);
    v1::ListPinsResponse response;
    IBID_RETURN_IF_ERROR(FromGrpcStatus(stub_->ListPins(&context, {}, &response)));
    std::vector<PinState> pins;
    for (const v1::PinState& from : response.pins()) {
      PinState& pin = pins.emplace_back();
      pin.id = from.pin_id();
      IBID_ASSIGN_OR_RETURN(pin.ns.digest, DigestFromBytes(from.namespace_id(), "namespace_id"));
      // A priority of a later version is at least as high as those that are known.
      pin.priority = static_cast<KeepPriority>(
          std::clamp(static_cast<int>(from.priority()), 0, static_cast<int>(v1::PinPriority_MAX)));
      pin.left =
          from.left_ms() == 0 ? absl::InfiniteDuration() : absl::Milliseconds(from.left_ms());
      pin.blocks = from.blocks();
      pin.stored_blocks = from.stored_blocks();
      pin.host_blocks = from.host_blocks();
      pin.disk_blocks = from.disk_blocks();
    }
    return pins;
  }

  absl::Status SetQuota(absl::string_view tenant, const std::optional<QuotaValues>& quota,
                        absl::Duration timeout) override {
    v1::SetQuotaRequest request;
    request.set_tenant(std::string(tenant));
    if (quota.has_value()) FillQuota(*quota, request.mutable_quota());
    return SendQuota(request, timeout);
  }

  absl::Status SetDefaultQuota(const QuotaValues& quota, absl::Duration timeout) override {
    v1::SetQuotaRequest request;
    request.set_is_default(true);
    FillQuota(quota, request.mutable_quota());
    return SendQuota(request, timeout);
  }

  absl::StatusOr<QuotaList> ListQuotas(absl::Duration timeout) override {
    grpc::ClientContext context;
    SetTimeout(timeout, &context);
    v1::ListQuotasResponse response;
    IBID_RETURN_IF_ERROR(FromGrpcStatus(stub_->ListQuotas(&context, {}, &response)));
    QuotaList list;
    list.default_quota = QuotaOf(response.default_quota());
    for (const v1::TenantState& from : response.tenants()) {
      list.tenants.push_back({from.tenant(), QuotaOf(from.quota()), from.has_default(),
                              from.published_bytes(), from.refused_blocks(), from.host_used_bytes(),
                              from.disk_used_bytes(), from.gpu_used_bytes()});
    }
    return list;
  }

  absl::Status ReloadQuotas(absl::Duration timeout) override {
    grpc::ClientContext context;
    SetTimeout(timeout, &context);
    v1::ReloadQuotasResponse response;
    return FromGrpcStatus(stub_->ReloadQuotas(&context, {}, &response));
  }

 private:
  static void FillQuota(const QuotaValues& from, v1::Quota* to) {
    if (from.publish_bytes_per_second_max.has_value()) {
      to->set_publish_bytes_per_second_max(*from.publish_bytes_per_second_max);
    }
    if (from.host_bytes_max.has_value()) to->set_host_bytes_max(*from.host_bytes_max);
    if (from.disk_bytes_max.has_value()) to->set_disk_bytes_max(*from.disk_bytes_max);
    if (from.gpu_bytes_max.has_value()) to->set_gpu_bytes_max(*from.gpu_bytes_max);
  }

  static QuotaValues QuotaOf(const v1::Quota& from) {
    QuotaValues quota;
    if (from.has_publish_bytes_per_second_max()) {
      quota.publish_bytes_per_second_max = from.publish_bytes_per_second_max();
    }
    if (from.has_host_bytes_max()) quota.host_bytes_max = from.host_bytes_max();
    if (from.has_disk_bytes_max()) quota.disk_bytes_max = from.disk_bytes_max();
    if (from.has_gpu_bytes_max()) quota.gpu_bytes_max = from.gpu_bytes_max();
    return quota;
  }

  absl::Status SendQuota(const v1::SetQuotaRequest& request, absl::Duration timeout) {
    grpc::ClientContext context;
    SetTimeout(timeout, &context);
    v1::SetQuotaResponse response;
    return FromGrpcStatus(stub_->SetQuota(&context, request, &response));
  }

  template <typename Request, typename Response>
  absl::StatusOr<KeepReply> Keep(grpc::Status (v1::AdminService::Stub::*method)(
                                     grpc::ClientContext*, const Request&, Response*),
                                 absl::Duration timeout) {
    timeout = std::clamp(timeout, absl::ZeroDuration(), kKeepTimeoutMax);
    grpc::ClientContext context;
    SetTimeout(timeout + kCallExtra, &context);
    Request request;
    request.set_timeout_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(timeout)));
    Response response;
    IBID_RETURN_IF_ERROR(FromGrpcStatus((stub_.get()->*method)(&context, request, &response)));
    return KeepReply{response.incarnation(), response.written_blocks(),
                     response.remaining_blocks()};
  }

  static VerifyState StateOf(const v1::VerifyProgress& from) {
    VerifyState state;
    state.incarnation = from.incarnation();
    state.copies = from.copies();
    state.checked_copies = from.checked_copies();
    state.checked_bytes = from.checked_bytes();
    state.damaged_host_copies = from.damaged_host_copies();
    state.damaged_disk_copies = from.damaged_disk_copies();
    state.unreadable_disk_copies = from.unreadable_disk_copies();
    state.damaged_gpu_copies = from.damaged_gpu_copies();
    state.unreadable_gpu_copies = from.unreadable_gpu_copies();
    state.kept_blocks = from.kept_blocks();
    state.is_done = from.is_done();
    return state;
  }

  const std::unique_ptr<v1::AdminService::Stub> stub_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<AdminChannel>> AdminChannel::Create(absl::string_view address,
                                                                   const ChannelOptions& options) {
  IBID_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, MakeChannel(address, options));
  return std::unique_ptr<AdminChannel>(std::make_unique<GrpcAdminChannel>(std::move(channel)));
}

}  // namespace ibid
