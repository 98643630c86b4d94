// The wire itself: what a client sees that has nothing but the generated classes.
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>

#include <map>
#include <set>

#include "core/limit.h"
#include "ibid/v1/error.pb.h"
#include "tests/cache_server/service/server_fixture.h"
#include "transport/call_deadline.h"
#include "transport/limits.h"
#include "transport/status_conversion.h"

namespace ibid {
namespace {

using ::testing::HasSubstr;

// The frames of a fetch, one by one, however many share a message.
class FrameStream {
 public:
  explicit FrameStream(std::unique_ptr<grpc::ClientReader<v1::FetchResponse>> reader)
      : reader_(std::move(reader)) {}

  bool Read(v1::BlockFrame* frame) {
    while (next_ == message_.frames_size()) {
      next_ = 0;
      if (!reader_->Read(&message_)) {
        message_.Clear();
        return false;
      }
    }
    *frame = message_.frames(next_++);
    return true;
  }
  grpc::Status Finish() { return reader_->Finish(); }

 private:
  std::unique_ptr<grpc::ClientReader<v1::FetchResponse>> reader_;
  v1::FetchResponse message_;
  int next_ = 0;
};

std::unique_ptr<FrameStream> FramesOf(
    std::unique_ptr<grpc::ClientReader<v1::FetchResponse>> reader) {
  return std::make_unique<FrameStream>(std::move(reader));
}

class WireTest : public ServerFixture {
 protected:
  void SetUp() override {
    StartServer();
    client = Connect(spec);
    stub = PlainStub();
  }

  void Restart(absl::Duration session_ttl) {
    client.reset();
    server.reset();
    ServerOptions options = SmallServer();
    options.session_ttl = session_ttl;
    StartServer(options);
    client = Connect(spec);
    stub = PlainStub();
  }

  v1::BlockFrame PublishFrame(size_t i) const {
    v1::BlockFrame frame;
    frame.set_index(static_cast<uint32_t>(i));
    frame.set_key(DigestString(blocks.links[i].key.digest));
    frame.set_parent(DigestString(blocks.links[i].parent.digest));
    frame.set_token_count(blocks.links[i].token_count);
    frame.set_position(blocks.links[i].position);
    frame.set_checksum(Checksum(blocks.payloads[i]));
    frame.set_payload(blocks.payloads[i].data(), blocks.payloads[i].size());
    return frame;
  }

  // The blocks from `begin` to before `end`.
  v1::PublishRequest RequestOf(size_t begin, size_t end) const {
    v1::PublishRequest request;
    request.set_session_id(client->session_id());
    request.set_namespace_id(DigestString(blocks.ns.digest));
    for (size_t i = begin; i < end; ++i) *request.add_frames() = PublishFrame(i);
    return request;
  }

  v1::FetchRequest RequestForAll() const {
    v1::FetchRequest request;
    request.set_namespace_id(DigestString(blocks.ns.digest));
    request.set_keys(EncodeKeys(blocks.keys()));
    return request;
  }

  bool AllIsFree() {
    return client->Stats().pinned_bytes == 0 && client->Stats().reservations == 0;
  }

