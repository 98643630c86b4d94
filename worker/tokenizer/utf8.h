// UTF-8: where characters end, and what to do with bytes that are none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace ibid {

enum class Utf8State { kWhole, kIncomplete, kInvalid };

struct Utf8Step {
  Utf8State state;
  size_t
      bytes;  // of the character; of the longest valid start of one if it is not whole, at least 1
  uint32_t code_point;  // of a whole one
};

// The character at the start of `text`, which is not empty. kIncomplete: the text ends inside a
// character.
Utf8Step NextCharacter(absl::string_view text);

// Appends `bytes` to `to`, U+FFFD in place of each part that is no character (as the Unicode
// standard recommends: one for each longest valid start). Returns the bytes at the end that may
// become a character: fewer than 4; they are not appended unless `is_end`.
size_t AppendAsUtf8(absl::string_view bytes, bool is_end, std::string* to);

// Appends the UTF-8 form of `code_point`, which is a valid one.
void AppendCodePoint(uint32_t code_point, std::string* to);

}  // namespace ibid
