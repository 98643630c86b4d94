#include "core/kv_layout.h"

#include <array>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/check.h"

namespace ibid {
namespace {

constexpr uint32_t kDimensionMax = 1u << 20;

struct DtypeRow {
  KvDtype dtype;
  absl::string_view name;
  size_t bytes;
};
constexpr std::array<DtypeRow, 5> kDtypes = {{{KvDtype::kF32, "f32", 4},
                                              {KvDtype::kF16, "f16", 2},
                                              {KvDtype::kBf16, "bf16", 2},
                                              {KvDtype::kFp8E4m3, "fp8_e4m3", 1},
                                              {KvDtype::kInt8, "int8", 1}}};
constexpr std::array<absl::string_view, 3> kOrders = {"hnd", "nhd", "opaque"};
constexpr std::array<absl::string_view, 2> kScales = {"none", "token_head"};

template <size_t N>
absl::StatusOr<size_t> IndexOf(const std::array<absl::string_view, N>& names,
                               absl::string_view value, absl::string_view field) {
  for (size_t i = 0; i < N; ++i) {
    if (names[i] == value) return i;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("layout field ", field, ": unknown value '", value, "'"));
}

// One `name=value` of the canonical text.
absl::Status SetField(absl::string_view name, absl::string_view value, KvLayout* layout) {
  const std::pair<absl::string_view, uint32_t*> numbers[] = {
      {"layers", &layout->layers},
      {"kv_heads", &layout->kv_heads},
      {"k_dim", &layout->k_dim},
      {"v_dim", &layout->v_dim},
      {"block_tokens", &layout->block_tokens}};
  for (const auto& [number_name, number] : numbers) {
    if (name != number_name) continue;
    if (absl::SimpleAtoi(value, number)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("layout field ", name, ": '", value, "' is no number"));
  }
  if (name == "dtype") {
    IBID_ASSIGN_OR_RETURN(layout->dtype, ParseDtype(value));
    return absl::OkStatus();
  }
  if (name == "order") {
    IBID_ASSIGN_OR_RETURN(const size_t index, IndexOf(kOrders, value, name));
    layout->order = static_cast<KvOrder>(index);
    return absl::OkStatus();
  }
  if (name == "scales") {
    IBID_ASSIGN_OR_RETURN(const size_t index, IndexOf(kScales, value, name));
    layout->scales = static_cast<KvScales>(index);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("layout has an unknown field '", name, "'"));
}

}  // namespace

size_t DtypeBytes(KvDtype dtype) { return kDtypes[static_cast<size_t>(dtype)].bytes; }

absl::string_view DtypeName(KvDtype dtype) { return kDtypes[static_cast<size_t>(dtype)].name; }

absl::StatusOr<KvDtype> ParseDtype(absl::string_view name) {
  for (const DtypeRow& row : kDtypes) {
    if (row.name == name) return row.dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown dtype '", name, "'; use f32, f16, bf16, fp8_e4m3 or int8"));
}

size_t KvLayout::ScaleBytes() const {
  if (scales == KvScales::kNone) return 0;
  const size_t one = size_t{kv_heads} * block_tokens * sizeof(float);
  return v_dim == 0 ? one : 2 * one;
}

std::string KvLayout::ToString() const {
  return absl::StrCat("layers=", layers, ";kv_heads=", kv_heads, ";k_dim=", k_dim, ";v_dim=", v_dim,
                      ";dtype=", DtypeName(dtype), ";block_tokens=", block_tokens,
                      ";order=", kOrders[static_cast<size_t>(order)],
                      ";scales=", kScales[static_cast<size_t>(scales)]);
}

absl::StatusOr<KvLayout> KvLayout::Parse(absl::string_view text) {
  KvLayout layout;
  for (const absl::string_view field : absl::StrSplit(text.substr(0, 512), ';')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(field, absl::MaxSplits('=', 1));
    IBID_RETURN_IF_ERROR(SetField(parts.first, parts.second, &layout));
  }
  IBID_RETURN_IF_ERROR(layout.Validate());
  if (layout.ToString() != text) {
    return absl::InvalidArgumentError(absl::StrCat("layout is not in canonical form; expected '",
                                                   layout.ToString(), "', got '",
                                                   text.substr(0, 512), "'"));
  }
  return layout;
}

absl::Status KvLayout::Validate() const {
  const std::pair<absl::string_view, uint32_t> positive[] = {
      {"layers", layers}, {"kv_heads", kv_heads}, {"k_dim", k_dim}, {"block_tokens", block_tokens}};
  for (const auto& [name, value] : positive) {
    if (value == 0 || value > kDimensionMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("layout field ", name, " is ", value, "; it must be 1 to ", kDimensionMax));
    }
  }
  if (v_dim > kDimensionMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout field v_dim is ", v_dim, "; at most ", kDimensionMax));
  }
  // Multiplied in floating point first: the product of four dimensions may not fit 64 bits.
  const double bytes =
      (double{1} * k_dim + v_dim) * kv_heads * block_tokens * layers * DtypeBytes(dtype);
  if (bytes > static_cast<double>(kBlockPayloadBytesMax) ||
      PayloadBytes() > kBlockPayloadBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout ", ToString(), " makes blocks of more than ", kBlockPayloadBytesMax,
                     " bytes (kBlockPayloadBytesMax)"));
  }
  return absl::OkStatus();
}

}  // namespace ibid