  const NamespaceSpec spec = SpecOf(SmallLayout());
  const SampleBlocks blocks = MakeBlocks(spec, 40);
  std::unique_ptr<TestClient> client;
  std::unique_ptr<v1::CacheService::Stub> stub;
};

TEST_F(WireTest, AGeneratedClientPublishesAndFetches) {
  grpc::ClientContext publish_context;
  SetTimeout(kPatience, &publish_context);
  const auto publish = stub->Publish(&publish_context);
  // Messages of 0, 1, 2, ... blocks; only the first says whose they are.
  size_t sent_count = 0;
  for (size_t count = 0; sent_count < blocks.links.size(); ++count) {
    const size_t end = std::min(sent_count + count, blocks.links.size());
    v1::PublishRequest request = RequestOf(sent_count, end);
    if (count > 0) request.clear_session_id();
    if (count > 0) request.clear_namespace_id();
    ASSERT_TRUE(publish->Write(request));
    sent_count = end;
  }
  publish->WritesDone();
  v1::PublishResponse response;
  std::set<uint32_t> stored;
  while (publish->Read(&response)) {
    EXPECT_EQ(response.incarnation(), client->session->incarnation());
    EXPECT_GT(response.results_size(), 0);
    for (const v1::PublishResult& result : response.results()) {
      EXPECT_EQ(result.outcome(), v1::BLOCK_OUTCOME_OK) << result.DebugString();
      stored.insert(result.index());
    }
  }
  EXPECT_TRUE(publish->Finish().ok());
  EXPECT_EQ(stored.size(), blocks.links.size());

  grpc::ClientContext fetch_context;
  SetTimeout(kPatience, &fetch_context);
  const auto fetch = FramesOf(stub->Fetch(&fetch_context, RequestForAll()));
  v1::BlockFrame frame;
  uint32_t next = 0;
  while (fetch->Read(&frame)) {
    EXPECT_EQ(frame.index(), next);
    EXPECT_EQ(frame.key(), DigestString(blocks.links[next].key.digest));
    EXPECT_EQ(frame.outcome(), v1::BLOCK_OUTCOME_OK);
    EXPECT_EQ(frame.tier(), "host");
    EXPECT_EQ(frame.token_count(), 16u);
    EXPECT_EQ(frame.incarnation(), client->session->incarnation());
    EXPECT_EQ(frame.payload(),
              std::string(reinterpret_cast<const char*>(blocks.payloads[next].data()),
                          blocks.payloads[next].size()));
    EXPECT_EQ(frame.checksum(), Checksum(blocks.payloads[next]));
    ++next;
  }
  EXPECT_TRUE(fetch->Finish().ok());
  EXPECT_EQ(next, blocks.links.size());
}

// 28: what a fetch pinned is free again when its client loses interest in the middle.
TEST_F(WireTest, ACancelledFetchLeavesNoPins) {
  client->Publish(blocks);
  for (int round = 0; round < 10; ++round) {
    grpc::ClientContext context;
    const auto fetch = FramesOf(stub->Fetch(&context, RequestForAll()));
    v1::BlockFrame frame;
    for (int i = 0; i < round; ++i) EXPECT_TRUE(fetch->Read(&frame));
    context.TryCancel();
    fetch->Finish();
  }
  EXPECT_TRUE(Eventually([&] { return AllIsFree(); }));
}

// 27: a client that dies between two frames leaves nothing behind, and no key unusable.
TEST_F(WireTest, APublishThatBreaksOffLeavesNoReservation) {
  for (size_t round = 0; round < 5; ++round) {
    grpc::ClientContext context;
    const auto publish = stub->Publish(&context);
    for (size_t i = 0; i <= round; ++i) publish->Write(RequestOf(i, i + 1 + round));
    context.TryCancel();
    publish->Finish();
  }
  EXPECT_TRUE(Eventually([&] { return AllIsFree(); }));
  for (const BlockOutcome outcome : client->Publish(blocks)) {
    EXPECT_TRUE(outcome == BlockOutcome::kOk || outcome == BlockOutcome::kPresent);
  }
}

TEST_F(WireTest, AMalformedFirstFrameEndsTheStreamWithTheReason) {
  grpc::ClientContext context;
  SetTimeout(kPatience, &context);
  const auto publish = stub->Publish(&context);
  v1::PublishRequest request = RequestOf(0, 1);
  request.mutable_frames(0)->set_key("short");
  publish->Write(request);
  v1::PublishResponse response;
  EXPECT_FALSE(publish->Read(&response));
  const grpc::Status status = publish->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("key"));
}

TEST_F(WireTest, ASilentPublisherHoldsNothingAndMayClose) {
  grpc::ClientContext context;
  SetTimeout(kPatience, &context);
  const auto publish = stub->Publish(&context);
  publish->WritesDone();
  v1::PublishResponse response;
  EXPECT_FALSE(publish->Read(&response));
  EXPECT_TRUE(publish->Finish().ok());
}

// What one block of a message is refused for says nothing of the others.
TEST_F(WireTest, EachBlockOfAMessageHasItsOwnResult) {
  grpc::ClientContext context;
  SetTimeout(kPatience, &context);
  const auto publish = stub->Publish(&context);
  v1::PublishRequest request = RequestOf(0, 6);
  request.mutable_frames(1)->set_checksum(7);
  request.mutable_frames(2)->set_payload("short");
  request.mutable_frames(3)->clear_parent();
  request.mutable_frames(4)->set_token_count(17);
  *request.add_frames() = PublishFrame(0);
  request.mutable_frames(6)->set_index(6);
  publish->Write(request);
  publish->WritesDone();
  std::map<uint32_t, v1::BlockOutcome> outcomes;
  v1::PublishResponse response;
  while (publish->Read(&response)) {
    for (const v1::PublishResult& result : response.results()) {
      outcomes[result.index()] = result.outcome();
    }
  }
  EXPECT_TRUE(publish->Finish().ok());
  const std::map<uint32_t, v1::BlockOutcome> expected = {
      {0, v1::BLOCK_OUTCOME_OK},      {1, v1::BLOCK_OUTCOME_CORRUPT},
      {2, v1::BLOCK_OUTCOME_INVALID}, {3, v1::BLOCK_OUTCOME_INVALID},
      {4, v1::BLOCK_OUTCOME_INVALID}, {5, v1::BLOCK_OUTCOME_OK},
      {6, v1::BLOCK_OUTCOME_PRESENT}};
  EXPECT_EQ(outcomes, expected);
  EXPECT_TRUE(Eventually([&] { return AllIsFree(); }));
}

TEST_F(WireTest, AMessageForAnotherNamespaceThanTheFirstEndsTheStream) {
  for (int field = 0; field < 3; ++field) {
    grpc::ClientContext context;
    SetTimeout(kPatience, &context);
    const auto publish = stub->Publish(&context);
    publish->Write(RequestOf(0, 1));
    publish->Write(RequestOf(1, 2));  // says the same
    v1::PublishRequest request = RequestOf(2, 3);
    if (field == 0) request.set_session_id(7);
    if (field == 1) request.set_namespace_id(std::string(32, 'n'));
    if (field == 2) request.set_durable(true);
    publish->Write(request);
    v1::PublishResponse response;
    int results_count = 0;
    while (publish->Read(&response)) results_count += response.results_size();
    EXPECT_EQ(results_count, 2);
    const grpc::Status status = publish->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("use a stream for each"));
  }
}

