#include "client/replay/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/format.h"
#include "core/check.h"

namespace ibid {
namespace {

using nlohmann::ordered_json;

constexpr int kColumnWidthMin = 10;

int ColumnWidth(absl::string_view policy) {
  return std::max(kColumnWidthMin, static_cast<int>(policy.size()) + 2);
}

// How many rows from the first on are of one policy.
size_t CapacitiesCount(std::span<const SweepRow> rows) {
  const auto end = std::find_if(rows.begin(), rows.end(), [&](const SweepRow& row) {
    return row.policy != rows[0].policy || row.trace_index != rows[0].trace_index;
  });
  return static_cast<size_t>(end - rows.begin());
}

void AppendTrace(const Trace& trace, std::span<const SweepRow> rows, std::string* table) {
  absl::StrAppendFormat(table, "%s: %d requests for %d tokens, %d different blocks of %d tokens\n",
                        trace.name, trace.requests.size(), trace.input_tokens, trace.blocks_count(),
                        trace.block_tokens);
  const size_t capacities_count = CapacitiesCount(rows);
  const bool has_bytes = rows[0].capacity_bytes > 0;
  absl::StrAppendFormat(table, "%10s%11s", "capacity", "blocks");
  if (has_bytes) absl::StrAppendFormat(table, "%12s", "bytes");
  for (size_t i = 0; i < rows.size(); i += capacities_count) {
    absl::StrAppendFormat(table, "%*s", ColumnWidth(rows[i].policy), rows[i].policy);
  }
  absl::StrAppend(table, "\n");
  for (size_t c = 0; c < capacities_count; ++c) {
    absl::StrAppendFormat(table, "%9.3g%%%11d", 100 * rows[c].capacity_fraction,
                          rows[c].capacity_blocks);
    if (has_bytes) absl::StrAppendFormat(table, "%12s", cli::Bytes(rows[c].capacity_bytes));
    for (size_t i = c; i < rows.size(); i += capacities_count) {
      absl::StrAppendFormat(table, "%*.4f", ColumnWidth(rows[i].policy),
                            rows[i].result.token_hit_ratio());
    }
    absl::StrAppend(table, "\n");
  }
}

}  // namespace

std::string SweepTable(std::span<const Trace> traces, std::span<const SweepRow> rows) {
  std::string table = "Share of prompt tokens found in the cache, by its capacity.\n";
  for (size_t t = 0; t < traces.size(); ++t) {
    const auto end = std::find_if(rows.begin(), rows.end(),
                                  [&](const SweepRow& row) { return row.trace_index != t; });
    const auto count = static_cast<size_t>(end - rows.begin());
    IBID_CHECK(count > 0) << "no row of " << traces[t].name;
    absl::StrAppend(&table, "\n");
    AppendTrace(traces[t], rows.first(count), &table);
    rows = rows.subspan(count);
  }
  return table;
}

std::string SweepJson(std::span<const Trace> traces, std::span<const SweepRow> rows) {
  ordered_json json = {{"traces", ordered_json::array()}, {"rows", ordered_json::array()}};
  for (const Trace& trace : traces) {
    json["traces"].push_back({{"trace", trace.name},
                              {"requests", trace.requests.size()},
                              {"input_tokens", trace.input_tokens},
                              {"block_tokens", trace.block_tokens},
                              {"blocks", trace.blocks_count()}});
  }
  for (const SweepRow& row : rows) {
    json["rows"].push_back(
        {{"trace", traces[row.trace_index].name},
         {"policy", row.policy},
         {"capacity_fraction", row.capacity_fraction},
         {"capacity_blocks", row.capacity_blocks},
         {"capacity_bytes",
          row.capacity_bytes == 0 ? ordered_json() : ordered_json(row.capacity_bytes)},
         {"token_hit_ratio", row.result.token_hit_ratio()},
         {"block_hit_ratio", row.result.block_hit_ratio()},
         {"evicted_blocks", row.result.evicted_blocks}});
  }
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace ibid
