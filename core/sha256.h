// SHA-256 over pieces, and the 32-byte digest that keys and namespaces are made of.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ibid {

using Digest = std::array<uint8_t, 32>;

// A hash under construction. Not thread-safe. Integers are added little-endian.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  Sha256& Add(const void* bytes, size_t count);
  Sha256& Add(absl::string_view bytes) { return Add(bytes.data(), bytes.size()); }
  Sha256& Add(const Digest& digest) { return Add(digest.data(), digest.size()); }
  Sha256& AddU8(uint8_t value) { return Add(&value, 1); }
  Sha256& AddU32(uint32_t value);

  // The digest of all that was added; the object starts again empty.
  Digest Finish();

 private:
  void* context_;
};

// 64 lower-case hexadecimal digits.
std::string DigestToHex(const Digest& digest);
// The first 12 digits: what logs and tables show.
std::string DigestToShortHex(const Digest& digest);
// Errors: InvalidArgument unless `hex` is 64 hexadecimal digits.
absl::StatusOr<Digest> DigestFromHex(absl::string_view hex);
// Errors: InvalidArgument unless `bytes` has 32 bytes; `what` names the field in the message.
absl::StatusOr<Digest> DigestFromBytes(absl::string_view bytes, absl::string_view what);
inline absl::string_view DigestBytes(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace ibid
