// The policies by name.
#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/eviction/arc_policy.h"
#include "core/eviction/eviction_policy.h"
#include "core/eviction/hazard_policy.h"
#include "core/eviction/lru_policy.h"
#include "core/eviction/s3fifo_policy.h"

namespace ibid {
namespace {

constexpr std::array<absl::string_view, 5> kNames = {"hazard", "lru", "arc", "s3fifo-10",
                                                     "s3fifo-60"};

// Blocks of a chain lie anywhere in the array of nodes: they are fetched this far ahead.
constexpr size_t kPrefetchDistance = 12;

}  // namespace

void EvictionPolicy::UseEach(const BlockLists& lists, std::span<const ChainBlock> chain) {
  for (size_t i = chain.size(); i > 0; --i) {
    if (i > kPrefetchDistance) lists.Prefetch(chain[i - 1 - kPrefetchDistance].id);
    const EntryId b = chain[i - 1].id;
    const Place place = lists.PlaceOf(b);
    if (place != Place::kOutside && place != Place::kNew) OnUse(b);
  }
}

std::span<const absl::string_view> EvictionPolicyNames() { return kNames; }

absl::Status CheckEvictionPolicyName(absl::string_view name) {
  if (std::find(kNames.begin(), kNames.end(), name) != kNames.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("unknown eviction policy \"", name,
                                                 "\"; use one of ", absl::StrJoin(kNames, ", ")));
}

absl::StatusOr<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(absl::string_view name,
                                                                   BlockLists& lists) {
  IBID_RETURN_IF_ERROR(CheckEvictionPolicyName(name));
  std::unique_ptr<EvictionPolicy> policy;
  if (name == "lru") policy = std::make_unique<LruPolicy>(lists);
  if (name == "hazard") policy = std::make_unique<HazardPolicy>(lists);
  if (name == "arc") policy = std::make_unique<ArcPolicy>(lists);
  if (name == "s3fifo-10") policy = std::make_unique<S3FifoPolicy>(lists, /*small_percent=*/10);
  if (name == "s3fifo-60") policy = std::make_unique<S3FifoPolicy>(lists, /*small_percent=*/60);
  IBID_CHECK(policy != nullptr) << name << " has a name and no policy";
  return policy;
}

}  // namespace ibid
