#include "cache_server/tenant_table.h"

#include <gtest/gtest.h>

#include "core/limit.h"

namespace ibid {
namespace {

class TenantTableTest : public ::testing::Test {
 protected:
  // How many of `blocks` of 100 bytes are taken, offered at this rate; 0: all at once.
  int Publish(uint32_t tenant, int blocks, int per_second) {
    int taken = 0;
    for (int i = 0; i < blocks; ++i) {
      taken += table_.TakePublish(tenant, 100, now_).ok() ? 1 : 0;
      if (per_second > 0) now_ += absl::Seconds(1) / per_second;
    }
    return taken;
  }

  TenantTable table_{4};
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(TenantTableTest, ATenantOverItsRateIsRefusedAndItsRateIsKept) {
  const uint32_t tenant = *table_.Open("a");
  ASSERT_TRUE(table_.SetQuota("a", TenantQuota{1'000}).ok());
  // 100 blocks a second for ten seconds: 10 a second pass, and the burst of one second.
  EXPECT_EQ(Publish(tenant, 1'000, 100), 110);
  const absl::Status refused = [&] {
    absl::Status status;
    while (status.ok()) status = table_.TakePublish(tenant, 100, now_);
    return status;
  }();
  EXPECT_EQ(LimitOf(refused), (Limit{"publish_bytes_per_second_max", 1'000}));
  EXPECT_NE(std::string(refused.message()).find("\"a\""), std::string::npos);
  now_ += absl::Seconds(100);
  EXPECT_EQ(Publish(tenant, 20, 0), 10) << "silence saves up one second, not a hundred";
}

TEST_F(TenantTableTest, ABlockLargerThanASecondOfTheRatePasses) {
  const uint32_t tenant = *table_.Open("a");
  ASSERT_TRUE(table_.SetQuota("a", TenantQuota{10}).ok());
  EXPECT_TRUE(table_.TakePublish(tenant, 100, now_).ok());
  EXPECT_FALSE(table_.TakePublish(tenant, 100, now_ + absl::Seconds(8)).ok());
  EXPECT_TRUE(table_.TakePublish(tenant, 100, now_ + absl::Seconds(10)).ok());
}

TEST_F(TenantTableTest, ARateOfNothingRefusesAll) {
  const uint32_t tenant = *table_.Open("a");
  ASSERT_TRUE(table_.SetQuota("a", TenantQuota{0}).ok());
  EXPECT_FALSE(table_.TakePublish(tenant, 1, now_).ok());
}

TEST_F(TenantTableTest, TheDefaultIsOfEachTenantForItself) {
  const uint32_t a = *table_.Open("a");
  const uint32_t unnamed = *table_.Open("");
  const uint32_t own = *table_.Open("own");
  ASSERT_TRUE(table_.SetQuota("own", TenantQuota{}).ok());
  EXPECT_EQ(Publish(a, 50, 0), 50) << "there is no default yet";
  table_.SetDefault(TenantQuota{1'000});
  EXPECT_EQ(Publish(a, 50, 0), 10);
  EXPECT_EQ(Publish(unnamed, 50, 0), 10) << "another's use does not count";
  EXPECT_EQ(Publish(own, 50, 0), 50);
  ASSERT_TRUE(table_.SetQuota("own", std::nullopt).ok());
  EXPECT_EQ(Publish(own, 50, 0), 10);

  const std::vector<TenantInfo> all = table_.List();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].name, "");
  EXPECT_EQ(all[1].name, "a");
  EXPECT_TRUE(all[1].is_default);
  EXPECT_EQ(all[1].quota, (TenantQuota{1'000}));
  EXPECT_EQ(all[1].published_bytes, 6'000u);
  EXPECT_EQ(all[1].refused_blocks, 40u);
}

TEST_F(TenantTableTest, AFileOfQuotasReplacesAllOrChangesNothing) {
  int changes_count = 0;
  TenantTable table(2, [&] { ++changes_count; });
  ASSERT_TRUE(table.SetQuota("a", TenantQuota{1}).ok());
  TenantQuotas quotas;
  quotas.default_quota.host_bytes_max = 7;
  quotas.tenants["b"].disk_bytes_max = 8;
  quotas.tenants["c"].gpu_bytes_max = 9;
  EXPECT_EQ(LimitOf(table.SetAll(quotas)), (Limit{"tenants_max", 2}));
  EXPECT_EQ(table.default_quota(), TenantQuota{});
  EXPECT_EQ(table.List()[0].quota, TenantQuota{1});
  quotas.tenants.erase("c");
  const int changes_before = changes_count;
  ASSERT_TRUE(table.SetAll(quotas).ok());
  EXPECT_EQ(changes_count, changes_before + 1);
  EXPECT_TRUE(table.List()[0].is_default) << "a is not named";
  EXPECT_EQ(table.List()[0].quota.host_bytes_max, 7u);
  EXPECT_EQ(table.List()[1].quota.disk_bytes_max, 8u);
  EXPECT_EQ(table.List()[1].quota.host_bytes_max, TenantQuota::kNoLimit);
}

TEST_F(TenantTableTest, WhetherATenantCanPublishIsToldWithoutTakingAnything) {
  const uint32_t tenant = *table_.Open("a");
  ASSERT_TRUE(table_.SetQuota("a", TenantQuota{1'000}).ok());
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(table_.CanPublish(tenant, now_));
  EXPECT_EQ(Publish(tenant, 20, 0), 10);
  EXPECT_FALSE(table_.CanPublish(tenant, now_));
  EXPECT_TRUE(table_.CanPublish(tenant, now_ + absl::Milliseconds(100)));
}

// Names come from clients, and go to logs and terminals.
TEST_F(TenantTableTest, ANameWithControlCharactersIsRefused) {
  for (const char* name : {"a\nb", "\x1b[31m", "\x7f"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(table_.Open(name).status()));
    EXPECT_TRUE(absl::IsInvalidArgument(table_.SetQuota(name, TenantQuota{})));
    TenantQuotas quotas;
    quotas.tenants["good"] = TenantQuota{};
    quotas.tenants[name] = TenantQuota{};
    EXPECT_TRUE(absl::IsInvalidArgument(table_.SetAll(quotas)));
  }
  EXPECT_TRUE(table_.List().empty());
  EXPECT_TRUE(table_.Open("na\xC3\xAFve \"team\"").ok());
}

TEST_F(TenantTableTest, TheNumberOfTenantsIsLimited) {
  for (const char* name : {"a", "b", "c", "d"}) ASSERT_TRUE(table_.Open(name).ok());
  const uint32_t b = *table_.Open("b");
  EXPECT_EQ(table_.NameOf(b), "b");
  EXPECT_EQ(LimitOf(table_.Open("e").status()), (Limit{"tenants_max", 4}));
  EXPECT_EQ(LimitOf(table_.SetQuota("e", TenantQuota{1})), (Limit{"tenants_max", 4}));
}

}  // namespace
}  // namespace ibid
