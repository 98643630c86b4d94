// The quotas of tenants as a JSON file:
//
//   {"default": {"publish_bytes_per_second_max": 100000000},
//    "tenants": {"team-a": {"host_bytes_max": 8000000000, "disk_bytes_max": 100000000000,
//                           "gpu_bytes_max": 4000000000},
//                "batch": {}}}
//
// A limit that is not named is none. Each part may be missing.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache_server/tenant_table.h"

namespace ibid {

// Errors: InvalidArgument, with the file and the line or the field that is wrong, and what to write
// instead.
absl::StatusOr<TenantQuotas> ReadTenantsFile(const std::string& path);
// The same of the file's text, which errors call `path`.
absl::StatusOr<TenantQuotas> ReadTenants(absl::string_view path, absl::string_view text);

}  // namespace ibid
