// Invariants, under mutex_:
// - next_write_ <= next_acquire_ <= next_write_ + kFetchBlocksAhead
// - The result of block i, once there and until it is written, stands in
//   window_[i % kFetchBlocksAhead].
#include "cache_server/fetch_stream.h"

#include <grpcpp/alarm.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache_server/stream_call.h"
#include "core/check.h"
#include "ibid/v1/cache.pb.h"
#include "transport/block_frame.h"
#include "transport/key_bytes.h"
#include "transport/limits.h"
#include "transport/message_bytes.h"

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

class FetchStream final : public StreamCall<FetchReactor> {
 public:
  FetchStream(ServiceState* state, grpc::CallbackServerContext* context)
      : StreamCall(state, RpcMethod::kFetch), context_(context) {}

  void Start(const grpc::ByteBuffer& request) {
    Begin();
    record_.OnReceived(request.Length());
    const absl::Status status = Open(request);
    if (status.ok()) LookAfterStalled(/*written_before=*/0);
    status.ok() ? Advance() : End(status);
  }

 private:
  using Result = std::optional<absl::StatusOr<BlockRef>>;
  using Window = std::array<Result, kFetchBlocksAhead>;
  enum class Action { kNothing, kAcquire, kWrite };
  struct Choice {
    Action action = Action::kNothing;
    size_t index = 0;
    Result result;  // kWrite
  };

  absl::Status Open(const grpc::ByteBuffer& request) {
    IBID_ASSIGN_OR_RETURN(const v1::FetchRequest message, ParseMessage<v1::FetchRequest>(request));
    IBID_ASSIGN_OR_RETURN(plan_, MakePlan(*state_, message));
    return absl::OkStatus();
  }

  bool Step() override {
    Choice choice = Choose();
    switch (choice.action) {
      case Action::kNothing:
        break;
      case Action::kAcquire:
        state_->store->Acquire(
            plan_.ns, plan_.keys[choice.index],
            [this, self = shared_from_this(), index = choice.index](
                absl::StatusOr<BlockRef> result) { OnAcquired(index, std::move(result)); },
            /*is_use=*/!plan_.is_leased);
        break;
      case Action::kWrite:
        WriteBlock(choice.index, *std::move(choice.result));
        break;
    }
    return choice.action != Action::kNothing;
  }

  Choice Choose() {
    MutexLock lock(mutex_);
    if (is_ending_) return {};
    if (next_write_ == plan_.keys.size()) {
      EndLocked(absl::OkStatus());  // once the last write is over
      return {};
    }
    Result& front = window_[next_write_ % kFetchBlocksAhead];
    if (!is_writing_ && front.has_value()) {
      Choice choice{Action::kWrite, next_write_++, std::move(front)};
      front.reset();
      return choice;
    }
    if (next_acquire_ < plan_.keys.size() && next_acquire_ < next_write_ + kFetchBlocksAhead) {
      return {Action::kAcquire, next_acquire_++};
    }
    return {};
  }

  void OnAcquired(size_t index, absl::StatusOr<BlockRef> result) {
    {
      MutexLock lock(mutex_);
      if (is_window_closed_) return;  // and `result` gives its pin back
      window_[index % kFetchBlocksAhead].emplace(std::move(result));
    }
    Advance();
  }

  // Sends the frame of one block, or gives the stream up.
  void WriteBlock(size_t index, absl::StatusOr<BlockRef> result) {
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
      EndLocked(result.status());
      return;
    }
    Write(&outgoing_, outgoing_.Length());
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

  void OnWritten() override {
    outgoing_.Clear();
    ++written_count_;
  }

  // Ends the call when it has written nothing since the last look although a block was waiting.
  void LookAfterStalled(uint64_t written_before) {
    MutexLock lock(mutex_);
    if (is_gone_) return;
    const auto next = absl::ToChronoTime(absl::Now() + state_->stalled_max);
    alarm_ = std::make_unique<grpc::Alarm>();  // the last one may be what calls
    alarm_->Set(next, [this, self = shared_from_this(), written_before](bool) {
      const uint64_t written = written_count_;
      bool is_stalled = false;
      {
        MutexLock inner(mutex_);
        if (is_gone_) return;
        is_stalled = is_writing_ && written == written_before;
        if (is_stalled) context_->TryCancel();
      }
      if (!is_stalled) LookAfterStalled(written);
    });
  }

  // The pins of what will not be sent go without a lock.
  void OnFinishing() override {
    Window leftover;
    MutexLock lock(mutex_);
    is_window_closed_ = true;
    leftover.swap(window_);
  }

  // The alarm holds this object; so it goes, and what it calls then finds that all is over.
  void OnGone() override {
    std::unique_ptr<grpc::Alarm> alarm;
    MutexLock lock(mutex_);
    is_gone_ = true;
    alarm.swap(alarm_);
  }

  grpc::CallbackServerContext* const context_;  // valid until OnGone
  std::unique_ptr<grpc::Alarm> alarm_ IBID_GUARDED_BY(mutex_);
  std::atomic<uint64_t> written_count_{0};
  FetchPlan plan_;             // does not change after Start
  grpc::ByteBuffer outgoing_;  // belongs to gRPC while is_writing_

  Window window_ IBID_GUARDED_BY(mutex_);
  size_t next_acquire_ IBID_GUARDED_BY(mutex_) = 0;
  size_t next_write_ IBID_GUARDED_BY(mutex_) = 0;
  bool is_window_closed_ IBID_GUARDED_BY(mutex_) = false;
  bool is_gone_ IBID_GUARDED_BY(mutex_) = false;
};

}  // namespace

FetchReactor* StartFetchStream(ServiceState* state, grpc::CallbackServerContext* context,
                               const grpc::ByteBuffer* request) {
  const auto stream = std::make_shared<FetchStream>(state, context);
  stream->Start(*request);
  return stream.get();
}

}  // namespace ibid
