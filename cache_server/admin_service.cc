#include "cache_server/admin_service.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache_server/stream_call.h"
#include "cache_server/tenant_table.h"
#include "cache_server/unary_call.h"
#include "core/check.h"
#include "core/executor.h"
#include "core/limit.h"
#include "core/log.h"
#include "core/mutex.h"
#include "ibid/v1/admin.grpc.pb.h"
#include "transport/key_bytes.h"
#include "transport/limits.h"
#include "transport/peer.h"

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

using VerifyReactor = grpc::ServerWriteReactor<v1::VerifyProgress>;

// One Verify call. Messages that would pile up behind one that is being written become one.
class VerifyStream final : public StreamCall<VerifyReactor> {
 public:
  explicit VerifyStream(ServiceState* state) : StreamCall(state, RpcMethod::kVerify) {}

  void Start(const v1::VerifyRequest& request) {
    Begin();
    record_.OnReceived(request.ByteSizeLong());
  }

  bool is_cancelled() {
    MutexLock lock(mutex_);
    return is_cancelled_;
  }

  void Report(const VerifyReport& report) {
    if (clock_.Now() - reported_at_ < kReportInterval) return;
    reported_at_ = clock_.Now();
    Send(report, /*is_done=*/false);
    Advance();
  }

  void Conclude(const absl::StatusOr<VerifyReport>& result) {
    if (result.ok()) Send(*result, /*is_done=*/true);
    End(result.status());
  }

 private:
  void Send(const VerifyReport& report, bool is_done) {
    MutexLock lock(mutex_);
    FillProgress(state_->incarnation, report, &next_.emplace());
    next_->set_is_done(is_done);
  }

  bool Step() override {
    {
      MutexLock lock(mutex_);
      if (is_writing_ || is_cancelled_ || !next_.has_value()) return false;
      outgoing_ = *std::exchange(next_, std::nullopt);
    }
    Write(&outgoing_, outgoing_.ByteSizeLong());
    return true;
  }

  bool is_busy() const IBID_REQUIRES(mutex_) override {
    return next_.has_value() && !is_cancelled_;
  }

  const SteadyClock clock_;
  absl::Time reported_at_ = absl::InfinitePast();  // of the thread that verifies
  v1::VerifyProgress outgoing_;                    // belongs to gRPC while is_writing_
  std::optional<v1::VerifyProgress> next_ IBID_GUARDED_BY(mutex_);
};

// Calls that take their time, on a thread of their own; more of them are refused.
struct Turns {
  Turns(const char* thread_name, const char* limit, size_t waiting_max)
      : limit_name(limit), limit_value(waiting_max), executor(thread_name, 1, waiting_max) {}
  const char* const limit_name;
  const size_t limit_value;
  Executor executor;
};

using GeneratedService = v1::AdminService::CallbackService;

class AdminServiceImpl final : public AdminService, private GeneratedService {
 public:
  explicit AdminServiceImpl(const AdminServiceOptions& options)
      : options_(options),
        state_(options.state),
        verifies_("ibid-verify", kVerifiesMax, kVerifiesMax),
        flushes_("ibid-flush", "kFlushesQueuedMax", kFlushesQueuedMax),
        pin_calls_("ibid-pin", "kPinCallsQueuedMax", kPinCallsQueuedMax) {}

  ~AdminServiceImpl() override { is_stopping_ = true; }

  grpc::Service* grpc_service() override { return this; }
  void Stop() override { is_stopping_ = true; }

 private:
  BlockStore& store() { return *state_->store; }

  absl::Status Admit(const CallbackServerContext& context, RpcMethod method) const {
    if (is_stopping_) return absl::UnavailableError("the server is shutting down");
    const std::string peer = context.peer();
    if (!options_.is_loopback_only || IsLoopbackPeer(peer)) return absl::OkStatus();
    IBID_LOG_EVERY(1, warn, "admin: {} from {} is refused: not of this machine", NameOf(method),
                   peer);
    return absl::PermissionDeniedError(absl::StrCat(
        NameOf(method),
        ": only from the server's own machine, or with a client certificate once the server "
        "demands them (--tls_ca)"));
  }

