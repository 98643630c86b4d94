// Checkpoint: the named tensors of one or more .safetensors files
// (https://github.com/huggingface/safetensors).
//
//   file   = u64 header length, little-endian | header | data
//   header = JSON {"name": {"dtype", "shape", "data_offsets": [begin, end)}, ..}
//            offsets count from the start of the data
//
// A header is believed only after every entry was checked against the file's length, its own shape
// and the other entries. Bytes are read into memory of the caller, never mapped: a file cut short
// later is an error, not a signal.
//
// Thread safety: const methods from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/sha256.h"

namespace ibid {

inline constexpr size_t kSafetensorsHeaderBytesMax = size_t{100}
                                                     << 20;  // as the format's own reader
inline constexpr size_t kTensorsMax = 1u << 20;              // of one file
inline constexpr size_t kShardsMax = 4096;

enum class TensorDtype { kF32, kF16, kBf16, kOther };

struct TensorInfo {
  std::string dtype_name;
  TensorDtype dtype = TensorDtype::kOther;
  std::vector<size_t> shape;
  uint64_t begin = 0, end = 0;  // bytes, from the start of the file's data
};

// The entries of one header, checked. `data_bytes` is the length of the file without its header;
// `file` names it in errors. Errors: InvalidArgument (names file, tensor, reason), DataLoss (the
// data are shorter than the header says).
absl::StatusOr<std::unordered_map<std::string, TensorInfo>> ParseSafetensorsHeader(
    absl::string_view header, uint64_t data_bytes, absl::string_view file);

class Checkpoint {
 public:
  // Opens model.safetensors of `directory`, or the shards that model.safetensors.index.json names.
  // Errors: NotFound, InvalidArgument, DataLoss; each names the file.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& directory);
  ~Checkpoint();

  bool Contains(absl::string_view name) const;
  std::vector<std::string> Names() const;  // sorted
  // Null when there is none.
  const TensorInfo* Find(absl::string_view name) const;
  // The tensor's values as f32, which must be of this shape; f32, f16 and bf16 are converted
  // exactly. Errors: InvalidArgument (missing, another shape, another dtype), DataLoss (the file
  // ends early).
  absl::StatusOr<std::vector<float>> Read(absl::string_view name,
                                          std::span<const size_t> shape) const;
  // Adds all bytes of all files, in the order of their names. Errors: DataLoss.
  absl::Status AddTo(Sha256& hash) const;

 private:
  struct File;
  struct Place {
    const File* file;
    TensorInfo info;
  };
  Checkpoint();
  static absl::StatusOr<std::unique_ptr<File>> OpenFile(const std::string& path);
  absl::Status AddFile(const std::string& path);
  absl::Status CheckIndex(const std::string& path, absl::string_view text);

  std::vector<std::unique_ptr<File>> files_;
  std::unordered_map<std::string, Place> tensors_;
};

}  // namespace ibid
