// Publish quotas at the store: who is refused, who is not, and by which name.
#include "cache_server/tenant_table.h"
#include "tests/cache_server/store/store_harness.h"

namespace ibid {
namespace {

class QuotaTest : public StoreFixture {
 protected:
  void SetUp() override {
    OpenStore(HostOnly(64, 1));
    ASSERT_TRUE(store_->OpenNamespace(theirs_, layout_, "batch").ok());
    ASSERT_TRUE(store_->tenants().SetQuota("batch", TenantQuota{2 * 4096}).ok());
  }
  absl::Status PublishTheirs(uint32_t seed) {
    return Publish(*store_, session_, theirs_, ChainOf(theirs_, seed, 1)[0]);
  }

  const NamespaceId theirs_ = NamespaceOf("theirs");
};

TEST_F(QuotaTest, ATenantOverItsQuotaIsRefusedAloneAndOnlyForAWhile) {
  EXPECT_TRUE(PublishTheirs(1).ok());
  EXPECT_TRUE(PublishTheirs(2).ok());
  const absl::Status refused = PublishTheirs(3);
  ASSERT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(LimitOf(refused), (Limit{"publish_bytes_per_second_max", 2 * 4096}));
  EXPECT_EQ(store_->stats().rejected_blocks, 1u);
  EXPECT_EQ(store_->stats().reservations, 0u) << "a refused block leaves nothing behind";
  for (uint32_t seed = 10; seed < 30; ++seed) PublishChain(ChainOf(ns_, seed, 1));
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(PublishTheirs(3).ok());
}

TEST_F(QuotaTest, ABlockThatIsThereCostsNothing) {
  EXPECT_TRUE(PublishTheirs(1).ok());
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(absl::IsAlreadyExists(PublishTheirs(1)));
  EXPECT_TRUE(PublishTheirs(2).ok());
}

TEST_F(QuotaTest, TheFirstTenantThatOpensANamespaceOwnsIt) {
  ASSERT_TRUE(store_->OpenNamespace(theirs_, layout_, "other").ok()) << "it may be shared";
  EXPECT_TRUE(PublishTheirs(1).ok());
  EXPECT_TRUE(PublishTheirs(2).ok());
  EXPECT_FALSE(PublishTheirs(3).ok());
}

}  // namespace
}  // namespace ibid
