// StopTextFilter ends an output before the first stop text, and holds back text that may be the
// start of one.
//
// The first stop text is the one that is complete first, so that what comes out does not depend on
// how the text was cut into pieces. Thread-compatible.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ibid {

inline constexpr size_t kStopTextsMax = 16;
inline constexpr size_t kStopTextBytesMax = 1024;  // of each

// Errors: InvalidArgument (an empty text), ResourceExhausted (kStopTextsMax, kStopTextBytesMax).
absl::Status ValidateStopTexts(const std::vector<std::string>& texts);

class StopTextFilter {
 public:
  // REQUIRES: ValidateStopTexts is OK. No texts: everything passes.
  explicit StopTextFilter(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  // The text that is now certain to belong to the output. REQUIRES: not stopped.
  std::string Add(absl::string_view piece);
  // What was held back, when the output ends for another reason. Empty if stopped.
  std::string Finish();
  bool is_stopped() const { return is_stopped_; }

 private:
  size_t HeldSuffixBytes() const;

  std::vector<std::string> texts_;
  std::string held_;
  bool is_stopped_ = false;
};

}  // namespace ibid
