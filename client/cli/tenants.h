// Quotas and what tenants use of them, as lines for people and as JSON.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "nlohmann/json.hpp"
#include "transport/admin_channel.h"

namespace ibid::cli {

// A limit of a quota: a flag, and a field of the JSON, of its name.
struct LimitOfQuota {
  const char* name;
  absl::Flag<std::string>* flag;
  std::optional<uint64_t> QuotaValues::*value;
  const char* tier;  // null: it is the rate
  uint64_t TenantState::*used = nullptr;
};

const std::vector<LimitOfQuota>& QuotaLimits();

std::string QuotaText(const QuotaValues& quota);
std::string TenantText(const TenantState& tenant);
nlohmann::ordered_json ToJson(const QuotaValues& quota);
nlohmann::ordered_json ToJson(const TenantState& tenant);

// The quotas of each server that answered, for `ibid status` and `ibid top`. Who has quotas of his
// own comes first, then who stores most.
class QuotaReader {
 public:
  using Answers = std::vector<absl::StatusOr<QuotaList>>;

  // Asks who is OK in `servers`, which are the same each time. Who said that it tells none is not
  // asked again.
  Answers Read(const std::vector<ServerStats>& servers, absl::Duration timeout);

 private:
  struct Server {
    std::unique_ptr<AdminChannel> channel;  // null: not connected yet
    absl::Status refusal;
  };
  std::vector<Server> servers_;
};

// At most kTenantsShown of the tenants, and how many more there are. A server that does not say
// costs a line, not an error: it may be older, or tell only administrators.
inline constexpr size_t kTenantsShown = 8;
std::string QuotaLines(const absl::StatusOr<QuotaList>& quotas);
nlohmann::ordered_json QuotaJson(const absl::StatusOr<QuotaList>& quotas);

}  // namespace ibid::cli
