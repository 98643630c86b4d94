#include "cache_server/admin_service.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache_server/tenant_table.h"
#include "core/check.h"
#include "core/executor.h"
#include "core/limit.h"
#include "core/log.h"
#include "core/mutex.h"
#include "ibid/v1/admin.grpc.pb.h"
#include "transport/key_bytes.h"
#include "transport/limits.h"
#include "transport/peer.h"
#include "transport/status_conversion.h"

namespace ibid {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

// Verify calls at a time; a further one is refused.
constexpr size_t kVerifiesMax = 1;
// Drains and flushes that wait for their turn; more are refused.
constexpr size_t kFlushesQueuedMax = 4;
// Words about pins, and reloads of quotas, that wait for their turn; more are refused.
constexpr size_t kPinCallsQueuedMax = 16;
constexpr absl::Duration kFlushTimeoutMax = absl::Hours(1);
constexpr uint64_t kVerifyBytesPerSecond = uint64_t{256} << 20;
// Between two messages of a Verify.
constexpr absl::Duration kReportInterval = absl::Milliseconds(100);

void FillProgress(uint64_t incarnation, const VerifyReport& from, v1::VerifyProgress* to) {
  to->set_incarnation(incarnation);
  to->set_copies(from.copies);
  to->set_checked_copies(from.checked_copies);
  to->set_checked_bytes(from.checked_bytes);
  to->set_damaged_host_copies(from.damaged_host_copies);
  to->set_damaged_disk_copies(from.damaged_disk_copies);
  to->set_unreadable_disk_copies(from.unreadable_disk_copies);
  to->set_damaged_gpu_copies(from.damaged_gpu_copies);
  to->set_unreadable_gpu_copies(from.unreadable_gpu_copies);
  to->set_kept_blocks(from.kept_blocks);
}

// One Verify call. Messages that would pile up behind one that is being written become one.
// Invariants, under mutex_: at most one write is under way; Finish is called once, with no write
// under way.
class VerifyStream final : public grpc::ServerWriteReactor<v1::VerifyProgress>,
                           public std::enable_shared_from_this<VerifyStream> {
 public:
  explicit VerifyStream(uint64_t incarnation) : incarnation_(incarnation) {}

  void Start() { self_ = shared_from_this(); }
  bool is_cancelled() const { return is_cancelled_; }

  void Report(const VerifyReport& report) {
    if (clock_.Now() - reported_at_ < kReportInterval) return;
    reported_at_ = clock_.Now();
    v1::VerifyProgress message;
    FillProgress(incarnation_, report, &message);
    Send(std::move(message));
  }

  void End(const absl::StatusOr<VerifyReport>& result) {
    if (result.ok()) {
      v1::VerifyProgress message;
      FillProgress(incarnation_, *result, &message);
      message.set_is_done(true);
      Send(std::move(message));
    }
    {
      MutexLock lock(mutex_);
      end_status_ = ToGrpcStatus(result.status(), incarnation_);
    }
    Advance();
  }

  void OnWriteDone(bool ok) override {
    const auto self = shared_from_this();
    if (!ok) is_cancelled_ = true;
    {
      MutexLock lock(mutex_);
      is_writing_ = false;
    }
    Advance();
  }

  void OnCancel() override { is_cancelled_ = true; }
  void OnDone() override { const std::shared_ptr<VerifyStream> self = std::move(self_); }

 private:
  void Send(v1::VerifyProgress message) {
    {
      MutexLock lock(mutex_);
      next_ = std::move(message);
    }
    Advance();
  }

  void Advance() {
    std::optional<grpc::Status> end_status;
    {
      MutexLock lock(mutex_);
      if (is_writing_ || is_finished_) return;
      if (next_.has_value() && !is_cancelled_) {
        outgoing_ = *std::exchange(next_, std::nullopt);
        is_writing_ = true;
      } else if (end_status_.has_value()) {
        is_finished_ = true;
        end_status = end_status_;
      } else {
        return;
      }
    }
    end_status.has_value() ? Finish(*end_status) : StartWrite(&outgoing_);
  }

  const uint64_t incarnation_;
  const SteadyClock clock_;
  absl::Time reported_at_ = absl::InfinitePast();  // of the thread that verifies
  v1::VerifyProgress outgoing_;                    // belongs to gRPC while is_writing_
  std::atomic<bool> is_cancelled_{false};
  std::shared_ptr<VerifyStream> self_;  // while gRPC knows this reactor

  Mutex mutex_;
  std::optional<v1::VerifyProgress> next_ IBID_GUARDED_BY(mutex_);
  std::optional<grpc::Status> end_status_ IBID_GUARDED_BY(mutex_);
  bool is_writing_ IBID_GUARDED_BY(mutex_) = false;
  bool is_finished_ IBID_GUARDED_BY(mutex_) = false;
};

using GeneratedService = v1::AdminService::CallbackService;

class AdminServiceImpl final : public AdminService, private GeneratedService {
 public:
  explicit AdminServiceImpl(const AdminServiceOptions& options)
      : options_(options),
        incarnation_(options.store->incarnation()),
        verifies_("ibid-verify", kVerifiesMax, kVerifiesMax),
        flushes_("ibid-flush", 1, kFlushesQueuedMax),
        pin_calls_("ibid-pin", 1, kPinCallsQueuedMax) {}

