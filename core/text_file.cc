#include "core/text_file.h"

#include <fstream>

#include "absl/strings/str_cat.h"

namespace ibid {

absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t bytes_max) {
  std::ifstream file(path, std::ios::binary);
  std::string text(bytes_max + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > bytes_max) {
    return absl::InvalidArgumentError(absl::StrCat("has over ", bytes_max, " bytes"));
  }
  if (!file.eof()) return absl::InvalidArgumentError("cannot be read");  // or was never open
  return text;
}

}  // namespace ibid
