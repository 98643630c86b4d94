#include "cache_server/tenants_file.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/text_file.h"
#include "nlohmann/json.hpp"
#include "transport/limits.h"

namespace ibid {
namespace {

using nlohmann::json;

struct QuotaField {
  absl::string_view name;
  uint64_t TenantQuota::*value;
};
constexpr QuotaField kFields[] = {
    {"publish_bytes_per_second_max", &TenantQuota::publish_bytes_per_second_max},
    {"host_bytes_max", &TenantQuota::host_bytes_max},
    {"disk_bytes_max", &TenantQuota::disk_bytes_max},
    {"gpu_bytes_max", &TenantQuota::gpu_bytes_max}};
constexpr absl::string_view kFieldNames =
    "\"publish_bytes_per_second_max\", \"host_bytes_max\", \"disk_bytes_max\" or "
    "\"gpu_bytes_max\"";
constexpr size_t kFileBytesMax = size_t{16} << 20;

class TenantsReader {
 public:
  explicit TenantsReader(absl::string_view path) : path_(path) {}

  absl::StatusOr<TenantQuotas> Read(absl::string_view text) {
    json root;
    try {
      root = json::parse(text.begin(), text.end());
    } catch (const json::parse_error& error) {
      return Wrong("", error.what());  // it names line and column
    }
    if (!root.is_object()) return Wrong("", "use an object with \"default\" and \"tenants\"");
    TenantQuotas quotas;
    for (const auto& [name, value] : root.items()) {
      if (name == "default") {
        IBID_ASSIGN_OR_RETURN(quotas.default_quota, QuotaOf("default", value));
      } else if (name == "tenants") {
        IBID_RETURN_IF_ERROR(ReadTenants(value, &quotas));
      } else {
        return Wrong(name, "not known; use \"default\" and \"tenants\"");
      }
    }
    return quotas;
  }

 private:
  absl::Status Wrong(absl::string_view field, absl::string_view remedy) const {
    return absl::InvalidArgumentError(
        absl::StrCat("--tenants_file=", path_, ": ", field, field.empty() ? "" : ": ", remedy));
  }

  absl::Status ReadTenants(const json& value, TenantQuotas* quotas) const {
    if (!value.is_object()) return Wrong("tenants", "use an object with a quota for each name");
    for (const auto& [name, quota_value] : value.items()) {
      if (name.size() > kTextFieldBytesMax) return Wrong("tenants", "a name is too long");
      IBID_ASSIGN_OR_RETURN(quotas->tenants[name],
                            QuotaOf(absl::StrCat("tenants.", name), quota_value));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<TenantQuota> QuotaOf(const std::string& field, const json& value) const {
    if (!value.is_object()) return Wrong(field, absl::StrCat("use an object with ", kFieldNames));
    TenantQuota quota;
    for (const auto& [name, number] : value.items()) {
      const std::string full_name = absl::StrCat(field, ".", name);
      const auto field_of =
          std::find_if(std::begin(kFields), std::end(kFields),
                       [&wanted = name](const QuotaField& each) { return each.name == wanted; });
      if (field_of == std::end(kFields)) {
        return Wrong(full_name, absl::StrCat("not known; use ", kFieldNames));
      }
      if (!number.is_number_unsigned()) {
        return Wrong(full_name, "use a number of bytes as 100000000; leave it out for no limit");
      }
      quota.*field_of->value = number.get<uint64_t>();
    }
    return quota;
  }

  const absl::string_view path_;
};

}  // namespace

absl::StatusOr<TenantQuotas> ReadTenants(absl::string_view path, absl::string_view text) {
  return TenantsReader(path).Read(text);
}

absl::StatusOr<TenantQuotas> ReadTenantsFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadTextFile(path, kFileBytesMax);
  if (!text.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tenants_file=", path, ": ", text.status().message(), "; give a JSON file"));
  }
  return ReadTenants(path, *text);
}

}  // namespace ibid