  // Answers with what `work` says, at once.
  template <typename Request, typename Response, typename Work>
  ServerUnaryReactor* AnswerNow(CallbackServerContext* context, RpcMethod method,
                                const Request* request, Response* response, Work work) {
    UnaryCall call(state_, context, method, *request);
    response->set_incarnation(state_->incarnation);
    absl::Status status = Admit(*context, method);
    if (status.ok()) status = work();
    return call.Answer(status, *response);
  }

  // The same in its turn, for work that may write to disk or go over many blocks.
  template <typename Request, typename Response, typename Work>
  ServerUnaryReactor* AnswerInTurn(Turns* turns, CallbackServerContext* context, RpcMethod method,
                                   const Request* request, Response* response, Work work) {
    const auto call = std::make_shared<UnaryCall>(state_, context, method, *request);
    response->set_incarnation(state_->incarnation);
    absl::Status refusal = Admit(*context, method);
    if (refusal.ok() &&
        !turns->executor.TrySubmit([call, response, work] { call->Answer(work(), *response); })) {
      refusal = LimitReached(absl::StrCat(NameOf(method), ": too many are waiting"),
                             turns->limit_name, turns->limit_value);
    }
    return refusal.ok() ? call->reactor() : call->Answer(refusal, *response);
  }

  ServerUnaryReactor* Drain(CallbackServerContext* context, const v1::DrainRequest* request,
                            v1::DrainResponse* response) override {
    return Keep(context, RpcMethod::kDrain, request, response, options_.drain);
  }

  ServerUnaryReactor* Undrain(CallbackServerContext* context, const v1::UndrainRequest* request,
                              v1::UndrainResponse* response) override {
    return AnswerNow(context, RpcMethod::kUndrain, request, response,
                     [this] { return options_.undrain(); });
  }

  ServerUnaryReactor* Flush(CallbackServerContext* context, const v1::FlushRequest* request,
                            v1::FlushResponse* response) override {
    return Keep(context, RpcMethod::kFlush, request, response,
                [this](absl::Duration timeout, const std::function<bool()>& is_stopped) {
                  return store().KeepOnDisk(timeout, is_stopped);
                });
  }

  template <typename Request, typename Response, typename Work>
  ServerUnaryReactor* Keep(CallbackServerContext* context, RpcMethod method, const Request* request,
                           Response* response, Work work) {
    const absl::Duration timeout =
        std::min(absl::Milliseconds(request->timeout_ms()), kFlushTimeoutMax);
    return AnswerInTurn(&flushes_, context, method, request, response,
                        [this, context, method, timeout, response, work] {
                          const KeepResult result = work(timeout, [this, context] {
                            return is_stopping_ || context->IsCancelled();
                          });
                          response->set_written_blocks(result.written_blocks);
                          response->set_remaining_blocks(result.remaining_blocks);
                          IBID_LOG(info, "admin: {}: {} blocks written to disk, only memory has {}",
                                   NameOf(method), result.written_blocks, result.remaining_blocks);
                          return absl::OkStatus();
                        });
  }

  ServerUnaryReactor* Pin(CallbackServerContext* context, const v1::PinRequest* request,
                          v1::PinResponse* response) override {
    return AnswerInTurn(&pin_calls_, context, RpcMethod::kPin, request, response,
                        [this, request, response] { return PinNow(*request, response); });
  }

