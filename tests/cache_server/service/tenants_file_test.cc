// The file with quotas: strict, and errors that say what to change.
#include "cache_server/tenants_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ibid {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(absl::string_view text) {
  return std::string(ReadTenants("t.json", text).status().message());
}

TEST(TenantsFileTest, SaysTheDefaultAndEachTenant) {
  const auto quotas = ReadTenants("t.json",
                                  R"({"default": {"publish_bytes_per_second_max": 5},
                                      "tenants": {"a": {"publish_bytes_per_second_max": 7,
                                                        "host_bytes_max": 8, "disk_bytes_max": 9,
                                                        "gpu_bytes_max": 10}, "b": {}}})");
  ASSERT_TRUE(quotas.ok()) << quotas.status();
  EXPECT_EQ(quotas->default_quota, TenantQuota{5});
  ASSERT_EQ(quotas->tenants.size(), 2u);
  EXPECT_EQ(quotas->tenants.at("a"), (TenantQuota{7, 8, 9, 10}));
  EXPECT_EQ(quotas->tenants.at("b"), TenantQuota{});
}

TEST(TenantsFileTest, ErrorsNameThePlaceAndTheRemedy) {
  EXPECT_THAT(ErrorOf("{\n  \"default\": }"), HasSubstr("--tenants_file=t.json: "));
  EXPECT_THAT(ErrorOf("{\n  \"default\": }"), HasSubstr("line 2"));
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("use an object"));
  EXPECT_THAT(ErrorOf(R"({"tenant": {}})"), HasSubstr("tenant: not known; use \"default\""));
  EXPECT_THAT(ErrorOf(R"({"tenants": 5})"), HasSubstr("tenants: use an object"));
  EXPECT_THAT(ErrorOf(R"({"tenants": {"a": 5}})"), HasSubstr("tenants.a: use an object"));
  EXPECT_THAT(ErrorOf(R"({"tenants": {"a": {"rate": 5}}})"),
              HasSubstr("tenants.a.rate: not known; use \"publish_bytes_per_second_max\", \"host"));
  EXPECT_THAT(ErrorOf(R"({"default": {"publish_bytes_per_second_max": -1}})"),
              HasSubstr("default.publish_bytes_per_second_max: use a number of bytes"));
}

TEST(TenantsFileTest, AFileThatCannotBeReadIsAnError) {
  for (const std::string& path : {std::string("/nowhere/tenants.json"), testing::TempDir()}) {
    const absl::Status status = ReadTenantsFile(path).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("cannot be read"));
  }
}

}  // namespace
}  // namespace ibid
