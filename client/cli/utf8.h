// Messages carry text as UTF-8 only; what a shell hands over may be anything.
#pragma once

#include "absl/strings/string_view.h"

namespace ibid::cli {

// Well-formed as the Unicode standard says (table 3-7): no overlong forms, no surrogates, nothing
// beyond U+10FFFF.
bool IsUtf8(absl::string_view text);

}  // namespace ibid::cli