TEST_F(WireTest, TooManyFramesInAMessageAreRefusedWithTheLimit) {
  grpc::ClientContext context;
  SetTimeout(kPatience, &context);
  const auto publish = stub->Publish(&context);
  publish->Write(RequestOf(0, 1));
  v1::PublishResponse response;
  EXPECT_TRUE(publish->Read(&response));
  v1::PublishRequest request;
  while (request.frames_size() <= static_cast<int>(kFramesPerMessageMax)) {
    *request.add_frames() = PublishFrame(1);
  }
  publish->Write(request);
  EXPECT_FALSE(publish->Read(&response));
  const grpc::Status status = publish->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("kFramesPerMessageMax=64"));
}

// Frames of a session that does not exist are void: the stream ends and says why.
TEST_F(WireTest, APublishOfNoSessionEndsWithTheReason) {
  grpc::ClientContext context;
  SetTimeout(kPatience, &context);
  const auto publish = stub->Publish(&context);
  v1::PublishRequest request = RequestOf(0, 20);
  request.set_session_id(12345);
  publish->Write(request);
  v1::PublishResponse response;
  EXPECT_FALSE(publish->Read(&response));
  const grpc::Status status = publish->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("session"));
}

TEST_F(WireTest, TooLargeAMessageIsRefusedWithTheLimit) {
  grpc::ChannelArguments unlimited;
  unlimited.SetMaxSendMessageSize(-1);
  const auto channel =
      grpc::CreateCustomChannel(server->address(), grpc::InsecureChannelCredentials(), unlimited);
  const auto big = v1::CacheService::NewStub(channel);
  grpc::ClientContext context;
  SetTimeout(kPatience, &context);
  v1::MatchRequest request;
  request.set_keys(std::string(kMessageBytesMax + 32, 'x'));
  v1::MatchResponse response;
  const grpc::Status status = big->Match(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr(absl::StrCat(kMessageBytesMax)));
}

