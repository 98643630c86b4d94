// Every way that block bytes can travel between a client and a server keeps the same promises.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "cache_server/host_arena.h"
#include "tests/cache_server/service/server_fixture.h"
#include "transport/limits.h"

namespace ibid {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A payload of exactly `bytes`; if large, of whole MiB.
KvLayout LayoutOf(uint32_t bytes) {
  KvLayout layout;
  layout.layers = bytes > 1'000'000 ? bytes >> 20 : 1;
  layout.kv_heads = 1;
  layout.block_tokens = 1;
  layout.dtype = KvDtype::kInt8;
  layout.k_dim = bytes / layout.layers;
  layout.v_dim = 0;
  return layout;
}

class TransportTest : public ServerFixture, public ::testing::WithParamInterface<std::string> {
 protected:
  bool is_shm() const { return GetParam() == "shm"; }

  // A client with the memory of the server, if that is the transport.
  std::unique_ptr<TestClient> Attach(const NamespaceSpec& spec,
                                     uint64_t staging_bytes = uint64_t{8} << 20) {
    auto client = Connect(spec);
    if (!is_shm()) return client;
    ShmAttachOptions options;
    options.socket = client->session->shm_socket();
    options.session_id = client->session_id();
    options.incarnation = client->session->incarnation();
    options.staging_bytes = staging_bytes;
    auto attached = ShmAttachment::Attach(options);
    EXPECT_TRUE(attached.ok()) << attached.status();
    if (attached.ok()) shm_ = *attached;
    return client;
  }

  std::vector<BlockOutcome> Publish(TestClient& client, const SampleBlocks& blocks) {
    std::vector<BlockOutcome> outcomes(blocks.links.size());
    const auto result = client.channel->Publish(
        {client.session_id(), blocks.ns, false, shm_}, blocks.ToPublish(), kPatience,
        [&](const PublishBlockResult& r) { outcomes.at(r.index) = r.outcome; });
    EXPECT_TRUE(result.ok()) << result.status();
    return outcomes;
  }

  FetchCall LeaseOf(TestClient& client, const SampleBlocks& blocks) {
    const MatchReply match = client.Match(blocks.ns, blocks.keys(), /*lease=*/true);
    EXPECT_EQ(match.matched_count, blocks.links.size());
    FetchCall call{client.session_id(), blocks.ns, match.lease_id};
    call.shm = shm_;
    return call;
  }

  // Bytes of all replies of Fetch so far, as the server counts them: whether payloads came in
  // messages.
  uint64_t FetchedByMessage(TestClient& client) {
    for (const CacheStats::Method& method : client.Stats().methods) {
      if (method.method == "Fetch") return method.sent_bytes;
    }
    return 0;
  }
  uint64_t PublishedByMessage(TestClient& client) {
    for (const CacheStats::Method& method : client.Stats().methods) {
      if (method.method == "Publish") return method.received_bytes;
    }
    return 0;
  }