  ~AdminServiceImpl() override { is_stopping_ = true; }

  grpc::Service* grpc_service() override { return this; }
  void Stop() override { is_stopping_ = true; }

 private:
  absl::Status Admit(const CallbackServerContext& context, absl::string_view call) const {
    if (is_stopping_) return absl::UnavailableError("the server is shutting down");
    const std::string peer = context.peer();
    if (!options_.is_loopback_only || IsLoopbackPeer(peer)) return absl::OkStatus();
    IBID_LOG_EVERY(1, warn, "admin: {} from {} is refused: not of this machine", call, peer);
    return absl::PermissionDeniedError(absl::StrCat(
        call,
        ": only from the server's own machine, or with a client certificate once the server "
        "demands them (--tls_ca)"));
  }

  ServerUnaryReactor* Drain(CallbackServerContext* context, const v1::DrainRequest* request,
                            v1::DrainResponse* response) override {
    return Keep(context, "Drain", request->timeout_ms(), response, options_.drain);
  }

  ServerUnaryReactor* Undrain(CallbackServerContext* context, const v1::UndrainRequest*,
                              v1::UndrainResponse* response) override {
    ServerUnaryReactor* const reactor = context->DefaultReactor();
    response->set_incarnation(incarnation_);
    absl::Status status = Admit(*context, "Undrain");
    if (status.ok()) status = options_.undrain();
    reactor->Finish(ToGrpcStatus(status, incarnation_));
    return reactor;
  }

  ServerUnaryReactor* Flush(CallbackServerContext* context, const v1::FlushRequest* request,
                            v1::FlushResponse* response) override {
    return Keep(context, "Flush", request->timeout_ms(), response,
                [this](absl::Duration timeout, const std::function<bool()>& is_stopped) {
                  return options_.store->KeepOnDisk(timeout, is_stopped);
                });
  }

  template <typename Response, typename Work>
  ServerUnaryReactor* Keep(CallbackServerContext* context, const char* call, uint32_t timeout_ms,
                           Response* response, Work work) {
    ServerUnaryReactor* const reactor = context->DefaultReactor();
    const absl::Status admitted = Admit(*context, call);
    if (!admitted.ok()) {
      reactor->Finish(ToGrpcStatus(admitted, incarnation_));
      return reactor;
    }
    const absl::Duration timeout = std::min(absl::Milliseconds(timeout_ms), kFlushTimeoutMax);
    const bool is_queued =
        flushes_.TrySubmit([this, context, call, timeout, response, work, reactor] {
          const KeepResult result =
              work(timeout, [this, context] { return is_stopping_ || context->IsCancelled(); });
          response->set_incarnation(incarnation_);
          response->set_written_blocks(result.written_blocks);
          response->set_remaining_blocks(result.remaining_blocks);
          IBID_LOG(info, "admin: {}: {} blocks written to disk, only memory has {}", call,
                   result.written_blocks, result.remaining_blocks);
          reactor->Finish(grpc::Status::OK);
        });
    if (!is_queued) {
      reactor->Finish(ToGrpcStatus(LimitReached(absl::StrCat(call, ": too many are waiting"),
                                                "kFlushesQueuedMax", kFlushesQueuedMax),
                                   incarnation_));
    }
    return reactor;
  }

  ServerUnaryReactor* Pin(CallbackServerContext* context, const v1::PinRequest* request,
                          v1::PinResponse* response) override {
    return OnTurn(context, "Pin", response, [this, request, response] {
      NamespaceId ns;
      IBID_ASSIGN_OR_RETURN(ns.digest, DigestFromBytes(request->namespace_id(), "namespace_id"));
      IBID_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys, DecodeKeys(request->keys()));
      PinOptions options;
      options.priority = v1::PinPriority_IsValid(request->priority())
                             ? static_cast<KeepPriority>(request->priority())
                             : KeepPriority::kNone;
      if (request->duration_ms() > 0) options.duration = DurationOf(request->duration_ms());
      IBID_ASSIGN_OR_RETURN(const PinResult result,
                            options_.store->Pin({request->pin_id()}, ns, keys, options));
      response->set_stored_blocks(result.stored_blocks);
      response->set_survives_restart(result.survives_restart);
      IBID_LOG(info, "admin: pin {:016x} of {} blocks, priority {}, for {}", request->pin_id(),
               keys.size(), NameOf(options.priority), absl::FormatDuration(options.duration));
      return absl::OkStatus();
    });
  }