TEST_F(WireTest, TooManyKeysAreRefusedWithTheLimit) {
  const std::string keys((kRequestKeysMax + 1) * 32, 'k');
  const std::string ns = DigestString(blocks.ns.digest);
  const auto expect = [&](const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("kRequestKeysMax"));
    v1::ErrorStatus typed;
    v1::ErrorDetail detail;
    ASSERT_TRUE(typed.ParseFromString(status.error_details()) && typed.details_size() == 1 &&
                typed.details(0).UnpackTo(&detail));
    EXPECT_EQ(detail.incarnation(), server->store().incarnation()) << "as in every reply";
    EXPECT_EQ(detail.limit(), "kRequestKeysMax");
  };
  {
    grpc::ClientContext context;
    v1::MatchRequest request;
    v1::MatchResponse response;
    request.set_namespace_id(ns);
    request.set_keys(keys);
    expect(stub->Match(&context, request, &response));
  }
  {
    grpc::ClientContext context;
    v1::OfferRequest request;
    v1::OfferResponse response;
    request.set_namespace_id(ns);
    request.set_keys(keys);
    expect(stub->Offer(&context, request, &response));
  }
  {
    grpc::ClientContext context;
    v1::FetchRequest request;
    request.set_namespace_id(ns);
    request.set_keys(keys);
    const auto fetch = FramesOf(stub->Fetch(&context, request));
    v1::BlockFrame frame;
    EXPECT_FALSE(fetch->Read(&frame));
    expect(fetch->Finish());
  }
}

