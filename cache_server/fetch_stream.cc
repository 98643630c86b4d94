// Invariants, under mutex_:
//   next_write_ <= next_acquire_ <= next_write_ + kFetchBlocksAhead
//   the result of block i, once there and until it is written, stands in window_[i %
//   kFetchBlocksAhead] at most one write is under way (is_writing_); Finish is called once, with no
//   write under way, and nothing after it one thread at a time acts on the state (is_advancing_);
//   others change the state and leave, so that a store which answers on the caller's stack costs no
//   recursion
#include "cache_server/fetch_stream.h"

#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "ibid/v1/cache.pb.h"
#include "transport/block_frame.h"
#include "transport/key_bytes.h"
#include "transport/limits.h"
#include "transport/message_bytes.h"
#include "transport/status_conversion.h"

namespace ibid {
namespace {

// A block on its way out. Members die in reverse order: the pin goes before the hold that says so.
struct SentBlock {
  Hold hold;
  BlockRef block;
};

// What a fetch asks for, checked.
struct FetchPlan {
  NamespaceId ns;
  std::vector<BlockKey> keys;
  uint32_t first_layer = 0;
  uint32_t layer_count = 0;  // 0: whole blocks
  size_t range_offset = 0;
  size_t range_bytes = 0;
  bool is_leased = false;
};

absl::StatusOr<FetchPlan> MakePlan(const ServiceState& state, const v1::FetchRequest& request) {
  FetchPlan plan;
  // Nothing is read for a lease that does not hold any more.
  if (request.lease_id() != 0) {
    IBID_RETURN_IF_ERROR(
        state.store->CheckLease(SessionId{request.session_id()}, LeaseId{request.lease_id()}));
    plan.is_leased = true;
  }
  IBID_ASSIGN_OR_RETURN(plan.ns.digest, DigestFromBytes(request.namespace_id(), "namespace_id"));
  IBID_ASSIGN_OR_RETURN(plan.keys, DecodeKeys(request.keys()));
  plan.first_layer = request.first_layer();
  plan.layer_count = request.layer_count();
  if (plan.layer_count == 0) return plan;
  IBID_ASSIGN_OR_RETURN(const KvLayout layout, state.store->LayoutOf(plan.ns));
  if (plan.first_layer >= layout.layers || plan.layer_count > layout.layers - plan.first_layer) {
    return absl::InvalidArgumentError(absl::StrCat("Fetch: layers ", plan.first_layer, " + ",
                                                   plan.layer_count, " are not in a layout of ",
                                                   layout.layers, " layers"));
  }
  plan.range_offset = layout.KOffset(plan.first_layer);
  plan.range_bytes = layout.LayerBytes() * plan.layer_count;
  return plan;
}

class FetchStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                          public std::enable_shared_from_this<FetchStream> {
 public:
  explicit FetchStream(ServiceState* state)
      : state_(state), hold_(state->holds), record_(&state->metrics, RpcMethod::kFetch) {}

  void Start(const grpc::ByteBuffer& request) {
    self_ = shared_from_this();
    record_.OnReceived(request.Length());
    absl::StatusOr<v1::FetchRequest> message = ParseMessage<v1::FetchRequest>(request);
    absl::StatusOr<FetchPlan> plan =
        message.ok() ? MakePlan(*state_, *message) : absl::StatusOr<FetchPlan>(message.status());
    if (plan.ok()) {
      plan_ = *std::move(plan);
    } else {
      Fail(plan.status());
    }
    Advance();
  }

  void OnWriteDone(bool ok) override {
    const auto self = shared_from_this();
    outgoing_.Clear();
    {
      MutexLock lock(mutex_);
      is_writing_ = false;
      if (!ok) is_cancelled_ = true;
    }
    Advance();
  }

  void OnCancel() override {
    const auto self = shared_from_this();
    {
      MutexLock lock(mutex_);
      is_cancelled_ = true;
    }
    Advance();
  }

  void OnDone() override {
    record_.OnDone(final_code_);
    const std::shared_ptr<FetchStream> self = std::move(self_);  // may be the last reference
  }

 private:
  using Result = std::optional<absl::StatusOr<BlockRef>>;
  using Window = std::array<Result, kFetchBlocksAhead>;
  enum class Action { kNothing, kAcquire, kWrite, kFinish };
  struct Step {
    Action action = Action::kNothing;
    size_t index = 0;
    Result result;        // kWrite
    absl::Status status;  // kFinish
  };

  // Does what can be done now. REQUIRES: the caller holds a reference to this.
  void Advance() {
    {
      MutexLock lock(mutex_);
      if (is_advancing_) return;
      is_advancing_ = true;
    }
    while (true) {
      Step step = NextStep();
      switch (step.action) {
        case Action::kNothing:
          return;
        case Action::kAcquire:
          state_->store->Acquire(
              plan_.ns, plan_.keys[step.index],
              [self = shared_from_this(), index = step.index](absl::StatusOr<BlockRef> result) {
                self->OnAcquired(index, std::move(result));
              },
              /*is_use=*/!plan_.is_leased);
          break;
        case Action::kWrite:
          Write(step.index, *std::move(step.result));
          break;
        case Action::kFinish:
          End(step.status);
          return;
      }
    }
  }

