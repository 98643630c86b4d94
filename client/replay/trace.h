// A recorded stream of requests: which blocks each one asked for, in order of arrival.
//
// The file is JSON lines, one request each, as Mooncake publishes them:
//   {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353]}
// input_length is in tokens. hash_ids names its blocks of block_tokens tokens, the last of which
// may hold fewer. An id stands for the whole prefix up to its block's end, so that an id always
// follows the same one. Lines are in order of their timestamps. Other fields are not read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/eviction/block_lists.h"

namespace ibid {

struct TraceRequest {
  size_t chain_begin = 0;  // in Trace::chains
  uint32_t blocks_count = 0;
  uint32_t input_tokens = 0;
};

// Blocks are numbered from 0, in order of their first request.
struct Trace {
  std::string name;  // of the file, without folder and ending
  uint32_t block_tokens = 0;
  std::vector<TraceRequest> requests;
  std::vector<EntryId> chains;         // of all requests, one after another
  std::vector<EntryId> parents;        // by block; kNoEntry: it is the first of its chain
  std::vector<uint64_t> fingerprints;  // by block
  uint64_t input_tokens = 0;           // of all requests

  uint64_t blocks_count() const { return parents.size(); }
  std::span<const EntryId> ChainOf(const TraceRequest& request) const {
    return std::span(chains).subspan(request.chain_begin, request.blocks_count);
  }
  // Its last block is partly filled.
  bool HasTail(const TraceRequest& request) const {
    return request.input_tokens % block_tokens != 0;
  }
};

inline constexpr size_t kTraceLineBytesMax = size_t{16} << 20;
inline constexpr size_t kTraceBlocksMax = size_t{1} << 28;  // asked for by all requests together

// Errors: NotFound, or InvalidArgument with file, line and what to change; ResourceExhausted (the
// limits above). REQUIRES: block_tokens > 0.
absl::StatusOr<Trace> ReadTrace(const std::string& path, uint32_t block_tokens);
// The same from a stream; `name` stands for the file in errors and in the result.
absl::StatusOr<Trace> ParseTrace(std::istream& lines, absl::string_view name,
                                 uint32_t block_tokens);
// The same requests with each block cut into blocks of `block_tokens` tokens. A block that is the
// last of some request ends where the shortest such request ends.
// Errors: InvalidArgument (the trace's blocks are no multiple), ResourceExhausted
// (kTraceBlocksMax).
absl::StatusOr<Trace> SplitBlocks(const Trace& trace, uint32_t block_tokens);

}  // namespace ibid
