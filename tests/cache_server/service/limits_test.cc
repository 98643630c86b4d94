// Limits of calls that wait for their turn: who comes beyond them is refused by name or waits at
// the client, and those that were taken are answered.
#include <deque>
#include <functional>

#include "core/limit.h"
#include "core/mutex.h"
#include "tests/cache_server/service/service_over_store.h"
#include "transport/call_deadline.h"
#include "transport/limits.h"
#include "transport/status_conversion.h"

namespace ibid {
namespace {

// Calls of one method, under way at the same time. Ends them when it goes.
template <typename Request, typename Response>
class Calls {
 public:
  using Start = std::function<void(grpc::ClientContext*, const Request*, Response*,
                                   std::function<void(grpc::Status)>)>;
  Calls(Request request, Start start) : request_(std::move(request)), start_(std::move(start)) {}
  ~Calls() {
    for (Call& call : calls_) call.context.TryCancel();
    EXPECT_TRUE(Eventually([this] { return done_count() == calls_.size(); }));
  }

  void Add(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      Call& call = calls_.emplace_back();
      SetTimeout(kPatience, &call.context);
      start_(&call.context, &request_, &call.response, [this](const grpc::Status& status) {
        MutexLock lock(mutex_);
        (status.ok() ? ok_count_ : refusals_count_)++;
        if (!status.ok()) refusal_ = FromGrpcStatus(status);
      });
    }
  }
  size_t ok_count() const {
    MutexLock lock(mutex_);
    return ok_count_;
  }
  size_t refusals_count() const {
    MutexLock lock(mutex_);
    return refusals_count_;
  }
  size_t done_count() const { return ok_count() + refusals_count(); }
  absl::Status refusal() const {  // the last one
    MutexLock lock(mutex_);
    return refusal_;
  }

 private:
  struct Call {
    grpc::ClientContext context;
    Response response;
  };
  const Request request_;
  const Start start_;
  std::deque<Call> calls_;
  mutable Mutex mutex_;
  size_t ok_count_ IBID_GUARDED_BY(mutex_) = 0;
  size_t refusals_count_ IBID_GUARDED_BY(mutex_) = 0;
  absl::Status refusal_ IBID_GUARDED_BY(mutex_);
};

// Who passes waits until it opens.
class Door {
 public:
  void Pass() {
    MutexLock lock(mutex_);
    ++count_;
    while (!is_open_) opened_.Wait(mutex_);
  }
  void Open() {
    MutexLock lock(mutex_);
    is_open_ = true;
    opened_.NotifyAll();
  }
  size_t count() const {  // who came so far
    MutexLock lock(mutex_);
    return count_;
  }

 private:
  mutable Mutex mutex_;
  CondVar opened_;
  size_t count_ IBID_GUARDED_BY(mutex_) = 0;
  bool is_open_ IBID_GUARDED_BY(mutex_) = false;
};

class LimitsTest : public ServiceOverStore {
 protected:
  void TearDown() override {
    door_.Open();
    ServiceOverStore::TearDown();
  }

  // One call is being answered, as many as the limit says wait, and three more are refused.
  template <typename SomeCalls>
  void ExpectThreeRefusedBeyond(SomeCalls& calls, const Limit& limit) {
    calls.Add(1);
    ASSERT_TRUE(Eventually([&] { return door_.count() == 1; }));
    calls.Add(limit.value + 3);
    EXPECT_TRUE(Eventually([&] { return calls.refusals_count() == 3; }));
    EXPECT_EQ(LimitOf(calls.refusal()), limit) << calls.refusal();
    EXPECT_EQ(calls.ok_count(), 0u);
    door_.Open();
    EXPECT_TRUE(Eventually([&] { return calls.ok_count() == limit.value + 1; }));
    EXPECT_EQ(calls.refusals_count(), 3u);
    calls.Add(1);
    EXPECT_TRUE(Eventually([&] { return calls.ok_count() == limit.value + 2; }))
        << "there is room again";
  }