  std::shared_ptr<ShmAttachment> shm_;
};

TEST_P(TransportTest, BlocksOfAnySizeComeBackBitForBit) {
  StartServer();
  for (const uint32_t bytes : {1u, 63u, 4'095u, 4'096u, 4'097u, 32'768u, 32'769u, 65'536u, 524'287u,
                               524'288u, 524'321u, 2'097'152u, 4'194'304u}) {
    const NamespaceSpec spec = SpecOf(LayoutOf(bytes), absl::StrCat("bytes ", bytes));
    const SampleBlocks blocks = MakeBlocks(spec, bytes > 500'000 ? 5 : 70);
    const auto client = Attach(spec);
    EXPECT_THAT(Publish(*client, blocks), Each(BlockOutcome::kOk)) << bytes;
    EXPECT_THAT(Publish(*client, blocks), Each(BlockOutcome::kPresent)) << bytes;
    const uint64_t before = FetchedByMessage(*client);
    EXPECT_THAT(client->Fetch(LeaseOf(*client, blocks), blocks.keys(), bytes),
                Each(BlockOutcome::kOk))
        << bytes;
    EXPECT_EQ(client->received, blocks.payloads) << bytes;
    const uint64_t by_message = FetchedByMessage(*client) - before;
    const uint64_t payloads = bytes * blocks.links.size();
    EXPECT_EQ(by_message >= payloads, !is_shm() || bytes < 100) << by_message << " " << payloads;
    EXPECT_TRUE(client->channel->Drop(nullptr, {}, kPatience).ok());
  }
}

TEST_P(TransportTest, LargePayloadsArePublishedThroughTheStagingMemory) {
  StartServer();
  const NamespaceSpec spec = SpecOf(LargeLayout());
  const SampleBlocks blocks = MakeBlocks(spec, 6);
  const auto client = Attach(spec);
  EXPECT_THAT(Publish(*client, blocks), Each(BlockOutcome::kOk));
  const uint64_t payloads = blocks.payloads.size() * blocks.payloads[0].size();
  EXPECT_EQ(PublishedByMessage(*client) >= payloads, !is_shm());
}

// A client whose staging memory holds one block, half of one, or nothing now.
TEST_P(TransportTest, AFullStagingMemoryIsNoError) {
  StartServer();
  const NamespaceSpec spec = SpecOf(LargeLayout());
  const uint64_t block_bytes = LargeLayout().PayloadBytes();
  uint32_t first_token = 0;
  for (const uint64_t staging : {block_bytes, block_bytes / 2, 2 * block_bytes}) {
    const SampleBlocks blocks = MakeBlocks(spec, 5, first_token += 1'000);
    const auto client = Attach(spec, staging);
    ShmAttachment::Staged taken;
    if (is_shm() && staging > block_bytes) taken = shm_->Stage(staging);
    EXPECT_THAT(Publish(*client, blocks), Each(BlockOutcome::kOk)) << staging;
    EXPECT_THAT(client->Fetch(LeaseOf(*client, blocks), blocks.keys(), block_bytes),
                Each(BlockOutcome::kOk));
    EXPECT_EQ(client->received, blocks.payloads);
    if (is_shm() && staging == block_bytes) {
      EXPECT_NE(shm_->Stage(staging).owner, nullptr) << "all of it came back";
    }
  }
}

TEST_P(TransportTest, ALayerRangeComesAlone) {
  StartServer();
  const KvLayout layout = LargeLayout();
  const NamespaceSpec spec = SpecOf(layout);
  const SampleBlocks blocks = MakeBlocks(spec, 4);
  const auto client = Attach(spec);
  Publish(*client, blocks);
  FetchCall call = LeaseOf(*client, blocks);
  call.first_layer = 5;
  call.layer_count = 3;
  EXPECT_THAT(client->Fetch(call, blocks.keys(), 3 * layout.LayerBytes()), Each(BlockOutcome::kOk));
  for (size_t i = 0; i < blocks.links.size(); ++i) {
    EXPECT_EQ(std::memcmp(client->received[i].data(), blocks.payloads[i].data() + layout.KOffset(5),
                          3 * layout.LayerBytes()),
              0);
  }
}

TEST_P(TransportTest, WhatIsNotThereIsAMissAndDisturbsNoOther) {
  StartServer();
  const NamespaceSpec spec = SpecOf(SmallLayout());
  const SampleBlocks blocks = MakeBlocks(spec, 3), absent = MakeBlocks(spec, 1, 5'000);
  const auto client = Attach(spec);
  Publish(*client, blocks);
  std::vector<BlockKey> keys = blocks.keys();
  keys.insert(keys.begin() + 1, absent.keys()[0]);
  EXPECT_THAT(
      client->Fetch(LeaseOf(*client, blocks), keys, SmallLayout().PayloadBytes()),
      ElementsAre(BlockOutcome::kOk, BlockOutcome::kMiss, BlockOutcome::kOk, BlockOutcome::kOk));
  EXPECT_EQ(client->received[3], blocks.payloads[2]);
}

// 1: a bit that flipped in the server's memory reaches nobody.
TEST_P(TransportTest, AFlippedBitIsCorrupt) {
  StartServer();
  const NamespaceSpec spec = SpecOf(LargeLayout());
  const SampleBlocks blocks = MakeBlocks(spec, 3);
  const auto client = Attach(spec);
  Publish(*client, blocks);
  const FetchCall call = LeaseOf(*client, blocks);
  const ByteView arena = server->store().arena().memory().view();
  // The block's first bytes, found by what they are.
  const auto& sample = blocks.payloads[1];
  size_t at = 0;
  while (at < arena.size() && std::memcmp(arena.data() + at, sample.data(), 4'096) != 0)
    at += kPageBytes;
  ASSERT_LT(at, arena.size());
  const_cast<std::byte&>(arena[at + 1'000'000]) ^= std::byte{4};
  EXPECT_THAT(client->Fetch(call, blocks.keys(), sample.size()),
              ElementsAre(BlockOutcome::kOk, BlockOutcome::kCorrupt, BlockOutcome::kOk));
}

// 9: a lease that is over is refused, whatever the client has mapped.
TEST_P(TransportTest, ALeaseThatIsOverIsRefused) {
  StartServer();
  const NamespaceSpec spec = SpecOf(SmallLayout());
  const SampleBlocks blocks = MakeBlocks(spec, 3);
  const auto client = Attach(spec);
  Publish(*client, blocks);
  const FetchCall call = LeaseOf(*client, blocks);
  client->session->ReleaseLeases({&call.lease_id, 1});
  ASSERT_TRUE(Eventually([&] { return client->Stats().leases == 0; }));
  absl::Status status;
  client->Fetch(call, blocks.keys(), SmallLayout().PayloadBytes(), &status);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
}

TEST_P(TransportTest, CallsEndWithTheServerAndWorkWithTheNextOne) {
  StartServer();
  const NamespaceSpec spec = SpecOf(LargeLayout());
  const SampleBlocks blocks = MakeBlocks(spec, 3);
  for (int round = 0; round < 3; ++round) {
    const auto client = Attach(spec);
    EXPECT_THAT(Publish(*client, blocks), Each(BlockOutcome::kOk));
    const FetchCall call = LeaseOf(*client, blocks);
    server = nullptr;
    absl::Status status;
    client->Fetch(call, blocks.keys(), blocks.payloads[0].size(), &status);
    EXPECT_FALSE(status.ok());
    StartServer();
    absl::Status refused;
    client->Fetch(call, blocks.keys(), blocks.payloads[0].size(), &refused);
    EXPECT_FALSE(refused.ok()) << "another address, or no such session";
  }
}

INSTANTIATE_TEST_SUITE_P(Each, TransportTest, ::testing::Values("grpc", "shm"),
                         [](const auto& info) { return info.param; });

class ShmServiceTest : public TransportTest {
 protected:
  // Blocks that a client has published, leased and located.
  struct Stored {
    SampleBlocks blocks;
    std::unique_ptr<TestClient> client;
    FetchCall call;
    std::vector<LocatedBlock> located;

    void DropAndLetGo() {
      EXPECT_TRUE(client->channel->Drop(&blocks.ns, {}, kPatience).ok());
      client->session->ReleaseLeases({&call.lease_id, 1});
    }
  };
  Stored Store(size_t blocks_count) {
    StartServer();
    const NamespaceSpec spec = SpecOf(LargeLayout());
    Stored stored{MakeBlocks(spec, blocks_count), Attach(spec), {}, {}};
    Publish(*stored.client, stored.blocks);
    stored.call = LeaseOf(*stored.client, stored.blocks);
    const auto reply = stored.client->channel->Locate(stored.call, stored.blocks.keys(),
                                                      stored.blocks.payloads[0].size(), kPatience);
    EXPECT_TRUE(reply.ok()) << reply.status();
    if (!reply.ok()) return stored;
    for (const auto& block : reply->blocks) {
      EXPECT_TRUE(block.has_value());
      stored.located.push_back(block.value_or(LocatedBlock{}));
    }
    return stored;
  }
};

TEST_P(ShmServiceTest, ABlockIsReadWhereItLiesUntilItsSlotIsFreed) {
  Stored stored = Store(3);
  ASSERT_EQ(stored.located.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const ByteView bytes = *shm_->BytesAt(stored.located[i].place);
    const auto& expected = stored.blocks.payloads[i];
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), expected.begin(), expected.end())) << i;
    EXPECT_EQ(stored.located[i].checksum, Checksum(expected));
  }
  const ArenaPlace place = stored.located[1].place;
  EXPECT_TRUE(stored.client->channel->Drop(&stored.blocks.ns, {}, kPatience).ok());
  EXPECT_TRUE(shm_->IsCurrent(place)) << "the lease keeps the bytes of a dropped block";
  stored.DropAndLetGo();
  EXPECT_TRUE(Eventually([&] { return !shm_->IsCurrent(place); }));
  // Others take the slot, of blocks of another size too.
  const NamespaceSpec small = SpecOf(SmallLayout());
  Connect(small)->Publish(MakeBlocks(small, 1'000, 77));
  EXPECT_FALSE(shm_->IsCurrent(place));
}

TEST_P(ShmServiceTest, EveryPageOfASlotTellsThatItWasFreed) {
  Stored stored = Store(1);
  ASSERT_EQ(stored.located.size(), 1u);
  const ArenaPlace whole = stored.located[0].place;
  const HostArena& arena = server->store().arena();
  std::vector<ArenaPlace> pages;
  for (uint64_t at = 0; at < whole.bytes; at += kPageBytes) {
    pages.push_back({whole.offset + at, kPageBytes, arena.GenerationAt(whole.offset + at)});
  }
  stored.DropAndLetGo();
  for (const ArenaPlace& page : pages) {
    EXPECT_TRUE(Eventually([&] { return !shm_->IsCurrent(page); })) << page.offset;
  }
}

// Frames that point outside of the staging memory, or to none, are answered block by block.
TEST_P(ShmServiceTest, FramesThatPointElsewhereAreInvalidAndHarmNobody) {
  StartServer();
  const NamespaceSpec spec = SpecOf(SmallLayout());
  const SampleBlocks blocks = MakeBlocks(spec, 1);
  const uint32_t bytes = static_cast<uint32_t>(blocks.payloads[0].size());
  const auto attached = Attach(spec, bytes);
  const auto stranger = Connect(spec);
  const uint64_t end = shm_->staging_bytes();
  struct Wrong {
    uint64_t session_id, offset;
    uint32_t bytes;
  };
  const Wrong all[] = {{attached->session_id(), end, bytes},
                       {attached->session_id(), 1, static_cast<uint32_t>(end)},
                       {attached->session_id(), ~uint64_t{0}, bytes},
                       {attached->session_id(), 0, bytes - 1},
                       {attached->session_id(), 0, ~uint32_t{0}},
                       {stranger->session_id(), 0, bytes}};
  for (const Wrong& wrong : all) {
    grpc::ClientContext context;
    const auto stream = PlainStub()->Publish(&context);
    v1::PublishRequest request;
    request.set_session_id(wrong.session_id);
    request.set_namespace_id(DigestString(blocks.ns.digest));
    v1::BlockFrame& frame = *request.add_frames();
    frame.set_key(DigestString(blocks.links[0].key.digest));
    frame.set_parent(DigestString(blocks.links[0].parent.digest));
    frame.set_token_count(16);
    frame.set_shared_offset(wrong.offset);
    frame.set_shared_bytes(wrong.bytes);
    ASSERT_TRUE(stream->Write(request));
    v1::PublishResponse response;
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.results(0).outcome(), v1::BLOCK_OUTCOME_INVALID)
        << wrong.offset << " " << wrong.bytes;
    context.TryCancel();
    stream->Finish();
  }
  EXPECT_THAT(Publish(*attached, blocks), Each(BlockOutcome::kOk));
}

TEST_P(ShmServiceTest, AServerWithGrpcOnlyOrTlsOffersNoMemory) {
  ServerOptions options = SmallServer();
  options.transport = "grpc";
  StartServer(options);
  EXPECT_EQ(Connect(SpecOf(SmallLayout()))->session->shm_socket(), "");
  options.transport = "auto";
  options.tls_cert = options.tls_key = "x";
  EXPECT_FALSE(options.SharesMemory());
  options = SmallServer();
  EXPECT_TRUE(options.SharesMemory());
  options.shm_uids = "1000,x";
  EXPECT_THAT(std::string(options.Validate().message()), HasSubstr("--shm_uids"));
  options.shm_uids = "1000,1001";
  EXPECT_THAT(*options.ShmUids(), ElementsAre(geteuid(), 1000, 1001));
  options.transport = "pigeon";
  EXPECT_THAT(std::string(options.Validate().message()), HasSubstr("--transport=pigeon"));
}

INSTANTIATE_TEST_SUITE_P(Shm, ShmServiceTest, ::testing::Values("shm"));

}  // namespace
}  // namespace ibid
