#include "cache_server/namespace_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/host_memory.h"
#include "core/limit.h"

namespace ibid {

NamespacePtr NamespaceTable::Add(const NamespaceId& id, uint32_t number, const KvLayout& layout) {
  auto info = std::make_shared<NamespaceInfo>();
  info->id = id;
  info->number = number;
  info->layout = layout;
  info->payload_bytes = layout.PayloadBytes();
  info->slot_pages = static_cast<uint32_t>(RoundUp(info->payload_bytes, kPageBytes) / kPageBytes);
  by_id_[id] = info;
  by_number_[number] = info;
  next_number_ = std::max(next_number_, number + 1);
  return info;
}

absl::StatusOr<NamespacePtr> NamespaceTable::Open(const NamespaceId& id, const KvLayout& layout) {
  MutexLock lock(mutex_);
  const auto it = by_id_.find(id);
  if (it != by_id_.end()) {
    if (it->second->layout == layout) return it->second;
    return absl::FailedPreconditionError(
        absl::StrCat("namespace ", DigestToShortHex(id.digest), " is open with layout ",
                     it->second->layout.ToString(), ", not ", layout.ToString()));
  }
  if (by_id_.size() >= namespaces_max_) {
    return LimitReached("too many namespaces have blocks", "namespaces_max", namespaces_max_);
  }
  return Add(id, next_number_, layout);
}

void NamespaceTable::Restore(const NamespaceId& id, uint32_t number, const KvLayout& layout,
                             uint32_t tenant) {
  MutexLock lock(mutex_);
  IBID_CHECK(!by_id_.contains(id) && !by_number_.contains(number)) << number;
  const NamespacePtr info = Add(id, number, layout);
  info->tenant.store(tenant);
  info->is_on_disk.store(true);
}

void NamespaceTable::NeverUse(uint32_t number) {
  MutexLock lock(mutex_);
  next_number_ = std::max(next_number_, number + 1);
}

NamespacePtr NamespaceTable::Find(const NamespaceId& id) const {
  MutexLock lock(mutex_);
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : it->second;
}

NamespacePtr NamespaceTable::Find(uint32_t number) const {
  MutexLock lock(mutex_);
  const auto it = by_number_.find(number);
  return it == by_number_.end() ? nullptr : it->second;
}

std::vector<NamespacePtr> NamespaceTable::CloseAllExcept(
    const absl::flat_hash_set<uint32_t>& numbers_used) {
  MutexLock lock(mutex_);
  std::vector<NamespacePtr> closed;
  for (const auto& [number, info] : by_number_) {
    if (!numbers_used.contains(number)) closed.push_back(info);
  }
  for (const NamespacePtr& info : closed) {
    info->is_closed.store(true);
    by_id_.erase(info->id);
    by_number_.erase(info->number);
  }
  return closed;
}

std::vector<NamespacePtr> NamespaceTable::All() const {
  MutexLock lock(mutex_);
  std::vector<NamespacePtr> all;
  for (const auto& [number, info] : by_number_) all.push_back(info);
  return all;
}

size_t NamespaceTable::count() const {
  MutexLock lock(mutex_);
  return by_id_.size();
}

}  // namespace ibid
