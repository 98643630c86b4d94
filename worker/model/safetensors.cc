#include "worker/model/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "worker/model/half_floats.h"
#include "worker/tokenizer/text_file.h"

namespace ibid {
namespace {

using Json = nlohmann::json;

constexpr size_t kIndexBytesMax = size_t{256} << 20;
constexpr size_t kReadBytes = size_t{8} << 20;  // of one piece while converting or hashing

// Bits of one element by the format's dtype names; 0 for an unknown one.
size_t DtypeBits(absl::string_view name) {
  if (name == "F64" || name == "I64" || name == "U64") return 64;
  if (name == "F32" || name == "I32" || name == "U32") return 32;
  if (name == "F16" || name == "BF16" || name == "I16" || name == "U16") return 16;
  if (name == "BOOL" || name == "U8" || name == "I8" || name == "F8_E4M3" || name == "F8_E5M2")
    return 8;
  return 0;
}

TensorDtype DtypeOf(absl::string_view name) {
  if (name == "F32") return TensorDtype::kF32;
  if (name == "F16") return TensorDtype::kF16;
  if (name == "BF16") return TensorDtype::kBf16;
  return TensorDtype::kOther;
}

absl::Status Malformed(absl::string_view file, absl::string_view tensor, absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat(
      file, tensor.empty() ? "" : absl::StrCat(": tensor '", tensor, "'"), ": ", reason));
}

// Reads exactly `bytes` at `offset`. Errors: DataLoss.
absl::Status ReadAt(int fd, const std::string& path, uint64_t offset, void* to, size_t bytes) {
  char* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t count = pread(fd, at, bytes, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      return absl::DataLossError(
          absl::StrCat(path, ": reading at ", offset, ": ", std::strerror(errno)));
    if (count == 0)
      return absl::DataLossError(
          absl::StrCat(path, ": ends at ", offset, ", ", bytes, " bytes early"));
    at += count;
    offset += static_cast<uint64_t>(count);
    bytes -= static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

bool IsCount(const Json& value) { return value.is_number_unsigned(); }

absl::StatusOr<TensorInfo> ParseEntry(const std::string& name, const Json& entry,
                                      uint64_t data_bytes, absl::string_view file) {
  if (!entry.is_object()) return Malformed(file, name, "its entry is no object");
  TensorInfo info;
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) return Malformed(file, name, "no dtype");
  info.dtype_name = dtype->get<std::string>();
  info.dtype = DtypeOf(info.dtype_name);
  const size_t bits = DtypeBits(info.dtype_name);
  if (bits == 0)
    return Malformed(file, name, absl::StrCat("unknown dtype '", info.dtype_name, "'"));
  const auto shape = entry.find("shape");
  if (shape == entry.end() || !shape->is_array()) return Malformed(file, name, "no shape");
  uint64_t bytes = bits / 8;
  for (const Json& dimension : *shape) {
    if (!IsCount(dimension)) return Malformed(file, name, "a dimension of its shape is no count");
    info.shape.push_back(dimension.get<uint64_t>());
    if (__builtin_mul_overflow(bytes, info.shape.back(), &bytes)) {
      return Malformed(file, name, "its shape exceeds 64 bits");
    }
  }
  const auto offsets = entry.find("data_offsets");
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 ||
      !IsCount((*offsets)[0]) || !IsCount((*offsets)[1])) {
    return Malformed(file, name, "data_offsets are not two counts");
  }
  info.begin = (*offsets)[0].get<uint64_t>();
  info.end = (*offsets)[1].get<uint64_t>();
  if (info.begin > info.end) return Malformed(file, name, "its data end before they begin");
  if (info.end - info.begin != bytes) {
    return Malformed(file, name,
                     absl::StrCat("its shape needs ", bytes, " bytes, its data_offsets hold ",
                                  info.end - info.begin));
  }
  if (info.end > data_bytes) {
    return absl::DataLossError(absl::StrCat(file, ": tensor '", name, "': its data end at ",
                                            info.end, ", the file's data at ", data_bytes,
                                            ": the file is cut short"));
  }
  return info;
}

// The data of all tensors must lie one after another and fill the file, as the format says.
absl::Status CheckCoverage(const std::unordered_map<std::string, TensorInfo>& tensors,
                           uint64_t data_bytes, absl::string_view file) {
  std::vector<std::pair<const TensorInfo*, const std::string*>> order;
  for (const auto& [name, info] : tensors) order.emplace_back(&info, &name);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first->begin, a.first->end) < std::pair(b.first->begin, b.first->end);
  });
  uint64_t end = 0;
  for (const auto& [info, name] : order) {
    if (info->begin < end) return Malformed(file, *name, "its data overlap another tensor's");
    if (info->begin > end)
      return Malformed(
          file, *name,
          absl::StrCat("bytes ", end, " to ", info->begin, " before it belong to no tensor"));
    end = info->end;
  }
  if (end != data_bytes)
    return Malformed(file, "", absl::StrCat("bytes after ", end, " belong to no tensor"));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unordered_map<std::string, TensorInfo>> ParseSafetensorsHeader(
    absl::string_view header, uint64_t data_bytes, absl::string_view file) {
  std::set<std::string> names;
  std::string twice;
  const auto watch_names = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth == 1 && event == Json::parse_event_t::key &&
        !names.insert(value.get<std::string>()).second) {
      twice = value.get<std::string>();
    }
    return true;
  };
  const Json json =
      Json::parse(header.begin(), header.end(), watch_names, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object())
    return Malformed(file, "", "its header is no JSON object");
  if (!twice.empty()) return Malformed(file, twice, "named twice in the header");
  if (json.size() > kTensorsMax)
    return Malformed(file, "", absl::StrCat("more than ", kTensorsMax, " tensors"));
  std::unordered_map<std::string, TensorInfo> tensors;
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") continue;
    IBID_ASSIGN_OR_RETURN(tensors[name], ParseEntry(name, entry, data_bytes, file));
  }
  IBID_RETURN_IF_ERROR(CheckCoverage(tensors, data_bytes, file));
  return tensors;
}

