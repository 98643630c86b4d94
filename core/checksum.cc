#include "core/checksum.h"

#include <xxhash.h>
#if defined(__x86_64__)
#include <emmintrin.h>
// From here on XXH3_* are those that choose the instructions at run time (docs/adr/0010).
#include <xxh_x86dispatch.h>
#endif

#include <algorithm>
#include <cstring>

#include "core/check.h"

namespace ibid {
namespace {

// Below, whoever reads the copy next may find it in the cache.
constexpr size_t kPastCacheBytesMin = size_t{512} << 10;
constexpr size_t kCopyPieceBytes = size_t{32} << 10;

#if defined(__x86_64__)
constexpr size_t kLineBytes = 64;

// REQUIRES: `bytes` is a multiple of kLineBytes, `to` aligned to it.
void StreamLines(const std::byte* from, std::byte* to, size_t bytes) {
  for (size_t i = 0; i < bytes; i += kLineBytes) {
    const auto* const source = reinterpret_cast<const __m128i*>(from + i);
    auto* const target = reinterpret_cast<__m128i*>(to + i);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1),
                  c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
}
#endif

}  // namespace

uint64_t Checksum(ByteView bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

uint64_t CopyLarge(ByteView from, MutableByteView to) {
  IBID_CHECK(from.size() == to.size()) << from.size() << " " << to.size();
  ChecksumStream checksum;
#if defined(__x86_64__)
  const bool is_streamed =
      from.size() >= kPastCacheBytesMin && reinterpret_cast<uintptr_t>(to.data()) % kLineBytes == 0;
#endif
  for (size_t at = 0; at < from.size(); at += kCopyPieceBytes) {
    const size_t bytes = std::min(kCopyPieceBytes, from.size() - at);
    checksum.Add(from.subspan(at, bytes));
    size_t done = 0;
#if defined(__x86_64__)
    if (is_streamed) {
      done = bytes / kLineBytes * kLineBytes;
      StreamLines(from.data() + at, to.data() + at, done);
    }
#endif
    std::memcpy(to.data() + at + done, from.data() + at + done, bytes - done);
  }
#if defined(__x86_64__)
  if (is_streamed) _mm_sfence();
#endif
  return checksum.Finish();
}

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
