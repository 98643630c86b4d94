// The file with quotas: strict, and errors that say what to change.
#include "cache_server/tenants_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ibid {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(absl::string_view text) {
  TenantTable tenants(2);
  return std::string(SetTenants("t.json", text, &tenants).message());
}

TEST(TenantsFileTest, SetsTheDefaultAndEachTenant) {
  TenantTable tenants(10);
  ASSERT_TRUE(SetTenants("t.json",
                         R"({"default": {"publish_bytes_per_second_max": 5},
                             "tenants": {"a": {"publish_bytes_per_second_max": 7}, "b": {}}})",
                         &tenants)
                  .ok());
  EXPECT_EQ(tenants.default_quota().publish_bytes_per_second_max, 5u);
  const std::vector<TenantInfo> all = tenants.List();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].quota.publish_bytes_per_second_max, 7u);
  EXPECT_EQ(all[1].quota.publish_bytes_per_second_max, TenantQuota::kNoLimit);
  EXPECT_FALSE(all[1].is_default);
}

TEST(TenantsFileTest, ErrorsNameThePlaceAndTheRemedy) {
  EXPECT_THAT(ErrorOf("{\n  \"default\": }"), HasSubstr("--tenants_file=t.json: "));
  EXPECT_THAT(ErrorOf("{\n  \"default\": }"), HasSubstr("line 2"));
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("use an object"));
  EXPECT_THAT(ErrorOf(R"({"tenant": {}})"), HasSubstr("tenant: not known; use \"default\""));
  EXPECT_THAT(ErrorOf(R"({"tenants": 5})"), HasSubstr("tenants: use an object"));
  EXPECT_THAT(ErrorOf(R"({"tenants": {"a": 5}})"), HasSubstr("tenants.a: use an object"));
  EXPECT_THAT(ErrorOf(R"({"tenants": {"a": {"rate": 5}}})"),
              HasSubstr("tenants.a.rate: not known; use \"publish_bytes_per_second_max\""));
  EXPECT_THAT(ErrorOf(R"({"default": {"publish_bytes_per_second_max": -1}})"),
              HasSubstr("default.publish_bytes_per_second_max: use a number of bytes"));
  EXPECT_THAT(ErrorOf(R"({"tenants": {"a": {}, "b": {}, "c": {}}})"), HasSubstr("tenants_max=2"));
}

TEST(TenantsFileTest, AFileThatCannotBeReadIsAnError) {
  TenantTable tenants(2);
  const absl::Status status = ReadTenantsFile("/nowhere/tenants.json", &tenants);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot be read"));
}

}  // namespace
}  // namespace ibid
