// Chains of keys and digests as the `bytes` fields of messages.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/block_key.h"
#include "core/limit.h"
#include "transport/limits.h"

namespace ibid {

inline std::string DigestString(const Digest& digest) {
  return std::string(reinterpret_cast<const char*>(digest.data()), digest.size());
}

inline std::string EncodeKeys(std::span<const BlockKey> keys) {
  static_assert(sizeof(BlockKey) == sizeof(Digest), "keys lie without gaps");
  return std::string(reinterpret_cast<const char*>(keys.data()), keys.size_bytes());
}

// Errors: InvalidArgument (not a multiple of 32 bytes), ResourceExhausted (kRequestKeysMax).
inline absl::StatusOr<std::vector<BlockKey>> DecodeKeys(absl::string_view bytes) {
  if (bytes.size() % sizeof(BlockKey) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("keys: ", bytes.size(), " bytes are not a multiple of 32"));
  }
  const size_t count = bytes.size() / sizeof(BlockKey);
  if (count > kRequestKeysMax) {
    return LimitReached(absl::StrCat(count, " keys in one request"), "kRequestKeysMax",
                        kRequestKeysMax);
  }
  std::vector<BlockKey> keys(count);
  if (count > 0) std::memcpy(keys.data(), bytes.data(), bytes.size());
  return keys;
}

}  // namespace ibid
