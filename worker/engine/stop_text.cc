#include "worker/engine/stop_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/limit.h"

namespace ibid {

absl::Status ValidateStopTexts(const std::vector<std::string>& texts) {
  if (texts.size() > kStopTextsMax) {
    return LimitReached(absl::StrCat(texts.size(), " stop texts"), "stop_texts_max", kStopTextsMax);
  }
  for (const std::string& text : texts) {
    if (text.empty()) return absl::InvalidArgumentError("a stop text is empty");
    if (text.size() > kStopTextBytesMax) {
      return LimitReached(absl::StrCat("a stop text of ", text.size(), " bytes"),
                          "stop_text_bytes_max", kStopTextBytesMax);
    }
  }
  return absl::OkStatus();
}

std::string StopTextFilter::Add(absl::string_view piece) {
  IBID_CHECK(!is_stopped_);
  if (texts_.empty()) return std::string(piece);
  held_.append(piece.data(), piece.size());
  size_t best_end = std::string::npos, best_begin = 0;
  for (const std::string& text : texts_) {
    const size_t begin = held_.find(text);
    if (begin == std::string::npos) continue;
    const size_t end = begin + text.size();
    if (best_end == std::string::npos || end < best_end ||
        (end == best_end && begin < best_begin)) {
      best_end = end;
      best_begin = begin;
    }
  }
  if (best_end != std::string::npos) {
    is_stopped_ = true;
    held_.resize(best_begin);
    return std::exchange(held_, {});
  }
  const size_t released = held_.size() - HeldSuffixBytes();
  std::string result = held_.substr(0, released);
  held_.erase(0, released);
  return result;
}

std::string StopTextFilter::Finish() { return std::exchange(held_, {}); }

size_t StopTextFilter::HeldSuffixBytes() const {
  size_t longest = 0;
  for (const std::string& text : texts_) {
    for (size_t bytes = std::min(text.size() - 1, held_.size()); bytes > longest; --bytes) {
      if (held_.compare(held_.size() - bytes, bytes, text, 0, bytes) == 0) longest = bytes;
    }
  }
  return longest;
}

}  // namespace ibid
