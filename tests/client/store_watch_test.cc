// StoreWatch over real servers that come and go: 42.
#include "client/store_watch.h"

#include <map>

#include "tests/client/cluster.h"

namespace ibid {
namespace {

constexpr uint32_t kPrompts = 30;
constexpr absl::Duration kPatience = absl::Seconds(30);

// What a router keeps: by server, which blocks are there.
class Router {
 public:
  explicit Router(StoreWatch* watch) : watch_(watch) {}

  // Follows until `condition`; false when it has not come true in time.
  bool FollowUntil(const std::function<bool()>& condition) {
    const SteadyClock clock;
    const absl::Time until = clock.Now() + kPatience;
    while (!condition()) {
      if (clock.Now() > until) return false;
      for (const StoreEvent& event : watch_->Take(100, absl::Milliseconds(100))) Follow(event);
    }
    return true;
  }

  size_t blocks_count() const {
    size_t count = 0;
    for (const auto& [server, blocks] : blocks_) count += blocks.size();
    return count;
  }
  bool Has(uint32_t server, const BlockKey& key) { return blocks_[server].count(key) > 0; }
  int count(StoreNews news) { return news_[news]; }

  std::vector<StoreEvent> notable;  // all but kBlock

 private:
  void Follow(const StoreEvent& event) {
    ++news_[event.news];
    auto& blocks = blocks_[event.server];
    if (event.news != StoreNews::kBlock) notable.push_back(event);
    if (event.news == StoreNews::kBegin) blocks.clear();
    if (event.news != StoreNews::kBlock) return;
    if (event.block.tiers.empty()) {
      blocks.erase(event.block.key);
    } else {
      blocks[event.block.key] = event.block;
    }
  }

