#include "client/replay/trace.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/limit.h"

namespace ibid {
namespace {

using Json = nlohmann::json;

// The finaliser of splitmix64: ids of a trace are small and dense, fingerprints are not.
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

class TraceReader {
 public:
  TraceReader(absl::string_view name, uint32_t block_tokens) : name_(name) {
    trace_.block_tokens = block_tokens;
  }

  absl::Status Read(std::istream& lines) {
    std::vector<char> line(kTraceLineBytesMax + 2);
    while (lines.getline(line.data(), static_cast<std::streamsize>(line.size()))) {
      ++line_number_;
      // It counts the line's end, which the last line may lack.
      const auto taken = static_cast<size_t>(lines.gcount());
      const size_t length = lines.eof() ? taken : taken - 1;
      IBID_RETURN_IF_ERROR(ReadLine({line.data(), length}));
    }
    if (lines.bad()) return absl::UnavailableError(absl::StrCat(name_, ": cannot be read"));
    // A full buffer stops getline, and so does the end of the file.
    if (!lines.eof()) {
      ++line_number_;
      return LimitReached(Where("is too long"), "kTraceLineBytesMax", kTraceLineBytesMax);
    }
    if (trace_.requests.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(name_, ": has no request; give a file of JSON lines, one request each"));
    }
    return absl::OkStatus();
  }

  Trace Take() { return std::move(trace_); }

 private:
  std::string Where(absl::string_view text) const {
    return absl::StrCat(name_, ":", line_number_, ": ", text);
  }
  absl::Status Wrong(absl::string_view text) const {
    return absl::InvalidArgumentError(Where(text));
  }

  absl::Status ReadLine(absl::string_view line) {
    if (line.find_first_not_of(" \t\r") == absl::string_view::npos) return absl::OkStatus();
    const Json json = Json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
    // The parser takes a zero byte for the end of its input.
    if (!json.is_object() || line.find('\0') != absl::string_view::npos) {
      return Wrong(
          "is no JSON object; give one request a line: {\"timestamp\": 0, \"input_length\": 700, "
          "\"hash_ids\": [0, 1]}");
    }
    IBID_RETURN_IF_ERROR(ReadTimestamp(json));
    IBID_ASSIGN_OR_RETURN(const uint32_t tokens, InputTokens(json));
    const auto ids = json.find("hash_ids");
    if (ids == json.end() || !ids->is_array()) {
      return Wrong("\"hash_ids\" is no array; give the ids of the request's blocks in order");
    }
    const uint64_t blocks = (uint64_t{tokens} + trace_.block_tokens - 1) / trace_.block_tokens;
    if (ids->size() != blocks) {
      return Wrong(absl::StrCat("input_length ", tokens, " is ", blocks, " blocks of ",
                                trace_.block_tokens, " tokens, but there are ", ids->size(),
                                " hash_ids; is block_tokens right?"));
    }
    return ReadChain(*ids, tokens);
  }

  absl::Status ReadTimestamp(const Json& json) {
    const auto timestamp = json.find("timestamp");
    if (timestamp == json.end() || !timestamp->is_number()) {
      return Wrong("\"timestamp\" is no number; give the time of arrival");
    }
    const double time = timestamp->get<double>();
    if (time < last_timestamp_) {
      return Wrong("is earlier than the line before; sort the trace by its timestamps");
    }
    last_timestamp_ = time;
    return absl::OkStatus();
  }

  absl::StatusOr<uint32_t> InputTokens(const Json& json) const {
    const auto length = json.find("input_length");
    if (length == json.end() || !length->is_number_unsigned() || length->get<uint64_t>() == 0 ||
        length->get<uint64_t>() > UINT32_MAX) {
      return Wrong("\"input_length\" is no count of tokens; give the prompt's length");
    }
    return length->get<uint32_t>();
  }