TEST_F(WireTest, HalfAKeyIsMalformed) {
  grpc::ClientContext context;
  v1::MatchRequest request;
  v1::MatchResponse response;
  request.set_namespace_id(DigestString(blocks.ns.digest));
  request.set_keys(std::string(33, 'k'));
  EXPECT_EQ(stub->Match(&context, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

// A client that never reads its results: the server stops reading its frames instead of queueing
// without end, and its calls end with their deadline.
TEST_F(WireTest, AClientThatReadsNothingIsHeldBackAndForgotten) {
  client->Publish(blocks);
  grpc::ClientContext context;
  SetTimeout(absl::Milliseconds(500), &context);
  v1::FetchRequest request = RequestForAll();
  std::string many;
  for (int i = 0; i < 200; ++i) many += request.keys();
  request.set_keys(many);
  const auto fetch = FramesOf(stub->Fetch(&context, request));
  v1::BlockFrame frame;
  ASSERT_TRUE(fetch->Read(&frame));
  // 190 MB were asked for; what the server has taken from the store stays within the windows.
  EXPECT_LT(client->Stats().pinned_bytes, uint64_t{32} << 20);
  while (fetch->Read(&frame)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(fetch->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Eventually([&] { return AllIsFree(); }));
}

// One that lives and has set no deadline holds its blocks no longer than a session without a word.
TEST_F(WireTest, AFetchThatNobodyReadsIsCutOff) {
  Restart(/*session_ttl=*/absl::Milliseconds(600));
  client->Publish(blocks);
  grpc::ClientContext context;
  SetTimeout(kPatience, &context);
  v1::FetchRequest request = RequestForAll();
  std::string many;
  for (int i = 0; i < 200; ++i) many += request.keys();
  request.set_keys(many);
  const auto fetch = FramesOf(stub->Fetch(&context, request));
  EXPECT_TRUE(Eventually([&] { return client->Stats().pinned_bytes > 0; }));
  EXPECT_TRUE(Eventually([&] { return AllIsFree(); }));
  v1::BlockFrame frame;
  while (fetch->Read(&frame)) {
  }
  EXPECT_EQ(fetch->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

// Who reads slowly but reads is not.
TEST_F(WireTest, ASlowReaderIsNotCutOff) {
  Restart(/*session_ttl=*/absl::Milliseconds(600));
  client->Publish(blocks);
  grpc::ClientContext context;
  SetTimeout(kPatience, &context);
  const auto fetch = FramesOf(stub->Fetch(&context, RequestForAll()));
  v1::BlockFrame frame;
  size_t read_count = 0;
  while (fetch->Read(&frame)) {
    ++read_count;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_TRUE(fetch->Finish().ok());
  EXPECT_EQ(read_count, blocks.links.size());
}

// A stop does not wait for a client that reads nothing, and no memory is freed under a connection
// that still sends from it.
TEST_F(WireTest, AStopIsBoundedWhileAClientReadsNothing) {
  client->Publish(blocks);
  grpc::ClientContext context;
  v1::FetchRequest request = RequestForAll();
  std::string many;
  for (int i = 0; i < 200; ++i) many += request.keys();
  request.set_keys(many);
  const auto fetch = FramesOf(stub->Fetch(&context, request));
  v1::BlockFrame frame;
  ASSERT_TRUE(fetch->Read(&frame));
  const SteadyClock clock;
  const absl::Time stopping = clock.Now();
  server->Shutdown(absl::Milliseconds(100));
  EXPECT_LT(clock.Now() - stopping, absl::Seconds(4));
  while (fetch->Read(&frame)) {
  }
  EXPECT_FALSE(fetch->Finish().ok());
}

TEST_F(WireTest, AMatchBehindTheLastPositionIsRefused) {
  grpc::ClientContext context;
  v1::MatchRequest request;
  v1::MatchResponse response;
  request.set_namespace_id(DigestString(blocks.ns.digest));
  request.set_keys(std::string(64, 'k'));
  request.set_first_position(UINT32_MAX - 1);
  const grpc::Status status = stub->Match(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("first_position"));
}

TEST_F(WireTest, TooManyLeasesReleasedInOneMessageAreRefusedWithTheLimit) {
  grpc::ClientContext context;
  SetTimeout(kPatience, &context);
  const auto session = stub->Session(&context);
  v1::SessionRequest request;
  request.set_client_name("raw");
  ASSERT_TRUE(session->Write(request));
  v1::SessionResponse response;
  ASSERT_TRUE(session->Read(&response));
  request.clear_client_name();
  for (size_t i = 0; i < kReleaseLeasesMax; ++i) request.add_release_lease_ids(i + 1);
  ASSERT_TRUE(session->Write(request));
  ASSERT_TRUE(session->Read(&response)) << "as many as there may be";
  request.add_release_lease_ids(7);
  ASSERT_TRUE(session->Write(request));
  while (session->Read(&response)) {
  }
  const absl::Status refused = FromGrpcStatus(session->Finish());
  EXPECT_EQ(LimitOf(refused), (Limit{"kReleaseLeasesMax", kReleaseLeasesMax})) << refused;
}

// A client that leaves while its match waits leaves neither a wait nor a lease.
TEST_F(WireTest, AMatchThatIsCancelledWhileItWaitsLeavesNothing) {
  const auto other = Connect(spec);
  const auto keys = blocks.keys();
  client->Publish(MakeBlocks(spec, 2));  // the first two blocks of the same chain
  ASSERT_EQ(other->channel
                ->Claim(other->session_id(), blocks.ns, std::span(keys).subspan(2),
                        absl::InfiniteDuration(), kPatience)
                ->wanted_count,
            38u);
  for (int round = 0; round < 5; ++round) {
    grpc::ClientContext context;
    v1::MatchRequest request;
    v1::MatchResponse response;
    request.set_session_id(client->session_id());
    request.set_namespace_id(DigestString(blocks.ns.digest));
    request.set_keys(EncodeKeys(keys));
    request.set_lease(true);
    request.set_wait_pending_ms(20'000);
    std::thread waiting([&] { EXPECT_FALSE(stub->Match(&context, request, &response).ok()); });
    EXPECT_TRUE(Eventually([&] { return server->store().stats().waiting_matches == 1; }));
    context.TryCancel();
    waiting.join();
    EXPECT_TRUE(Eventually([&] { return server->store().stats().waiting_matches == 0; }));
  }
  EXPECT_TRUE(Eventually([&] { return server->store().stats().leases == 0; }));
  EXPECT_EQ(client->Stats().pinned_bytes, 0u);
}

// 23: one answer for several shards.
TEST_F(WireTest, AMatchOfSeveralShardsIsTheSmallestCommonPrefix) {
  NamespaceSpec second = spec;
  second.shard = "tp=1/2;pp=0/1";
  ASSERT_TRUE(client->channel->OpenNamespace(second, kPatience).ok());
  const SampleBlocks theirs = MakeBlocks(second, 40);
  client->Publish(MakeBlocks(spec, 7));
  client->Publish(MakeBlocks(second, 5));
  const auto keys = blocks.keys(), their_keys = theirs.keys();
  const MatchShard shards[] = {{blocks.ns, keys}, {theirs.ns, their_keys}};
  MatchCall call;
  call.session_id = client->session_id();
  call.lease = true;
  call.lease_id = 77;
  const auto reply = client->channel->MatchShards(call, shards, kPatience);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->matched_count, 5u);
  EXPECT_EQ(reply->lease_id, 77u);
  EXPECT_EQ(client->Stats().pinned_bytes, 2 * 5 * SmallLayout().PayloadBytes());
  client->session->ReleaseLeases({&call.lease_id, 1});
  EXPECT_TRUE(Eventually([&] { return AllIsFree(); }));

  grpc::ClientContext context;
  v1::MatchRequest request;
  v1::MatchResponse response;
  for (int i = 0; i < 257; ++i) request.add_shards()->set_namespace_id(std::string(32, 'n'));
  const grpc::Status too_many = stub->Match(&context, request, &response);
  EXPECT_EQ(too_many.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(too_many.error_message(), HasSubstr("kMatchShardsMax"));
  grpc::ClientContext mixed;
  request.mutable_shards()->DeleteSubrange(1, 256);
  request.set_keys(std::string(32, 'k'));
  EXPECT_EQ(stub->Match(&mixed, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

// 24, 28: a reader that stalls in the middle of a stream and never gives its lease back: others
// publish far more than the server holds, and what the reader has is all that stays.
TEST_F(WireTest, AStalledReaderCostsOthersOnlyWhatItHolds) {
  client->Publish(blocks);
  auto reader = Connect(spec);
  const auto keys = blocks.keys();
  ASSERT_EQ(reader->Match(blocks.ns, keys, /*lease=*/true).matched_count, 40u);
  grpc::ClientContext context;
  v1::FetchRequest request = RequestForAll();
  std::string many;
  for (int i = 0; i < 50; ++i) many += request.keys();
  request.set_keys(many);
  const auto fetch = FramesOf(stub->Fetch(&context, request));
  v1::BlockFrame frame;
  ASSERT_TRUE(fetch->Read(&frame));

  const uint64_t evictions_before = server->store().stats().tiers[0].evictions;
  for (uint32_t i = 1; i <= 100; ++i) {  // 100 times 0.9 MiB into 64 MiB
    for (const BlockOutcome outcome : client->Publish(MakeBlocks(spec, 40, i * 10'000)))
      ASSERT_EQ(outcome, BlockOutcome::kOk) << client->details[0];
  }
  EXPECT_GT(server->store().stats().tiers[0].evictions, evictions_before);
  EXPECT_EQ(client->Match(blocks.ns, keys).matched_count, 40u) << "what is leased stays";
  EXPECT_EQ(client->Stats().pinned_bytes, 40 * SmallLayout().PayloadBytes());

  reader.reset();  // it dies: its session ends, and its stream
  context.TryCancel();
  fetch->Finish();
  EXPECT_TRUE(Eventually([&] { return AllIsFree(); }));
  EXPECT_EQ(server->store().stats().leases, 0u);
}

}  // namespace
}  // namespace ibid
