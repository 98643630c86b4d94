// OpenNamespace, Match, Offer, Drop, GetStats.
#include <grpcpp/client_context.h>

#include <numeric>

#include "tests/cache_server/service/server_fixture.h"
#include "transport/call_deadline.h"
#include "transport/limits.h"

namespace ibid {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class HandshakeTest : public ServerFixture {
 protected:
  void SetUp() override {
    StartServer();
    stub = PlainStub();
  }

  // What a right client sends for `spec`.
  static v1::OpenNamespaceRequest RequestFor(const NamespaceSpec& spec) {
    const NamespaceId ns = MakeNamespaceId(spec);
    std::vector<uint32_t> tokens(16);
    std::iota(tokens.begin(), tokens.end(), 0);
    v1::OpenNamespaceRequest request;
    request.set_namespace_id(DigestString(ns.digest));
    request.mutable_fields()->set_model(spec.model);
    request.mutable_fields()->set_engine(spec.engine);
    request.mutable_fields()->set_layout(spec.layout);
    request.mutable_fields()->set_shard(spec.shard);
    request.mutable_fields()->set_adapter(spec.adapter);
    request.mutable_fields()->set_salt(spec.salt);
    request.set_golden_key(DigestString(MakeBlockKey(RootParent(ns), tokens).digest));
    return request;
  }

  grpc::Status Send(const v1::OpenNamespaceRequest& request) {
    grpc::ClientContext context;
    SetTimeout(kPatience, &context);
    return stub->OpenNamespace(&context, request, &response);
  }

  v1::OpenNamespaceResponse response;
  std::unique_ptr<v1::CacheService::Stub> stub;
};

TEST_F(HandshakeTest, ARightRequestIsAnsweredWithThePayloadSizeAsOftenAsItComes) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(Send(RequestFor(SpecOf(SmallLayout()))).ok());
    EXPECT_EQ(response.payload_bytes(), SmallLayout().PayloadBytes());
    EXPECT_EQ(response.incarnation(), server->store().incarnation());
  }
}

// 12, 14: shard, adapter and salt make namespaces of their own.
TEST_F(HandshakeTest, EachFieldMakesAnotherNamespace) {
  NamespaceSpec spec = SpecOf(SmallLayout());
  EXPECT_TRUE(Send(RequestFor(spec)).ok());
  spec.shard = "tp=0/8;pp=0/1";
  EXPECT_TRUE(Send(RequestFor(spec)).ok());
  spec.adapter = "tenant-b";
  EXPECT_TRUE(Send(RequestFor(spec)).ok());
  spec.adapter = "";
  spec.salt = "tenant-b";
  EXPECT_TRUE(Send(RequestFor(spec)).ok());
  EXPECT_EQ(server->store().stats().namespaces, 4u);
}

TEST_F(HandshakeTest, AnIdThatIsNotTheHashOfTheFieldsIsRefused) {
  v1::OpenNamespaceRequest request = RequestFor(SpecOf(SmallLayout()));
  request.mutable_fields()->set_model("another");
  const grpc::Status status = Send(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("namespace_id"));
}

