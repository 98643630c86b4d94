// The quotas of tenants as a JSON file:
//
//   {"default": {"publish_bytes_per_second_max": 100000000},
//    "tenants": {"team-a": {"publish_bytes_per_second_max": 400000000}, "batch": {}}}
//
// A limit that is not named is none. Each part may be missing.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cache_server/tenant_table.h"

namespace ibid {

// Sets what the file says. Errors: InvalidArgument, with the file and the line or the field that is
// wrong, and what to write instead; ResourceExhausted (tenants_max).
absl::Status ReadTenantsFile(const std::string& path, TenantTable* tenants);
// The same for the file's text, which errors call `path`.
absl::Status SetTenants(absl::string_view path, absl::string_view text, TenantTable* tenants);

}  // namespace ibid