  ServerUnaryReactor* Unpin(CallbackServerContext* context, const v1::UnpinRequest* request,
                            v1::UnpinResponse* response) override {
    return OnTurn(context, "Unpin", response, [this, request]() -> absl::Status {
      IBID_RETURN_IF_ERROR(options_.store->Unpin({request->pin_id()}));
      IBID_LOG(info, "admin: unpin {:016x}", request->pin_id());
      return absl::OkStatus();
    });
  }

  ServerUnaryReactor* ListPins(CallbackServerContext* context, const v1::ListPinsRequest*,
                               v1::ListPinsResponse* response) override {
    return OnTurn(context, "ListPins", response, [this, response] {
      for (const PinInfo& from : options_.store->Pins()) {
        v1::PinState* const to = response->add_pins();
        to->set_pin_id(from.id.value);
        to->set_namespace_id(DigestString(from.ns.digest));
        to->set_priority(static_cast<v1::PinPriority>(from.priority));
        if (from.left < absl::InfiniteDuration()) {
          to->set_left_ms(std::max<int64_t>(1, absl::ToInt64Milliseconds(from.left)));
        }
        to->set_blocks(from.blocks);
        to->set_stored_blocks(from.stored_blocks);
        to->set_host_blocks(from.host_blocks);
        to->set_disk_blocks(from.disk_blocks);
      }
      return absl::OkStatus();
    });
  }

  ServerUnaryReactor* SetQuota(CallbackServerContext* context, const v1::SetQuotaRequest* request,
                               v1::SetQuotaResponse* response) override {
    ServerUnaryReactor* const reactor = context->DefaultReactor();
    response->set_incarnation(incarnation_);
    absl::Status status = Admit(*context, "SetQuota");
    if (status.ok()) status = SetQuotaNow(*request);
    reactor->Finish(ToGrpcStatus(status, incarnation_));
    return reactor;
  }

