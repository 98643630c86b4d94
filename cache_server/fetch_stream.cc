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
#include "cache_server/host_arena.h"
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
  bool takes_shared = false;  // blocks in the arena go as places
};

absl::StatusOr<FetchPlan> MakePlan(const ServiceState& state, const v1::FetchRequest& request) {
  FetchPlan plan;
  // Nothing is read for a lease that does not hold any more.
  if (request.lease_id() != 0) {
    IBID_RETURN_IF_ERROR(
        state.store->CheckLease(SessionId{request.session_id()}, LeaseId{request.lease_id()}));
    plan.is_leased = true;
    // The lease keeps the slot after the pin of this call is gone.
    plan.takes_shared = request.takes_shared() && state.shm != nullptr;
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
    std::vector<absl::StatusOr<BlockRef>> results;  // kWrite: of the blocks from `index` on
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
        WriteBlocks(choice.index, std::move(choice.results));
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
    if (!is_writing_ && window_[next_write_ % kFetchBlocksAhead].has_value()) return TakeResults();
    if (next_acquire_ < plan_.keys.size() && next_acquire_ < next_write_ + kFetchBlocksAhead) {
      return {Action::kAcquire, next_acquire_++};
    }
    return {};
  }

  // The next results that are there, as many as go into one message.
  Choice TakeResults() IBID_REQUIRES(mutex_) {
    Choice choice{Action::kWrite, next_write_, {}};
    size_t bytes = 0;
    while (next_write_ < next_acquire_ && choice.results.size() < kFramesPerMessageMax) {
      Result& front = window_[next_write_ % kFetchBlocksAhead];
      if (!front.has_value()) break;
      if (front->ok()) bytes += BytesInMessage((*front)->payload());
      if (!choice.results.empty() && bytes > kFetchMessageBytes) break;
      choice.results.push_back(*std::move(front));
      front.reset();
      ++next_write_;
    }
    return choice;
  }

  bool IsShared(ByteView payload) const {
    return plan_.takes_shared && state_->store->arena().Contains(payload);
  }
  size_t BytesInMessage(ByteView payload) const {
    if (IsShared(payload)) return 0;
    return plan_.layer_count > 0 ? plan_.range_bytes : payload.size();
  }

  void OnAcquired(size_t index, absl::StatusOr<BlockRef> result) {
    {
      MutexLock lock(mutex_);
      if (is_window_closed_) return;  // and `result` gives its pin back
      window_[index % kFetchBlocksAhead].emplace(std::move(result));
    }
    Advance();
  }

  // Sends the frames of blocks, up to one that gives the stream up.
  void WriteBlocks(size_t index, std::vector<absl::StatusOr<BlockRef>> results) {
    std::vector<OutgoingFrame> frames;
    for (absl::StatusOr<BlockRef>& result : results) {
      OutgoingFrame& frame = frames.emplace_back();
      frame.header.index = static_cast<uint32_t>(index);
      frame.header.key = plan_.keys[index++];
      frame.header.incarnation = state_->incarnation;
      if (result.ok()) {
        FillFrame(*std::move(result), &frame);
      } else if (absl::IsNotFound(result.status()) || absl::IsUnavailable(result.status())) {
        frame.header.outcome = BlockOutcome::kMiss;
      } else if (absl::IsDataLoss(result.status())) {
        frame.header.outcome = BlockOutcome::kCorrupt;
      } else {
        frames.pop_back();
        MutexLock lock(mutex_);
        EndLocked(result.status());
        break;
      }
    }
    if (frames.empty()) return;
    outgoing_ = EncodeFetch(frames);
    Write(&outgoing_, outgoing_.Length());
  }

  void FillFrame(BlockRef block, OutgoingFrame* frame) {
    FrameHeader& header = frame->header;
    header.outcome = BlockOutcome::kOk;
    header.token_count = block.token_count();
    header.checksum = block.checksum();
    header.tier = std::string(block.tier());
    ByteView payload = block.payload();
    const bool is_shared = IsShared(payload);
    if (plan_.layer_count > 0) {
      IBID_CHECK(plan_.range_offset + plan_.range_bytes <= payload.size()) << payload.size();
      payload = payload.subspan(plan_.range_offset, plan_.range_bytes);
      header.first_layer = plan_.first_layer;
      header.layer_count = plan_.layer_count;
      header.range_checksum = Checksum(payload);
    }
    if (is_shared) {
      const HostArena& arena = state_->store->arena();
      header.shared_bytes = static_cast<uint32_t>(payload.size());
      header.shared_offset = arena.OffsetOf(payload);
      header.shared_generation = arena.GenerationAt(header.shared_offset);
      return;
    }
    frame->payload = payload;
    frame->owner =
        std::shared_ptr<const SentBlock>(new SentBlock{Hold(state_->holds), std::move(block)});
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
