#include "cache_server/disk_runs.h"

#include <algorithm>
#include <numeric>

namespace ibid {

std::vector<std::vector<DiskRun>> RunsByExtent(std::span<const DiskSlot> slots,
                                               uint32_t pages_per_extent) {
  std::vector<size_t> order(slots.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return slots[a].page < slots[b].page; });
  std::vector<std::vector<DiskRun>> extents;
  uint64_t extent = 0, end_page = 0;
  for (const size_t i : order) {
    const DiskSlot& slot = slots[i];
    const bool is_same_extent = !extents.empty() && slot.page / pages_per_extent == extent;
    if (!is_same_extent) extents.emplace_back();
    if (!is_same_extent || slot.page != end_page) extents.back().emplace_back();
    extents.back().back().push_back(i);
    extent = slot.page / pages_per_extent;
    end_page = uint64_t{slot.page} + slot.pages_count;
  }
  return extents;
}

}  // namespace ibid
