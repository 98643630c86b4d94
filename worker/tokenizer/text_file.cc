#include "worker/tokenizer/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ibid {

absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t bytes_max) {
  // A pipe would wait for somebody who writes to it.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return absl::NotFoundError(absl::StrCat("opening ", path, ": ", std::strerror(errno)));
  struct stat status;
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, ": no regular file"));
  }
  std::string text;
  char piece[65536];
  ssize_t count;
  while ((count = read(fd, piece, sizeof piece)) != 0) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 || text.size() + static_cast<size_t>(count) > bytes_max) break;
    text.append(piece, static_cast<size_t>(count));
  }
  const int error = errno;
  close(fd);
  if (count < 0)
    return absl::DataLossError(absl::StrCat("reading ", path, ": ", std::strerror(error)));
  if (count > 0)
    return absl::ResourceExhaustedError(absl::StrCat(path, ": longer than ", bytes_max, " bytes"));
  return text;
}

}  // namespace ibid
