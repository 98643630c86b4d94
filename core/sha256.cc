#include "core/sha256.h"

#include <openssl/evp.h>

#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace ibid {
namespace {

static_assert(std::endian::native == std::endian::little,
              "formats are written as they lie in memory");

// Looking the algorithm up costs more than hashing a block: it is done once.
const EVP_MD* Algorithm() {
  static const EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return algorithm;
}

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  IBID_CHECK(context_ != nullptr && Algorithm() != nullptr) << "OpenSSL offers no SHA-256";
  IBID_CHECK(EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_), Algorithm(), nullptr) == 1);
}

Sha256::~Sha256() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }

Sha256& Sha256::Add(const void* bytes, size_t count) {
  if (count == 0) return *this;
  IBID_CHECK(EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), bytes, count) == 1);
  return *this;
}

Sha256& Sha256::AddU32(uint32_t value) { return Add(&value, sizeof value); }

Digest Sha256::Finish() {
  Digest digest;
  auto* context = static_cast<EVP_MD_CTX*>(context_);
  IBID_CHECK(EVP_DigestFinal_ex(context, digest.data(), nullptr) == 1);
  IBID_CHECK(EVP_DigestInit_ex(context, Algorithm(), nullptr) == 1);
  return digest;
}

std::string DigestToHex(const Digest& digest) {
  return absl::BytesToHexString(DigestBytes(digest));
}

std::string DigestToShortHex(const Digest& digest) { return DigestToHex(digest).substr(0, 12); }

absl::StatusOr<Digest> DigestFromHex(absl::string_view hex) {
  if (hex.size() != 64 ||
      hex.find_first_not_of("0123456789abcdefABCDEF") != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("not 64 hexadecimal digits: '", hex.substr(0, 80), "'"));
  }
  return DigestFromBytes(absl::HexStringToBytes(hex), "key");
}

absl::StatusOr<Digest> DigestFromBytes(absl::string_view bytes, absl::string_view what) {
  Digest digest;
  if (bytes.size() != digest.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " has ", bytes.size(), " bytes; 32 are needed"));
  }
  std::memcpy(digest.data(), bytes.data(), digest.size());
  return digest;
}

}  // namespace ibid