  absl::Status PinNow(const v1::PinRequest& request, v1::PinResponse* response) {
    NamespaceId ns;
    IBID_ASSIGN_OR_RETURN(ns.digest, DigestFromBytes(request.namespace_id(), "namespace_id"));
    IBID_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys, DecodeKeys(request.keys()));
    PinOptions options;
    options.priority = v1::PinPriority_IsValid(request.priority())
                           ? static_cast<KeepPriority>(request.priority())
                           : KeepPriority::kNone;
    if (request.duration_ms() > 0) options.duration = DurationOf(request.duration_ms());
    IBID_ASSIGN_OR_RETURN(const PinResult result,
                          store().Pin({request.pin_id()}, ns, keys, options));
    response->set_stored_blocks(result.stored_blocks);
    response->set_survives_restart(result.survives_restart);
    IBID_LOG(info, "admin: pin {:016x} of {} blocks, priority {}, for {}", request.pin_id(),
             keys.size(), NameOf(options.priority), absl::FormatDuration(options.duration));
    return absl::OkStatus();
  }

  ServerUnaryReactor* Unpin(CallbackServerContext* context, const v1::UnpinRequest* request,
                            v1::UnpinResponse* response) override {
    return AnswerInTurn(&pin_calls_, context, RpcMethod::kUnpin, request, response,
                        [this, request]() -> absl::Status {
                          IBID_RETURN_IF_ERROR(store().Unpin({request->pin_id()}));
                          IBID_LOG(info, "admin: unpin {:016x}", request->pin_id());
                          return absl::OkStatus();
                        });
  }

  ServerUnaryReactor* ListPins(CallbackServerContext* context, const v1::ListPinsRequest* request,
                               v1::ListPinsResponse* response) override {
    return AnswerInTurn(&pin_calls_, context, RpcMethod::kListPins, request, response,
                        [this, response] {
                          for (const PinInfo& pin : store().Pins()) {
                            FillPin(pin, response->add_pins());
                          }
                          return absl::OkStatus();
                        });
  }

  static void FillPin(const PinInfo& from, v1::PinState* to) {
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

  ServerUnaryReactor* SetQuota(CallbackServerContext* context, const v1::SetQuotaRequest* request,
                               v1::SetQuotaResponse* response) override {
    return AnswerNow(context, RpcMethod::kSetQuota, request, response,
                     [this, request] { return SetQuotaNow(*request); });
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
      store().tenants().SetDefault(quota);
      return absl::OkStatus();
    }
    return store().tenants().SetQuota(request.tenant(),
                                      request.has_quota() ? std::optional(quota) : std::nullopt);
  }

  ServerUnaryReactor* ListQuotas(CallbackServerContext* context,
                                 const v1::ListQuotasRequest* request,
                                 v1::ListQuotasResponse* response) override {
    return AnswerNow(context, RpcMethod::kListQuotas, request, response, [this, response] {
      FillQuota(store().tenants().default_quota(), response->mutable_default_quota());
      for (const TenantInfo& from : store().Tenants()) {
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
      return absl::OkStatus();
    });
  }

  ServerUnaryReactor* ReloadQuotas(CallbackServerContext* context,
                                   const v1::ReloadQuotasRequest* request,
                                   v1::ReloadQuotasResponse* response) override {
    return AnswerInTurn(&pin_calls_, context, RpcMethod::kReloadQuotas, request, response, [this] {
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

  VerifyReactor* Verify(CallbackServerContext* context, const v1::VerifyRequest* request) override {
    const auto stream = std::make_shared<VerifyStream>(state_);
    stream->Start(*request);
    absl::Status refusal = Admit(*context, RpcMethod::kVerify);
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
        store().Verify(bytes_per_second, [this, &stream](const VerifyReport& report) {
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
    stream.Conclude(result);
  }

  const AdminServiceOptions options_;
  ServiceState* const state_;
  std::atomic<bool> is_stopping_{false};
  std::atomic<bool> is_verifying_{false};
  // Last, so that they end first: their work uses all of the above.
  Executor verifies_;
  Turns flushes_;
  Turns pin_calls_;
};

}  // namespace

std::unique_ptr<AdminService> AdminService::Create(const AdminServiceOptions& options) {
  IBID_CHECK(options.state != nullptr && options.drain && options.undrain && options.reload_quotas);
  return std::make_unique<AdminServiceImpl>(options);
}

}  // namespace ibid