  Door door_;
};

TEST_F(LimitsTest, MoreDrainsAndFlushesThanMayWaitAreRefused) {
  admin_options_.drain = [this](absl::Duration, const std::function<bool()>&) {
    door_.Pass();
    return KeepResult{};
  };
  OpenAll(HostOnly(8, 8));
  Calls<v1::DrainRequest, v1::DrainResponse> drains(
      {}, [this](auto... call) { admin_stub_->async()->Drain(call...); });
  ExpectThreeRefusedBeyond(drains, {"kFlushesQueuedMax", 4});
}

TEST_F(LimitsTest, MoreWordsAboutPinsAndQuotasThanMayWaitAreRefused) {
  admin_options_.reload_quotas = [this] {
    door_.Pass();
    return absl::OkStatus();
  };
  OpenAll(HostOnly(8, 8));
  Calls<v1::ReloadQuotasRequest, v1::ReloadQuotasResponse> reloads(
      {}, [this](auto... call) { admin_stub_->async()->ReloadQuotas(call...); });
  ExpectThreeRefusedBeyond(reloads, {"kPinCallsQueuedMax", 16});
}

// A drop waits a moment for the disk; others wait for their turn.
TEST_F(LimitsTest, MoreDropsThanMayWaitAreRefused) {
  constexpr size_t kQueuedMax = 64;
  OpenAll(WithDisk(8, 64, 8));
  faults_->writes_stall = true;
  const auto chain = ChainOf(ns_, 1, 1);
  PublishChain(chain);
  ASSERT_TRUE(Eventually([this] { return faults_->writes_count > 0; }));
  v1::DropRequest request;
  request.set_namespace_id(DigestString(ns_.digest));
  request.set_keys(EncodeKeys(KeysOf(chain)));
  Calls<v1::DropRequest, v1::DropResponse> drops(
      request, [this](auto... call) { stub_->async()->Drop(call...); });
  drops.Add(1);
  ASSERT_TRUE(Eventually([&] { return Matched(chain) == 0; }));
  // The first may be over before all have come: then some more are taken.
  const size_t count = kQueuedMax + 16;
  drops.Add(count);
  EXPECT_TRUE(Eventually([&] { return drops.refusals_count() > 0; }));
  EXPECT_EQ(LimitOf(drops.refusal()), (Limit{"kDropsQueuedMax", kQueuedMax})) << drops.refusal();
  faults_->writes_stall = false;
  EXPECT_TRUE(Eventually([&] { return drops.done_count() == count + 1; }));
  EXPECT_GE(drops.ok_count(), kQueuedMax + 1);
  ASSERT_TRUE(Flush());
  EXPECT_EQ(Disk().used_bytes, 0u);
}

TEST_F(LimitsTest, AMatchWaitsNoLongerThanTheLimitWhateverItAsksFor) {
  service_options_.wait_pending_max = absl::Milliseconds(100);
  OpenAll(HostOnly(8, 8));
  const auto keys = KeysOf(ChainOf(ns_, 1, 1));
  ASSERT_EQ(store_->Offer(session_, ns_, keys)->front(), OfferState::kWanted);
  grpc::ClientContext context;
  SetTimeout(kPatience, &context);
  v1::MatchRequest request;
  request.set_namespace_id(DigestString(ns_.digest));
  request.set_keys(EncodeKeys(keys));
  request.set_wait_pending_ms(absl::ToInt64Milliseconds(absl::Hours(1)));
  v1::MatchResponse response;
  const grpc::Status status = stub_->Match(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.matched_count(), 0u);
  EXPECT_EQ(response.pending_count(), 1u) << "nobody has sent it";
}

TEST_F(LimitsTest, CallsBeyondTheStreamsOfAConnectionWaitAtTheClient) {
  constexpr size_t kBeyond = 8;
  OpenAll(HostOnly(8, 8));
  const auto get_stats = [](v1::CacheService::Stub& stub, absl::Duration timeout) {
    grpc::ClientContext context;
    SetTimeout(timeout, &context);
    v1::GetStatsResponse response;
    return stub.GetStats(&context, {}, &response).error_code();
  };
  ASSERT_EQ(get_stats(*stub_, kPatience), grpc::StatusCode::OK);  // the connection stands

  const auto chain = ChainOf(ns_, 1, 1);
  const auto keys = KeysOf(chain);
  ASSERT_EQ(store_->Offer(session_, ns_, keys)->front(), OfferState::kWanted);
  v1::MatchRequest request;
  request.set_namespace_id(DigestString(ns_.digest));
  request.set_keys(EncodeKeys(keys));
  request.set_wait_pending_ms(absl::ToInt64Milliseconds(kPatience));
  Calls<v1::MatchRequest, v1::MatchResponse> matches(
      request, [this](auto... call) { stub_->async()->Match(call...); });
  matches.Add(kConnectionStreamsMax + kBeyond);
  EXPECT_TRUE(
      Eventually([this] { return store_->stats().waiting_matches == kConnectionStreamsMax; }));
  EXPECT_EQ(get_stats(*stub_, absl::Milliseconds(200)), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(store_->stats().waiting_matches, size_t{kConnectionStreamsMax});
  const auto other = v1::CacheService::NewStub(*MakeChannel(address(), {}));
  EXPECT_EQ(get_stats(*other, kPatience), grpc::StatusCode::OK) << "another connection";

  ASSERT_TRUE(PublishOne(chain[0]).ok());
  EXPECT_TRUE(Eventually([&] { return matches.ok_count() == kConnectionStreamsMax + kBeyond; }));
  EXPECT_EQ(get_stats(*stub_, kPatience), grpc::StatusCode::OK);
}

}  // namespace
}  // namespace ibid
