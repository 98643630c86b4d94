#include "cache_server/tenants_file.h"

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "nlohmann/json.hpp"
#include "transport/limits.h"

namespace ibid {
namespace {

using nlohmann::json;

constexpr absl::string_view kRate = "publish_bytes_per_second_max";
constexpr size_t kFileBytesMax = size_t{16} << 20;

class TenantsReader {
 public:
  TenantsReader(absl::string_view path, TenantTable* tenants) : path_(path), tenants_(*tenants) {}

  absl::Status Read(absl::string_view text) {
    json root;
    try {
      root = json::parse(text.begin(), text.end());
    } catch (const json::parse_error& error) {
      return Wrong("", error.what());  // it names line and column
    }
    if (!root.is_object()) return Wrong("", "use an object with \"default\" and \"tenants\"");
    for (const auto& [name, value] : root.items()) {
      if (name == "default") {
        IBID_ASSIGN_OR_RETURN(const TenantQuota quota, QuotaOf("default", value));
        tenants_.SetDefault(quota);
      } else if (name == "tenants") {
        IBID_RETURN_IF_ERROR(ReadTenants(value));
      } else {
        return Wrong(name, "not known; use \"default\" and \"tenants\"");
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Wrong(absl::string_view field, absl::string_view remedy) const {
    return absl::InvalidArgumentError(
        absl::StrCat("--tenants_file=", path_, ": ", field, field.empty() ? "" : ": ", remedy));
  }

  absl::Status ReadTenants(const json& value) {
    if (!value.is_object()) return Wrong("tenants", "use an object with a quota for each name");
    for (const auto& [name, quota_value] : value.items()) {
      if (name.size() > kTextFieldBytesMax) return Wrong("tenants", "a name is too long");
      IBID_ASSIGN_OR_RETURN(const TenantQuota quota,
                            QuotaOf(absl::StrCat("tenants.", name), quota_value));
      IBID_RETURN_IF_ERROR(tenants_.SetQuota(name, quota));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<TenantQuota> QuotaOf(const std::string& field, const json& value) const {
    if (!value.is_object()) return Wrong(field, absl::StrCat("use an object with \"", kRate, "\""));
    TenantQuota quota;
    for (const auto& [name, limit] : value.items()) {
      const std::string full_name = absl::StrCat(field, ".", name);
      if (name != kRate) return Wrong(full_name, absl::StrCat("not known; use \"", kRate, "\""));
      if (!limit.is_number_unsigned()) {
        return Wrong(full_name, "use a number of bytes as 100000000; leave it out for no limit");
      }
      quota.publish_bytes_per_second_max = limit.get<uint64_t>();
    }
    return quota;
  }

  const absl::string_view path_;
  TenantTable& tenants_;
};

}  // namespace

absl::Status SetTenants(absl::string_view path, absl::string_view text, TenantTable* tenants) {
  return TenantsReader(path, tenants).Read(text);
}

absl::Status ReadTenantsFile(const std::string& path, TenantTable* tenants) {
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file.good() && !file.eof()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tenants_file=", path, ": cannot be read; give a JSON file"));
  }
  if (text.size() > kFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tenants_file=", path, ": ", text.size(), " bytes, over ", kFileBytesMax));
  }
  return SetTenants(path, text, tenants);
}

}  // namespace ibid
