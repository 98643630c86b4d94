// How the bytes of a block are laid out, and all arithmetic on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ibid {

enum class KvDtype { kF32, kF16, kBf16, kFp8E4m3, kInt8 };
enum class KvOrder { kHnd, kNhd, kOpaque };  // hnd: head, token, dimension (ours)
enum class KvScales {
  kNone,
  kTokenHead
};  // token_head: one f32 per token and KV head, for K and for V

size_t DtypeBytes(KvDtype dtype);
absl::string_view DtypeName(KvDtype dtype);
absl::StatusOr<KvDtype> ParseDtype(absl::string_view name);

// The form of a block's payload: for each layer K [kv_heads][block_tokens][k_dim], then V
// [kv_heads][block_tokens][v_dim], then the scales of K and of V if any. One contiguous piece; a
// tail block has the same size, its unused tokens zero.
struct KvLayout {
  uint32_t layers = 0;
  uint32_t kv_heads = 0;
  uint32_t k_dim = 0;
  uint32_t v_dim = 0;  // 0 for MLA
  KvDtype dtype = KvDtype::kF32;
  uint32_t block_tokens = 16;
  KvOrder order = KvOrder::kHnd;
  KvScales scales = KvScales::kNone;

  bool operator==(const KvLayout&) const = default;

  // Canonical text:
  // `layers=3;kv_heads=2;k_dim=64;v_dim=64;dtype=bf16;block_tokens=16;order=hnd;scales=none`.
  std::string ToString() const;
  // Accepts canonical text only, so that one layout has one namespace.
  // Errors: InvalidArgument that names the field.
  static absl::StatusOr<KvLayout> Parse(absl::string_view text);
  // Errors: InvalidArgument when a dimension is 0 (v_dim may be) or the payload exceeds
  // kBlockPayloadBytesMax.
  absl::Status Validate() const;

  // All in bytes. REQUIRES: Validate() is OK.
  size_t KBytes() const { return size_t{kv_heads} * block_tokens * k_dim * DtypeBytes(dtype); }
  size_t VBytes() const { return size_t{kv_heads} * block_tokens * v_dim * DtypeBytes(dtype); }
  size_t ScaleBytes() const;  // K's and V's together, per layer
  size_t LayerBytes() const { return KBytes() + VBytes() + ScaleBytes(); }
  size_t PayloadBytes() const { return LayerBytes() * layers; }
  size_t KOffset(uint32_t layer) const { return LayerBytes() * layer; }
  size_t VOffset(uint32_t layer) const { return LayerBytes() * layer + KBytes(); }
  size_t ScaleOffset(uint32_t layer) const { return LayerBytes() * layer + KBytes() + VBytes(); }
};

// The largest payload that any layout may have; frames, slots and extents are sized for it.
inline constexpr size_t kBlockPayloadBytesMax = size_t{64} << 20;

}  // namespace ibid
