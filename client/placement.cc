#include "client/placement.h"

#include <cstring>
#include <utility>

#include "core/check.h"

namespace ibid {
namespace {

constexpr absl::string_view kPlacementDomain("ibid.placement.v1\0", 18);

uint64_t FirstEightBytes(const Digest& digest) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | digest[i];
  return value;
}

}  // namespace

uint64_t PlacementWeight(absl::string_view server, const BlockKey& group_key) {
  Sha256 hash;
  hash.Add(kPlacementDomain).AddU32(static_cast<uint32_t>(server.size())).Add(server);
  return FirstEightBytes(hash.Add(group_key.digest).Finish());
}

uint32_t PlaceGroup(std::span<const std::string> servers, const BlockKey& group_key) {
  IBID_CHECK(!servers.empty());
  if (servers.size() == 1) return 0;
  uint32_t best = 0;
  uint64_t best_weight = 0;
  for (uint32_t i = 0; i < servers.size(); ++i) {
    const uint64_t weight = PlacementWeight(servers[i], group_key);
    if (i == 0 || weight > best_weight || (weight == best_weight && servers[i] < servers[best])) {
      best = i;
      best_weight = weight;
    }
  }
  return best;
}

Placement::Placement(std::vector<std::string> servers, uint32_t group_blocks)
    : servers_(std::move(servers)), group_blocks_(group_blocks) {
  IBID_CHECK(!servers_.empty() && servers_.size() < kUnplaced);
  IBID_CHECK(group_blocks_ > 0);
}

std::vector<uint16_t> Placement::Place(std::span<const ChainLink> links) {
  if (servers_.size() == 1) return std::vector<uint16_t>(links.size(), 0);
  std::vector<uint16_t> placed(links.size(), kUnplaced);
  for (size_t i = 0; i < links.size(); ++i) {
    if (links[i].position % group_blocks_ == 0) {
      placed[i] = static_cast<uint16_t>(PlaceGroup(servers_, links[i].key));
    }
  }
  MutexLock lock(mutex_);
  for (size_t i = 0; i < links.size(); ++i) {
    if (links[i].position % group_blocks_ != 0) {
      const bool follows = i > 0 && links[i - 1].key == links[i].parent;
      placed[i] = follows ? placed[i - 1] : Recall(links[i].parent);
    }
    if (placed[i] != kUnplaced) Remember(links[i].key, placed[i]);
  }
  return placed;
}

uint16_t Placement::Recall(const BlockKey& key) const {
  const uint64_t name = FirstEightBytes(key.digest);
  if (auto it = young_.find(name); it != young_.end()) return it->second;
  if (auto it = old_.find(name); it != old_.end()) return it->second;
  return kUnplaced;
}

void Placement::Remember(const BlockKey& key, uint16_t server) {
  if (young_.size() >= kRememberedBlocksMax) {
    old_ = std::move(young_);
    young_.clear();
  }
  young_[FirstEightBytes(key.digest)] = server;
}

}  // namespace ibid