  absl::Status ReadChain(const Json& ids, uint32_t tokens) {
    if (trace_.chains.size() + ids.size() > kTraceBlocksMax) {
      return LimitReached(Where("has too many blocks up to here; cut it into several traces"),
                          "kTraceBlocksMax", kTraceBlocksMax);
    }
    TraceRequest request;
    request.chain_begin = trace_.chains.size();
    request.blocks_count = static_cast<uint32_t>(ids.size());
    request.input_tokens = tokens;
    EntryId parent = kNoEntry;
    for (const Json& id : ids) {
      if (!id.is_number_unsigned()) {
        return Wrong("a hash id is no unsigned number; number the trace's prefixes from 0");
      }
      const std::optional<EntryId> block = BlockOf(id.get<uint64_t>(), parent);
      if (!block.has_value()) {
        return Wrong(absl::StrCat(
            "hash id ", id.get<uint64_t>(),
            " follows another one than before; an id must stand for the whole prefix up to it"));
      }
      trace_.chains.push_back(*block);
      parent = *block;
    }
    trace_.input_tokens += tokens;
    trace_.requests.push_back(request);
    return absl::OkStatus();
  }

  // Nothing when the id had another parent before.
  std::optional<EntryId> BlockOf(uint64_t hash_id, EntryId parent) {
    const auto [it, is_new] =
        blocks_.try_emplace(hash_id, static_cast<EntryId>(trace_.parents.size()));
    if (is_new) {
      trace_.parents.push_back(parent);
      trace_.fingerprints.push_back(Mix(hash_id));
    }
    if (trace_.parents[it->second] != parent) return std::nullopt;
    return it->second;
  }

  const std::string name_;
  Trace trace_;
  absl::flat_hash_map<uint64_t, EntryId> blocks_;  // by hash id
  double last_timestamp_ = 0;
  uint64_t line_number_ = 0;
};

static_assert(kTraceBlocksMax < kNoEntry);

}  // namespace

absl::StatusOr<Trace> ParseTrace(std::istream& lines, absl::string_view name,
                                 uint32_t block_tokens) {
  IBID_CHECK(block_tokens > 0);
  TraceReader reader(name, block_tokens);
  IBID_RETURN_IF_ERROR(reader.Read(lines));
  Trace trace = reader.Take();
  trace.name = std::filesystem::path(std::string(name)).stem().string();
  return trace;
}

absl::StatusOr<Trace> SplitBlocks(const Trace& trace, uint32_t block_tokens) {
  if (block_tokens == 0 || trace.block_tokens % block_tokens != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "blocks of ", trace.block_tokens, " tokens cannot be cut into blocks of ", block_tokens));
  }
  const uint32_t pieces_max = trace.block_tokens / block_tokens;
  if (trace.chains.size() > kTraceBlocksMax / pieces_max) {
    return LimitReached(absl::StrCat(trace.name, ": has too many blocks of ", block_tokens,
                                     " tokens; cut it into several traces"),
                        "kTraceBlocksMax", kTraceBlocksMax);
  }
  std::vector<uint32_t> pieces(trace.blocks_count(), pieces_max);
  for (const TraceRequest& request : trace.requests) {
    if (request.blocks_count == 0) continue;
    const uint32_t before = (request.blocks_count - 1) * trace.block_tokens;
    const uint32_t own = (request.input_tokens - before + block_tokens - 1) / block_tokens;
    uint32_t& count = pieces[trace.ChainOf(request).back()];
    count = std::min(count, own);
  }
  Trace split;
  split.name = trace.name;
  split.block_tokens = block_tokens;
  split.input_tokens = trace.input_tokens;
  std::vector<EntryId> first(trace.blocks_count(), kNoEntry);  // piece of a block
  for (const TraceRequest& request : trace.requests) {
    TraceRequest cut = request;
    cut.chain_begin = split.chains.size();
    EntryId parent = kNoEntry;
    for (const EntryId b : trace.ChainOf(request)) {
      const bool is_new = first[b] == kNoEntry;
      if (is_new) first[b] = static_cast<EntryId>(split.parents.size());
      for (uint32_t i = 0; i < pieces[b]; ++i) {
        split.chains.push_back(first[b] + i);
        if (is_new) {
          split.parents.push_back(parent);
          split.fingerprints.push_back(Mix(trace.fingerprints[b] + i));
        }
        parent = first[b] + i;
      }
    }
    cut.blocks_count = static_cast<uint32_t>(split.chains.size() - cut.chain_begin);
    split.requests.push_back(cut);
  }
  return split;
}

absl::StatusOr<Trace> ReadTrace(const std::string& path, uint32_t block_tokens) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is a folder; give a trace file"));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  return ParseTrace(file, path, block_tokens);
}

}  // namespace ibid