struct Checkpoint::File {
  ~File() {
    if (fd >= 0) close(fd);
  }
  std::string path;
  int fd = -1;
  uint64_t bytes = 0;
  uint64_t data_begin = 0;
  std::unordered_map<std::string, TensorInfo> tensors;
};

Checkpoint::Checkpoint() = default;
Checkpoint::~Checkpoint() = default;

absl::StatusOr<std::unique_ptr<Checkpoint::File>> Checkpoint::OpenFile(const std::string& path) {
  auto file = std::make_unique<File>();
  file->path = path;
  // A pipe would wait for somebody who writes to it.
  file->fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file->fd < 0)
    return absl::NotFoundError(absl::StrCat("opening ", path, ": ", std::strerror(errno)));
  struct stat status;
  if (fstat(file->fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": no regular file"));
  }
  file->bytes = static_cast<uint64_t>(status.st_size);
  if (file->bytes < 8)
    return absl::DataLossError(
        absl::StrCat(path, ": ", file->bytes, " bytes: too short for a header"));
  uint8_t prefix[8];
  IBID_RETURN_IF_ERROR(ReadAt(file->fd, path, 0, prefix, 8));
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | prefix[i];
  if (header_bytes > kSafetensorsHeaderBytesMax) {
    return Malformed(path, "",
                     absl::StrCat("its header claims ", header_bytes, " bytes; the limit is ",
                                  kSafetensorsHeaderBytesMax));
  }
  if (header_bytes > file->bytes - 8) {
    return absl::DataLossError(absl::StrCat(path, ": its header claims ", header_bytes,
                                            " bytes of a file of ", file->bytes,
                                            ": the file is cut short"));
  }
  std::string header(header_bytes, '\0');
  IBID_RETURN_IF_ERROR(ReadAt(file->fd, path, 8, header.data(), header.size()));
  file->data_begin = 8 + header_bytes;
  IBID_ASSIGN_OR_RETURN(file->tensors,
                        ParseSafetensorsHeader(header, file->bytes - file->data_begin, path));
  return file;
}