  // What to do next; with kNothing this thread has ceased to be the one that acts.
  Step NextStep() {
    MutexLock lock(mutex_);
    Step step = ChooseStep();
    if (step.action == Action::kNothing) is_advancing_ = false;
    return step;
  }

  Step ChooseStep() IBID_REQUIRES(mutex_) {
    if (is_finished_) return {};
    const bool is_over = is_cancelled_ || !failure_.ok() || next_write_ == plan_.keys.size();
    if (is_over) {
      if (is_writing_) return {};
      is_finished_ = true;
      return {Action::kFinish, 0, std::nullopt,
              is_cancelled_ ? absl::CancelledError("Fetch: cancelled") : failure_};
    }
    Result& front = window_[next_write_ % kFetchBlocksAhead];
    if (!is_writing_ && front.has_value()) {
      is_writing_ = true;
      Step step{Action::kWrite, next_write_++, std::move(front)};
      front.reset();
      return step;
    }
    if (next_acquire_ < plan_.keys.size() && next_acquire_ < next_write_ + kFetchBlocksAhead) {
      return {Action::kAcquire, next_acquire_++};
    }
    return {};
  }

  void OnAcquired(size_t index, absl::StatusOr<BlockRef> result) {
    {
      MutexLock lock(mutex_);
      if (is_finished_) return;  // and `result` gives its pin back
      window_[index % kFetchBlocksAhead].emplace(std::move(result));
    }
    Advance();
  }

  // Sends the frame of one block, or gives the stream up.
  void Write(size_t index, absl::StatusOr<BlockRef> result) {
    FrameHeader header;
    header.index = static_cast<uint32_t>(index);
    header.key = plan_.keys[index];
    header.incarnation = state_->incarnation;
    if (result.ok()) {
      outgoing_ = FrameOf(std::move(header), *std::move(result));
    } else if (absl::IsNotFound(result.status()) || absl::IsUnavailable(result.status())) {
      header.outcome = BlockOutcome::kMiss;
      outgoing_ = EncodeFrame(header, {}, nullptr);
    } else if (absl::IsDataLoss(result.status())) {
      header.outcome = BlockOutcome::kCorrupt;
      outgoing_ = EncodeFrame(header, {}, nullptr);
    } else {
      MutexLock lock(mutex_);
      failure_ = result.status();
      is_writing_ = false;
      return;
    }
    record_.OnSent(outgoing_.Length());
    StartWrite(&outgoing_);
  }

  grpc::ByteBuffer FrameOf(FrameHeader header, BlockRef block) {
    header.outcome = BlockOutcome::kOk;
    header.token_count = block.token_count();
    header.checksum = block.checksum();
    header.tier = std::string(block.tier());
    ByteView payload = block.payload();
    if (plan_.layer_count > 0) {
      IBID_CHECK(plan_.range_offset + plan_.range_bytes <= payload.size()) << payload.size();
      payload = payload.subspan(plan_.range_offset, plan_.range_bytes);
      header.first_layer = plan_.first_layer;
      header.layer_count = plan_.layer_count;
      header.range_checksum = Checksum(payload);
    }
    return EncodeFrame(
        header, payload,
        std::shared_ptr<const SentBlock>(new SentBlock{Hold(state_->holds), std::move(block)}));
  }

  void Fail(absl::Status status) {
    MutexLock lock(mutex_);
    failure_ = std::move(status);
  }

  void End(const absl::Status& status) {
    Window leftover;
    {
      MutexLock lock(mutex_);
      leftover.swap(window_);
    }
    const grpc::Status final_status = ToGrpcStatus(status, state_->incarnation);
    final_code_ = final_status.error_code();
    Finish(final_status);
  }

  ServiceState* const state_;
  const Hold hold_;
  RpcRecord record_;
  FetchPlan plan_;             // does not change after Start
  grpc::ByteBuffer outgoing_;  // belongs to gRPC while is_writing_
  grpc::StatusCode final_code_ = grpc::StatusCode::OK;
  std::shared_ptr<FetchStream> self_;  // while gRPC knows this reactor

  Mutex mutex_;
  Window window_ IBID_GUARDED_BY(mutex_);
  size_t next_acquire_ IBID_GUARDED_BY(mutex_) = 0;
  size_t next_write_ IBID_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ IBID_GUARDED_BY(mutex_);
  bool is_writing_ IBID_GUARDED_BY(mutex_) = false;
  bool is_cancelled_ IBID_GUARDED_BY(mutex_) = false;
  bool is_finished_ IBID_GUARDED_BY(mutex_) = false;
  bool is_advancing_ IBID_GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartFetchStream(ServiceState* state,
                                                             const grpc::ByteBuffer* request) {
  const auto stream = std::make_shared<FetchStream>(state);
  stream->Start(*request);
  return stream.get();
}

}  // namespace ibid