  absl::Status SetQuotaNow(const v1::SetQuotaRequest& request) {
    if (request.tenant().size() > kTextFieldBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("SetQuota: tenant has ", request.tenant().size(),
                       " bytes, over kTextFieldBytesMax=", kTextFieldBytesMax));
    }
    if (request.is_default() && (!request.tenant().empty() || !request.has_quota())) {
      return absl::InvalidArgumentError(
          "SetQuota: the default quota is of no tenant, and is not taken away");
    }
    const TenantQuota quota = QuotaOf(request.quota());
    if (request.is_default()) {
      options_.store->tenants().SetDefault(quota);
      return absl::OkStatus();
    }
    return options_.store->tenants().SetQuota(
        request.tenant(), request.has_quota() ? std::optional(quota) : std::nullopt);
  }

  ServerUnaryReactor* ListQuotas(CallbackServerContext* context, const v1::ListQuotasRequest*,
                                 v1::ListQuotasResponse* response) override {
    ServerUnaryReactor* const reactor = context->DefaultReactor();
    response->set_incarnation(incarnation_);
    const absl::Status status = Admit(*context, "ListQuotas");
    if (status.ok()) {
      FillQuota(options_.store->tenants().default_quota(), response->mutable_default_quota());
      for (const TenantInfo& from : options_.store->Tenants()) {
        v1::TenantState* const to = response->add_tenants();
        to->set_tenant(from.name);
        FillQuota(from.quota, to->mutable_quota());
        to->set_has_default(from.is_default);
        to->set_published_bytes(from.published_bytes);
        to->set_refused_blocks(from.refused_blocks);
        to->set_host_used_bytes(from.host_used_bytes);
        to->set_disk_used_bytes(from.disk_used_bytes);
        to->set_gpu_used_bytes(from.gpu_used_bytes);
      }
    }
    reactor->Finish(ToGrpcStatus(status, incarnation_));
    return reactor;
  }

  // In its turn, as it reads a file.
  ServerUnaryReactor* ReloadQuotas(CallbackServerContext* context, const v1::ReloadQuotasRequest*,
                                   v1::ReloadQuotasResponse* response) override {
    return OnTurn(context, "ReloadQuotas", response, [this]() -> absl::Status {
      const absl::Status status = options_.reload_quotas();
      if (status.ok()) {
        IBID_LOG(info, "admin: the quotas of tenants were read again");
      } else {
        IBID_LOG(warn, "admin: quotas stay as they are: {}", status.message());
      }
      return status;
    });
  }

  static TenantQuota QuotaOf(const v1::Quota& from) {
    TenantQuota quota;
    if (from.has_publish_bytes_per_second_max()) {
      quota.publish_bytes_per_second_max = from.publish_bytes_per_second_max();
    }
    if (from.has_host_bytes_max()) quota.host_bytes_max = from.host_bytes_max();
    if (from.has_disk_bytes_max()) quota.disk_bytes_max = from.disk_bytes_max();
    if (from.has_gpu_bytes_max()) quota.gpu_bytes_max = from.gpu_bytes_max();
    return quota;
  }

  static void FillQuota(const TenantQuota& from, v1::Quota* to) {
    constexpr uint64_t kNone = TenantQuota::kNoLimit;
    if (from.publish_bytes_per_second_max != kNone) {
      to->set_publish_bytes_per_second_max(from.publish_bytes_per_second_max);
    }
    if (from.host_bytes_max != kNone) to->set_host_bytes_max(from.host_bytes_max);
    if (from.disk_bytes_max != kNone) to->set_disk_bytes_max(from.disk_bytes_max);
    if (from.gpu_bytes_max != kNone) to->set_gpu_bytes_max(from.gpu_bytes_max);
  }

  static absl::Duration DurationOf(uint64_t ms) {
    return ms > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
               ? absl::InfiniteDuration()
               : absl::Milliseconds(static_cast<int64_t>(ms));
  }

  // Runs `work` in its turn, as it may write to disk or go over many blocks.
  template <typename Response, typename Work>
  ServerUnaryReactor* OnTurn(CallbackServerContext* context, const char* call, Response* response,
                             Work work) {
    ServerUnaryReactor* const reactor = context->DefaultReactor();
    absl::Status refusal = Admit(*context, call);
    if (refusal.ok() && !pin_calls_.TrySubmit([this, response, work, reactor] {
          response->set_incarnation(incarnation_);
          reactor->Finish(ToGrpcStatus(work(), incarnation_));
        })) {
      refusal = LimitReached(absl::StrCat(call, ": too many are waiting"), "kPinCallsQueuedMax",
                             kPinCallsQueuedMax);
    }
    if (!refusal.ok()) reactor->Finish(ToGrpcStatus(refusal, incarnation_));
    return reactor;
  }

  grpc::ServerWriteReactor<v1::VerifyProgress>* Verify(CallbackServerContext* context,
                                                       const v1::VerifyRequest* request) override {
    const auto stream = std::make_shared<VerifyStream>(incarnation_);
    stream->Start();
    absl::Status refusal = Admit(*context, "Verify");
    if (refusal.ok() && is_verifying_.exchange(true)) {
      refusal = LimitReached("Verify: another one runs", "kVerifiesMax", kVerifiesMax);
    } else if (refusal.ok()) {
      const uint64_t pace =
          request->bytes_per_second() == 0 ? kVerifyBytesPerSecond : request->bytes_per_second();
      if (verifies_.TrySubmit([this, stream, pace] { VerifyNow(*stream, pace); })) {
        return stream.get();
      }
      is_verifying_ = false;
      refusal = absl::UnavailableError("the server is shutting down");
    }
    stream->End(refusal);
    return stream.get();
  }

  void VerifyNow(VerifyStream& stream, uint64_t bytes_per_second) {
    IBID_LOG(info, "verify: begins, at most {} bytes a second", bytes_per_second);
    const auto result =
        options_.store->Verify(bytes_per_second, [this, &stream](const VerifyReport& report) {
          stream.Report(report);
          return !is_stopping_ && !stream.is_cancelled();
        });
    if (result.ok()) {
      IBID_LOG(info, "verify: {} copies read, {} of them bad, {} blocks kept a sound one",
               result->checked_copies, result->bad_copies(), result->kept_blocks);
    } else {
      IBID_LOG(warn, "verify: ended early: {}", result.status().message());
    }
    // Before the caller knows the end: it may ask for the next one at once.
    is_verifying_ = false;
    stream.End(result);
  }

  const AdminServiceOptions options_;
  const uint64_t incarnation_;
  std::atomic<bool> is_stopping_{false};
  std::atomic<bool> is_verifying_{false};
  // Last, so that they end first: their work uses all of the above.
  Executor verifies_;
  Executor flushes_;
  Executor pin_calls_;
};

}  // namespace

std::unique_ptr<AdminService> AdminService::Create(const AdminServiceOptions& options) {
  IBID_CHECK(options.store != nullptr && options.drain && options.undrain && options.reload_quotas);
  return std::make_unique<AdminServiceImpl>(options);
}

}  // namespace ibid
