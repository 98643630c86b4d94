// Calls that end while the disk is still at work for them: reads that a fetch asked for, and writes
// that a durable publish waits for. What they hold goes with them, and nothing is left behind.
#include <thread>

#include "tests/cache_server/service/service_over_store.h"
#include "transport/call_deadline.h"
#include "transport/limits.h"

namespace ibid {
namespace {

class SlowDiskTest : public ServiceOverStore {
 protected:
  void SetUp() override {
    BlockStoreOptions options = WithDisk(/*host_pages=*/8, /*disk_pages=*/64, /*extent_pages=*/8);
    options.eviction_policy = "lru";
    OpenAll(options);
  }

  // The chain is on disk and nowhere else, and the host tier has room.
  void PutOnDiskOnly(const std::vector<ChainLink>& chain) {
    PublishChain(chain);
    ASSERT_TRUE(Flush());
    const auto others = ChainOf(ns_, 999, 8);
    PublishChain(others);
    ASSERT_TRUE(Flush());
    ASSERT_EQ(store_->Match({}, ns_, KeysOf(chain), {})->disk_blocks, chain.size());
    ASSERT_EQ(store_->Drop(ns_, KeysOf(others)), others.size());
    ASSERT_TRUE(Flush());
  }

  uint64_t PinnedBytes() { return store_->stats().pinned_bytes; }

  // A fetch of three blocks of which the first two are being read, and the third waits for them.
  struct StalledFetch {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::FetchResponse>> reader;
  };
  std::unique_ptr<StalledFetch> StartStalledFetch(absl::Duration timeout) {
    const auto cold = ChainOf(ns_, 1, 2), warm = ChainOf(ns_, 2, 1);
    PutOnDiskOnly(cold);
    PublishChain(warm);
    EXPECT_TRUE(Flush());
    faults_->reads_stall = true;
    faults_->reads_count = 0;
    auto fetch = std::make_unique<StalledFetch>();
    SetTimeout(timeout, &fetch->context);
    const std::vector<BlockKey> keys = {cold[0].key, cold[1].key, warm[0].key};
    v1::FetchRequest request;
    request.set_namespace_id(DigestString(ns_.digest));
    request.set_keys(EncodeKeys(keys));
    fetch->reader = stub_->Fetch(&fetch->context, request);
    EXPECT_TRUE(Eventually(
        [&] { return faults_->reads_count == 2 && PinnedBytes() == layout_.PayloadBytes(); }));
    return fetch;
  }

  // The fetch has ended, and both of its reads stand still.
  void ExpectNothingIsKept() {
    EXPECT_TRUE(Eventually([&] { return PinnedBytes() == 0; }))
        << "what was there and will not be sent is let go of";
    EXPECT_TRUE(Eventually([&] { return CallsInProgress("Fetch") == 0; }));
    EXPECT_EQ(Disk().hits, 0u) << "both reads are still under way";
    faults_->stalled_reads_to_pass = 1;
    EXPECT_TRUE(Eventually([&] { return Disk().hits == 1; }));
    EXPECT_TRUE(Eventually([&] { return PinnedBytes() == 0; }))
        << "a block that comes now goes at once, though the other read is still under way";
    EXPECT_FALSE(service_->WaitForNoHolds(absl::ZeroDuration()))
        << "who is called when a read ends must be there";
    faults_->reads_stall = false;
    EXPECT_TRUE(Eventually([&] { return Disk().hits == 2 && PinnedBytes() == 0; }));
    EXPECT_TRUE(service_->WaitForNoHolds(kPatience));
    // The blocks are there for others.
    for (const ChainLink& link : ChainOf(ns_, 1, 2)) {
      const auto ref = AcquireOne(link.key);
      ASSERT_TRUE(ref.ok()) << ref.status();
      EXPECT_TRUE(HasRightBytes(*ref, link.key));
    }
  }