absl::Status Checkpoint::AddFile(const std::string& path) {
  IBID_ASSIGN_OR_RETURN(std::unique_ptr<File> file, OpenFile(path));
  for (const auto& [name, info] : file->tensors) {
    const auto [place, is_new] = tensors_.emplace(name, Place{file.get(), info});
    if (!is_new)
      return Malformed(path, name, absl::StrCat("is in ", place->second.file->path, " too"));
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

// Opens the shards of an index and checks that each holds what the index says.
absl::Status Checkpoint::CheckIndex(const std::string& path, absl::string_view text) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Malformed(path, "", "is no JSON object");
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object() || map->empty())
    return Malformed(path, "", "has no weight_map");
  std::set<std::string> shards;
  for (const auto& [name, shard] : map->items()) {
    if (!shard.is_string()) return Malformed(path, name, "its shard is no file name");
    const std::string file = shard.get<std::string>();
    if (file.empty() || absl::StrContains(file, '/') || absl::StrContains(file, '\0')) {
      return Malformed(path, name,
                       absl::StrCat("its shard '", file, "' is no file beside the index"));
    }
    shards.insert(file);
  }
  if (shards.size() > kShardsMax)
    return Malformed(path, "", absl::StrCat("more than ", kShardsMax, " shards"));
  const std::string directory = std::filesystem::path(path).parent_path().string();
  for (const std::string& shard : shards)
    IBID_RETURN_IF_ERROR(AddFile(absl::StrCat(directory, "/", shard)));
  for (const auto& [name, shard] : map->items()) {
    const auto place = tensors_.find(name);
    if (place == tensors_.end() ||
        !absl::EndsWith(place->second.file->path, "/" + shard.get<std::string>())) {
      return Malformed(path, name, absl::StrCat("is not in its shard ", shard.get<std::string>()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& directory) {
  auto checkpoint = std::unique_ptr<Checkpoint>(new Checkpoint);
  const std::string single = absl::StrCat(directory, "/model.safetensors");
  const std::string index = absl::StrCat(directory, "/model.safetensors.index.json");
  std::error_code ignored;
  if (std::filesystem::exists(single, ignored)) {
    IBID_RETURN_IF_ERROR(checkpoint->AddFile(single));
  } else if (std::filesystem::exists(index, ignored)) {
    IBID_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(index, kIndexBytesMax));
    IBID_RETURN_IF_ERROR(checkpoint->CheckIndex(index, text));
  } else {
    return absl::NotFoundError(absl::StrCat(
        directory, ": neither model.safetensors nor model.safetensors.index.json is there"));
  }
  return checkpoint;
}

const TensorInfo* Checkpoint::Find(absl::string_view name) const {
  const auto found = tensors_.find(std::string(name));
  return found == tensors_.end() ? nullptr : &found->second.info;
}

std::vector<std::string> Checkpoint::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : tensors_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

bool Checkpoint::Contains(absl::string_view name) const { return Find(name) != nullptr; }

absl::StatusOr<std::vector<float>> Checkpoint::Read(absl::string_view name,
                                                    std::span<const size_t> shape) const {
  const auto found = tensors_.find(std::string(name));
  if (found == tensors_.end()) return Malformed(files_[0]->path, name, "is missing");
  const File& file = *found->second.file;
  const TensorInfo& info = found->second.info;
  if (!std::equal(shape.begin(), shape.end(), info.shape.begin(), info.shape.end())) {
    return Malformed(file.path, name,
                     absl::StrCat("has shape [", absl::StrJoin(info.shape, ", "),
                                  "], the config needs [", absl::StrJoin(shape, ", "), "]"));
  }
  if (info.dtype == TensorDtype::kOther) {
    return Malformed(
        file.path, name,
        absl::StrCat("has dtype ", info.dtype_name, "; supported are F32, F16 and BF16"));
  }
  const size_t element = info.dtype == TensorDtype::kF32 ? 4 : 2;
  const size_t count = (info.end - info.begin) / element;
  std::vector<float> values(count);
  if (info.dtype == TensorDtype::kF32) {
    IBID_RETURN_IF_ERROR(
        ReadAt(file.fd, file.path, file.data_begin + info.begin, values.data(), count * 4));
    return values;
  }
  std::vector<uint16_t> piece(std::min(count, kReadBytes / 2));
  for (size_t done = 0; done < count; done += piece.size()) {
    piece.resize(std::min(piece.size(), count - done));
    IBID_RETURN_IF_ERROR(ReadAt(file.fd, file.path, file.data_begin + info.begin + done * 2,
                                piece.data(), piece.size() * 2));
    if (info.dtype == TensorDtype::kBf16) {
      for (size_t i = 0; i < piece.size(); ++i) values[done + i] = FloatOfBf16(piece[i]);
    } else {
      for (size_t i = 0; i < piece.size(); ++i) values[done + i] = FloatOfF16(piece[i]);
    }
  }
  return values;
}

absl::Status Checkpoint::AddTo(Sha256& hash) const {
  std::vector<std::byte> piece(kReadBytes);
  for (const std::unique_ptr<File>& file : files_) {
    for (uint64_t at = 0; at < file->bytes; at += piece.size()) {
      const size_t bytes = std::min<uint64_t>(piece.size(), file->bytes - at);
      IBID_RETURN_IF_ERROR(ReadAt(file->fd, file->path, at, piece.data(), bytes));
      hash.Add(piece.data(), bytes);
    }
  }
  return absl::OkStatus();
}

}  // namespace ibid
