#include "core/checksum.h"

#include <xxhash.h>

#include "core/check.h"

namespace ibid {

uint64_t Checksum(ByteView bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

ChecksumStream::ChecksumStream() : state_(XXH3_createState()) {
  IBID_CHECK(state_ != nullptr);
  Reset();
}

ChecksumStream::~ChecksumStream() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }

void ChecksumStream::Add(ByteView piece) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state_), piece.data(), piece.size());
}

uint64_t ChecksumStream::Finish() const {
  return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_));
}

void ChecksumStream::Reset() { XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_)); }

}  // namespace ibid