  // Blocks that a publisher waits for to be on disk, where nothing is written now.
  struct StalledPublish {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::PublishRequest, v1::PublishResponse>> stream;
  };
  std::unique_ptr<StalledPublish> StartStalledPublish(const std::vector<ChainLink>& chain) {
    faults_->writes_stall = true;
    auto publish = std::make_unique<StalledPublish>();
    SetTimeout(kPatience, &publish->context);
    publish->stream = stub_->Publish(&publish->context);
    for (const ChainLink& link : chain) {
      EXPECT_TRUE(publish->stream->Write(PublishOf(link, /*is_durable=*/true)));
    }
    EXPECT_TRUE(
        Eventually([&] { return faults_->writes_count > 0 && Host().blocks == chain.size(); }));
    return publish;
  }

  // Nobody waits for the blocks any more, and the disk writes again.
  void ExpectAllIsStored(const std::vector<ChainLink>& chain) {
    ASSERT_TRUE(Flush());
    EXPECT_EQ(Disk().blocks, chain.size());
    EXPECT_EQ(store_->stats().reservations, 0u);
    EXPECT_EQ(PinnedBytes(), 0u);
    for (const ChainLink& link : chain) {
      const auto ref = AcquireOne(link.key);
      ASSERT_TRUE(ref.ok()) << ref.status();
      EXPECT_TRUE(HasRightBytes(*ref, link.key));
    }
  }
  void ExpectNothingHoldsThem(const std::vector<ChainLink>& chain) {
    EXPECT_EQ(store_->Drop(ns_, KeysOf(chain)), chain.size());
    ASSERT_TRUE(Flush());
    EXPECT_EQ(Host().used_bytes, 0u);
    EXPECT_EQ(Disk().used_bytes, 0u);
  }
};

TEST_F(SlowDiskTest, AFetchThatIsCancelledKeepsNothingWhileItsReadsAreUnderWay) {
  const auto fetch = StartStalledFetch(kPatience);
  fetch->context.TryCancel();
  EXPECT_EQ(fetch->reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  ExpectNothingIsKept();
}

TEST_F(SlowDiskTest, AFetchWhoseTimeIsOverKeepsNothingWhileItsReadsAreUnderWay) {
  const auto fetch = StartStalledFetch(absl::Seconds(1));
  EXPECT_EQ(fetch->reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  ExpectNothingIsKept();
}

TEST_F(SlowDiskTest, AServerThatStopsEndsAFetchWhoseReadsAreUnderWay) {
  const auto fetch = StartStalledFetch(kPatience);
  server_->Shutdown(absl::ZeroDuration());
  EXPECT_FALSE(fetch->reader->Finish().ok());
  ExpectNothingIsKept();
}

TEST_F(SlowDiskTest, ADurablePublishWhosePublisherIsGoneIsStoredAllTheSame) {
  const auto chain = ChainOf(ns_, 1, 3);
  const auto publish = StartStalledPublish(chain);
  publish->context.TryCancel();
  EXPECT_EQ(publish->stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return CallsInProgress("Publish") == 0; }))
      << "it does not wait for the disk";
  EXPECT_EQ(store_->stats().reservations, 0u);
  EXPECT_EQ(Matched(chain), chain.size()) << "committed, whoever hears of it";
  EXPECT_EQ(Disk().blocks, 0u);
  faults_->writes_stall = false;
  ExpectAllIsStored(chain);
  ExpectNothingHoldsThem(chain);
}

TEST_F(SlowDiskTest, ADurablePublishWhoseSessionHasEndedIsStoredAndAnswered) {
  const auto chain = ChainOf(ns_, 1, 3);
  const auto publish = StartStalledPublish(chain);
  store_->EndSession(session_);
  EXPECT_EQ(Matched(chain), chain.size());
  faults_->writes_stall = false;
  v1::PublishResponse response;
  for (size_t answered = 0; answered < chain.size();) {
    ASSERT_TRUE(publish->stream->Read(&response));
    for (const v1::PublishResult& result : response.results()) {
      EXPECT_EQ(result.outcome(), v1::BLOCK_OUTCOME_OK) << result.DebugString();
      ++answered;
    }
  }
  ExpectAllIsStored(chain);
  // What the session sends later is nobody's.
  EXPECT_TRUE(publish->stream->Write(PublishOf(ChainOf(ns_, 2, 1)[0], /*is_durable=*/true)));
  EXPECT_FALSE(publish->stream->Read(&response));
  EXPECT_EQ(publish->stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  ExpectNothingHoldsThem(chain);
}

// What the store has committed is answered, though the frames that come with it are void.
TEST_F(SlowDiskTest, ASessionThatEndsInTheMiddleOfAPublishEndsItAfterItsAnswers) {
  const auto chain = ChainOf(ns_, 1, 3);
  const auto publish = StartStalledPublish(chain);
  store_->EndSession(session_);
  v1::PublishRequest request = PublishOf(ChainOf(ns_, 2, 1)[0], /*is_durable=*/true);
  for (const ChainLink& link : ChainOf(ns_, 3, 5)) {
    *request.add_frames() = PublishOf(link, /*is_durable=*/true).frames(0);
  }
  EXPECT_TRUE(publish->stream->Write(request));
  faults_->writes_stall = false;
  v1::PublishResponse response;
  int results_count = 0;
  while (publish->stream->Read(&response)) results_count += response.results_size();
  EXPECT_EQ(results_count, 3);
  EXPECT_EQ(publish->stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  ExpectAllIsStored(chain);
  ExpectNothingHoldsThem(chain);
}

class SlowWideDiskTest : public ServiceOverStore {
 protected:
  void SetUp() override { OpenAll(WithDisk(/*host_pages=*/640, /*disk_pages=*/1'024, 64)); }
};

// A publisher that sends more than is answered is not read on, and loses nothing by it.
TEST_F(SlowWideDiskTest, AServerStopsReadingWhatItCannotAnswer) {
  constexpr size_t kMessages = 8, kTakenMax = kPublishFramesUnanswered + kFramesPerMessageMax;
  static_assert(kMessages * kFramesPerMessageMax > kTakenMax);
  faults_->writes_stall = true;
  grpc::ClientContext context;
  SetTimeout(kPatience, &context);
  const auto stream = stub_->Publish(&context);
  const auto chain = ChainOf(ns_, 1, kMessages * kFramesPerMessageMax);
  std::thread writer([&] {
    for (size_t begin = 0; begin < chain.size(); begin += kFramesPerMessageMax) {
      v1::PublishRequest request = PublishOf(chain[begin], /*is_durable=*/true);
      for (size_t i = 1; i < kFramesPerMessageMax; ++i) {
        *request.add_frames() = PublishOf(chain[begin + i], true).frames(0);
      }
      EXPECT_TRUE(stream->Write(request));
    }
    EXPECT_TRUE(stream->WritesDone());
  });
  EXPECT_TRUE(Eventually([&] { return Host().blocks >= kPublishFramesUnanswered; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(Host().blocks, kTakenMax);
  faults_->writes_stall = false;
  size_t results_count = 0;
  v1::PublishResponse response;
  while (stream->Read(&response)) {
    for (const v1::PublishResult& result : response.results()) {
      EXPECT_EQ(result.outcome(), v1::BLOCK_OUTCOME_OK) << result.DebugString();
      ++results_count;
    }
  }
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(results_count, chain.size());
  EXPECT_EQ(Disk().blocks, chain.size());
}

TEST_F(SlowDiskTest, AServerStopsWhileADurablePublishWaitsForTheDisk) {
  const auto chain = ChainOf(ns_, 1, 3);
  const auto publish = StartStalledPublish(chain);
  server_->Shutdown(absl::ZeroDuration());  // returns, though the disk stands still
  EXPECT_FALSE(publish->stream->Finish().ok());
  EXPECT_FALSE(service_->WaitForNoHolds(absl::ZeroDuration()))
      << "who is called when the disk answers must be there";
  faults_->writes_stall = false;
  StopServices();
  Reopen();
  ExpectAllIsStored(chain);
}

}  // namespace
}  // namespace ibid