// 15: a client that hashes otherwise would never hit, and nobody would know why.
TEST_F(HandshakeTest, AClientThatComputesOtherKeysIsRefusedLoudly) {
  v1::OpenNamespaceRequest request = RequestFor(SpecOf(SmallLayout()));
  request.mutable_golden_key()->front() ^= 1;
  const grpc::Status status = Send(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("golden_key"));
  request.clear_golden_key();
  EXPECT_EQ(Send(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

// 2: a layout that this server does not know, or that is not canonical, is not taken for another.
TEST_F(HandshakeTest, AnUnknownLayoutIsRefused) {
  for (const std::string& layout :
       {std::string("layers=3"), std::string(), SmallLayout().ToString() + ";swizzle=yes",
        std::string("layers=0;") + SmallLayout().ToString().substr(9)}) {
    NamespaceSpec spec = SpecOf(SmallLayout());
    spec.layout = layout;
    EXPECT_EQ(Send(RequestFor(spec)).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << layout;
  }
  EXPECT_EQ(server->store().stats().namespaces, 0u);
}

TEST_F(HandshakeTest, LongTextsAreRefusedByName) {
  NamespaceSpec spec = SpecOf(SmallLayout());
  spec.salt = std::string(kTextFieldBytesMax + 1, 's');
  const grpc::Status status = Send(RequestFor(spec));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("salt"));
  EXPECT_THAT(status.error_message(), HasSubstr("kTextFieldBytesMax"));
}

// 17: whichever call comes first after a restart shows it.
TEST_F(HandshakeTest, EveryReplyCarriesTheIncarnation) {
  const NamespaceSpec spec = SpecOf(SmallLayout());
  const auto client = Connect(spec);
  const SampleBlocks blocks = MakeBlocks(spec, 2);
  const uint64_t incarnation = server->store().incarnation();
  ASSERT_NE(incarnation, 0u);
  EXPECT_EQ(client->channel->OpenNamespace(spec, kPatience)->incarnation, incarnation);
  EXPECT_EQ(client->session->incarnation(), incarnation);
  EXPECT_EQ(client->Match(blocks.ns, blocks.keys()).incarnation, incarnation);
  EXPECT_EQ(client->channel->Offer(client->session_id(), blocks.ns, blocks.keys(), kPatience)
                ->incarnation,
            incarnation);
  const auto published =
      client->channel->Publish({client->session_id(), blocks.ns}, blocks.ToPublish(), kPatience,
                               [](const PublishBlockResult&) {});
  EXPECT_EQ(*published, incarnation);
  std::vector<std::byte> bytes(SmallLayout().PayloadBytes());
  const std::vector<MutableByteView> into(2, bytes);
  EXPECT_EQ(
      client->channel
          ->Fetch({0, blocks.ns}, blocks.keys(), into, kPatience, [](uint32_t, BlockOutcome) {})
          ->incarnation,
      incarnation);
  EXPECT_EQ(client->Stats().incarnation, incarnation);
  EXPECT_EQ(client->channel->Drop(&blocks.ns, {}, kPatience)->incarnation, incarnation);
}

TEST_F(HandshakeTest, MatchFindsTheLeadingBlocksAndDropTakesThemAway) {
  const NamespaceSpec spec = SpecOf(SmallLayout());
  const auto client = Connect(spec);
  const SampleBlocks blocks = MakeBlocks(spec, 8);
  EXPECT_EQ(client->Match(blocks.ns, blocks.keys()).matched_count, 0u);
  client->Publish(blocks);
  const MatchReply all = client->Match(blocks.ns, blocks.keys());
  EXPECT_EQ(all.matched_count, 8u);
  EXPECT_EQ(all.host_blocks, 8u);
  EXPECT_EQ(all.lease_id, 0u);

  const std::vector<BlockKey> fifth = {blocks.links[5].key};
  EXPECT_EQ(client->channel->Drop(&blocks.ns, fifth, kPatience)->blocks, 1u);
  EXPECT_EQ(client->Match(blocks.ns, blocks.keys()).matched_count, 5u);
  EXPECT_EQ(client->channel->Drop(&blocks.ns, {}, kPatience)->blocks, 7u);
  EXPECT_EQ(client->Match(blocks.ns, blocks.keys()).matched_count, 0u);
  client->Publish(blocks);
  EXPECT_EQ(client->channel->Drop(nullptr, {}, kPatience)->blocks, 8u);
}

TEST_F(HandshakeTest, DropOfEverythingIsNeverMeantByAccident) {
  grpc::ClientContext context;
  v1::DropRequest request;
  v1::DropResponse dropped;
  EXPECT_EQ(stub->Drop(&context, request, &dropped).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  for (const size_t keys_count : {size_t{0}, kDropCorruptKeysMax + 1}) {
    grpc::ClientContext corrupt_context;
    v1::DropRequest corrupt;
    corrupt.set_namespace_id(std::string(32, 'n'));
    corrupt.set_keys(std::string(keys_count * 32, 'k'));
    corrupt.set_only_corrupt(true);
    const grpc::Status status = stub->Drop(&corrupt_context, corrupt, &dropped);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("kDropCorruptKeysMax"));
  }
  grpc::ClientContext second;
  request.set_everything(true);
  request.set_keys(std::string(32, 'k'));
  EXPECT_EQ(stub->Drop(&second, request, &dropped).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(HandshakeTest, AMatchWaitsForBlocksThatAnotherSessionIsFilling) {
  const NamespaceSpec spec = SpecOf(SmallLayout());
  const auto writer = Connect(spec);
  const auto reader = Connect(spec);
  const SampleBlocks blocks = MakeBlocks(spec, 3);
  ASSERT_TRUE(
      writer->channel->Offer(writer->session_id(), blocks.ns, blocks.keys(), kPatience).ok());
  const MatchReply now = reader->Match(blocks.ns, blocks.keys());
  EXPECT_EQ(now.matched_count, 0u);
  EXPECT_EQ(now.pending_count, 3u);

  std::thread filling([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_THAT(writer->Publish(blocks), Each(BlockOutcome::kOk));
  });
  const MatchCall waiting{reader->session_id(), blocks.ns, /*lease=*/true, absl::Seconds(10)};
  const auto later = reader->channel->Match(waiting, blocks.keys(), kPatience);
  filling.join();
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_EQ(later->matched_count, 3u);
  EXPECT_NE(later->lease_id, 0u);
}

TEST_F(HandshakeTest, AWaitForBlocksThatNeverComeEndsInTime) {
  const NamespaceSpec spec = SpecOf(SmallLayout());
  const auto writer = Connect(spec);
  const auto reader = Connect(spec);
  const SampleBlocks blocks = MakeBlocks(spec, 1);
  ASSERT_TRUE(
      writer->channel->Offer(writer->session_id(), blocks.ns, blocks.keys(), kPatience).ok());
  const auto reply = reader->channel->Match({0, blocks.ns, false, absl::Milliseconds(150)},
                                            blocks.keys(), kPatience);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->pending_count, 1u);

  // 24: many wait at a time, without a thread each, and nobody is held up.
  const SteadyClock clock;
  std::vector<std::thread> waiting;
  for (int i = 0; i < 200; ++i) {
    waiting.emplace_back([&] {
      const auto found =
          reader->channel->Match({0, blocks.ns, false, kPatience}, blocks.keys(), kPatience);
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_EQ(found->matched_count, 1u);
    });
  }
  EXPECT_TRUE(Eventually([&] { return server->store().stats().waiting_matches == 200; }));
  EXPECT_TRUE(reader->channel->GetStats(kPatience).ok());
  EXPECT_THAT(writer->Publish(blocks), Each(BlockOutcome::kOk));
  for (std::thread& thread : waiting) thread.join();
  EXPECT_EQ(server->store().stats().waiting_matches, 0u);

  const SampleBlocks never = MakeBlocks(spec, 1, 70'000);
  ASSERT_TRUE(writer->channel->Offer(writer->session_id(), never.ns, never.keys(), kPatience).ok());
  // A stop does not wait for them.
  std::thread last([&] {
    EXPECT_FALSE(
        reader->channel
            ->Match({0, never.ns, false, absl::Seconds(20)}, never.keys(), absl::Seconds(20))
            .status()
            .code() == absl::StatusCode::kDeadlineExceeded);
  });
  EXPECT_TRUE(Eventually([&] { return server->store().stats().waiting_matches == 1; }));
  const absl::Time stopping = clock.Now();
  server->Shutdown(absl::Seconds(10));
  EXPECT_LT(clock.Now() - stopping, absl::Seconds(5));
  last.join();
}

}  // namespace
}  // namespace ibid