  StoreWatch* const watch_;
  std::map<uint32_t, std::map<BlockKey, BlockReport>> blocks_;
  std::map<StoreNews, int> news_;
};

class StoreWatchTest : public testing::Test {
 protected:
  void Start(size_t servers_count, StoreWatchOptions options = {}) {
    cluster_ = std::make_unique<Cluster>(servers_count);
    client_ = cluster_->Connect();
    ns_ = *client_->OpenNamespace(TestSpec());
    auto watch = client_->Watch(std::move(options));
    IBID_CHECK(watch.ok()) << watch.status().ToString();
    watch_ = *std::move(watch);
    router_ = std::make_unique<Router>(watch_.get());
  }
  // Many groups of blocks, so that each server gets some, wherever the ports place them.
  std::vector<ChainLink> PublishEverywhere() {
    std::vector<ChainLink> links;
    for (uint32_t prompt = 0; prompt < kPrompts; ++prompt) {
      const auto chain = TestChain(ns_.id, 4, prompt * 1'000);
      PublishChain(client_.get(), ns_, chain);
      links.insert(links.end(), chain.begin(), chain.end());
    }
    return links;
  }
  bool FollowUntilBlocks(size_t count) {
    return router_->FollowUntil([&] { return router_->blocks_count() == count; });
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Client> client_;
  NamespaceHandle ns_;
  std::unique_ptr<StoreWatch> watch_;
  std::unique_ptr<Router> router_;
};

TEST_F(StoreWatchTest, FollowsTheBlocksOfAllServers) {
  Start(3);
  const std::vector<ChainLink> links = PublishEverywhere();
  ASSERT_TRUE(FollowUntilBlocks(links.size()));
  ASSERT_TRUE(router_->FollowUntil([&] { return router_->count(StoreNews::kExact) == 3; }));
  EXPECT_EQ(watch_->connected_count(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    const auto& store = cluster_->server(i).store();
    for (const ChainLink& link : links) {
      const auto match = cluster_->server(i).store().Match({}, ns_.id, {&link.key, 1}, {});
      EXPECT_EQ(router_->Has(i, link.key), match.ok() && match->matched_count == 1);
    }
    EXPECT_GT(store.stats().published_blocks, 0u);
  }
  ASSERT_TRUE(client_->Drop(&ns_.id, {}).ok());
  EXPECT_TRUE(FollowUntilBlocks(0));
}

TEST_F(StoreWatchTest, ARestartedServerIsTakenAsEmpty) {
  Start(2);
  const size_t all = PublishEverywhere().size();
  ASSERT_TRUE(FollowUntilBlocks(all));
  ASSERT_TRUE(router_->FollowUntil([&] { return router_->count(StoreNews::kExact) == 2; }));
  const size_t left = cluster_->server(1).store().stats().published_blocks;
  ASSERT_LT(left, all);
  router_->notable.clear();
  cluster_->Restart(0);
  ASSERT_TRUE(FollowUntilBlocks(left));
  ASSERT_GE(router_->notable.size(), 2u);
  EXPECT_EQ(router_->notable[0].news, StoreNews::kAway);
  EXPECT_FALSE(router_->notable[0].status.ok());
  EXPECT_EQ(router_->notable[1].news, StoreNews::kBegin);
  EXPECT_TRUE(router_->notable[1].is_gap);
  EXPECT_EQ(router_->notable[1].epoch, cluster_->server(0).store().incarnation());
}

TEST_F(StoreWatchTest, ACutConnectionIsResumedWithoutASnapshot) {
  Start(1);
  ASSERT_TRUE(router_->FollowUntil([&] { return router_->count(StoreNews::kExact) == 1; }));
  const auto chain = TestChain(ns_.id, 8);
  cluster_->proxy(0).Refuse(true);
  cluster_->proxy(0).CutAll();
  ASSERT_TRUE(router_->FollowUntil([&] { return router_->count(StoreNews::kAway) == 1; }));
  // Published past the proxy, while nobody watches.
  ClientOptions direct = cluster_->Options();
  direct.servers = {cluster_->server(0).address()};
  const auto other = Cluster::Connect(direct);
  PublishChain(other.get(), *other->OpenNamespace(TestSpec()), chain);
  cluster_->proxy(0).Refuse(false);
  ASSERT_TRUE(FollowUntilBlocks(8));
  EXPECT_EQ(router_->count(StoreNews::kResumed), 1);
  EXPECT_EQ(router_->count(StoreNews::kBegin), 1);
}

// A snapshot that broke off is not resumed: what it had not told yet would be missing for ever.
TEST_F(StoreWatchTest, ABrokenSnapshotIsToldAnew) {
  Start(1);
  watch_.reset();
  PublishChain(client_.get(), ns_, TestChain(ns_.id, 600));
  // The client's own connection ends with the first that is cut; the watch's follow.
  cluster_->proxy(0).CutAfter(40'000);
  watch_ = *client_->Watch({});
  Router router(watch_.get());
  ASSERT_TRUE(router.FollowUntil([&] { return router.count(StoreNews::kAway) == 1; }));
  EXPECT_EQ(router.count(StoreNews::kExact), 0);
  ASSERT_TRUE(router.FollowUntil([&] { return router.count(StoreNews::kExact) == 1; }));
  EXPECT_EQ(router.blocks_count(), 600u);
  EXPECT_GE(router.count(StoreNews::kBegin), 1);
  EXPECT_EQ(router.count(StoreNews::kResumed), 0);
}

TEST_F(StoreWatchTest, FiltersByNamespaceAndLeavesTheSnapshotOut) {
  const NamespaceId other = MakeNamespaceId(TestSpec("other"));
  StoreWatchOptions options;
  options.namespaces = {other};
  options.has_snapshot = false;
  Start(1, options);
  ASSERT_TRUE(router_->FollowUntil([&] { return router_->count(StoreNews::kBegin) == 1; }));
  PublishChain(client_.get(), ns_, TestChain(ns_.id, 8));
  PublishChain(client_.get(), *client_->OpenNamespace(TestSpec("other")), TestChain(other, 3));
  ASSERT_TRUE(FollowUntilBlocks(3));
  EXPECT_EQ(router_->count(StoreNews::kExact), 0);
}

// A queue that nobody empties holds about its limit, and ends cleanly.
TEST_F(StoreWatchTest, WhatIsNotTakenIsBounded) {
  StoreWatchOptions options;
  options.queue_events_max = 2;
  Start(2, options);
  PublishChain(client_.get(), ns_, TestChain(ns_.id, 40));
  ASSERT_TRUE(FollowUntilBlocks(40));
  PublishChain(client_.get(), ns_, TestChain(ns_.id, 40, 9'000));
  watch_.reset();  // with events that nobody took
}

TEST_F(StoreWatchTest, ServersThatAreAwayAreSaidToBe) {
  ClientOptions options;
  options.servers = {FaultProxy().address()};
  options.connect_timeout = absl::Milliseconds(200);
  client_ = Cluster::Connect(options);
  watch_ = *client_->Watch({});
  Router router(watch_.get());
  EXPECT_TRUE(router.FollowUntil([&] { return router.count(StoreNews::kAway) == 1; }));
  EXPECT_EQ(watch_->connected_count(), 0u);
}

TEST_F(StoreWatchTest, RefusesOptionsThatCannotBeMeant) {
  Start(1);
  StoreWatchOptions options;
  options.queue_events_max = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(client_->Watch(options).status()));
  options = {};
  options.namespaces.resize(1'025);
  EXPECT_TRUE(absl::IsInvalidArgument(client_->Watch(options).status()));
}

}  // namespace
}  // namespace ibid
